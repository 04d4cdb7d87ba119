"""The commands of the command line, one module each. `app.__main__` imports the module of the chosen command only, and
calls its `run(arguments)`, which returns the exit status."""

import re
from datetime import timedelta


class CommandError(Exception):
    """A command failed. The message says why and what to change; it is printed without a stack trace."""


def add_config_option(text: str, config_option: str) -> str:
    """Returns a text in which each command in backticks has the option too, unless it has one."""
    return re.sub(
        r"`(concertina (?!init)(?![^`]*--config)[^`]+)`", lambda command: f"`{command[1]}{config_option}`", text
    )


def make_printable(text: object) -> str:
    """Returns a text from outside with `?` for each character that could control the terminal."""
    return "".join(letter if letter.isprintable() else "?" for letter in str(text))


def parse_duration(option: str, text: str) -> timedelta:
    """Parses the value of an option that is a duration, such as `30d`.

    Raises:
        CommandError: the text is no such duration.
    """
    match = re.fullmatch(r"(\d{1,5})([mhdw])", text)
    if match is None:
        raise CommandError(f"{option}: expected a number and one of m, h, d, w, such as 30d, not {text!r}.")
    units = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
    return timedelta(**{units[match[2]]: int(match[1])})
