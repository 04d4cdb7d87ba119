"""The commands of the command line, one module each. `app.__main__` imports the module of the chosen command only, and
calls its `run(arguments)`, which returns the exit status."""


class CommandError(Exception):
    """A command failed. The message says why and what to change; it is printed without a stack trace."""


def make_printable(text: object) -> str:
    """Returns a text from outside with `?` for each character that could control the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))
