"""The installed package of Concertina. `concertina_gateway.__main__` is the command line; the wheel puts the folders
`app`, `migrations` and `config` in here (docs/decisions/0041-one-own-package-in-the-wheel.md).
"""
