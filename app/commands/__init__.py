"""The commands of the command line, one module each with `run(arguments) → exit status`; imported only when chosen."""


class CommandError(Exception):
    """A command could not do its work; the message says why and what to change. No stack trace is shown."""
