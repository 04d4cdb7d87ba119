"""The command line. Quick to start: what a command needs is imported when the command is chosen."""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import os
import re
import shlex
import sys
from collections.abc import Sequence
from keyword import iskeyword
from typing import NoReturn, TypeAlias

from app.commands import CommandError, add_config_option
from app.errors import GatewayError
from app.settings import ConfigurationError
from app.settings.configuration_errors import find_nearest_name

USAGE_ERROR = 2
COMMAND_FAILED = 1
INTERRUPTED = 130

SubcommandParsers: TypeAlias = "argparse._SubParsersAction[SuggestingParser]"


class SuggestingParser(argparse.ArgumentParser):
    """A parser whose messages about an unknown command, option or choice name the one that was probably meant."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]  # as argparse has it
        """Parses arguments. Unlike argparse's, it refuses unknown options itself: only here is it known which command
        they were given to.
        """
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [option for action in self._actions for option in action.option_strings]
            word = unknown[0].partition("=")[0]
            nearest = find_nearest_name(word, options) if word.startswith("-") else None
            self.error(f"unexpected {unknown[0]!r}" + (f"; did you mean {nearest}?" if nearest else ""))
        return known, unknown

    def error(self, message: str) -> NoReturn:
        """Prints usage and message, and ends with status 2."""
        refused = re.fullmatch(r"argument (\S+): invalid choice: '(.*)' \(choose from (.*)\)", message, re.DOTALL)
        if refused:
            name, word, choices = refused.groups()
            nearest = find_nearest_name(word, re.findall(r"[\w-]+", choices))
            if nearest:
                message = f"argument {name}: unknown {word!r}; did you mean {nearest!r}?"
        super().error(message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit status: 2 for a wrong command line or configuration, 1 for a command that failed, 130 for Ctrl-C.
    """
    try:
        try:
            return _run_command(argv)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader has all it wants, such as `head -1`. What is left goes nowhere, since Python flushes once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return COMMAND_FAILED


def _run_command(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.version:
        print(f"concertina {importlib.metadata.version('concertina-gateway')}")
        return 0
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return USAGE_ERROR
    # By name, because the server's imports take half a second that `--help` and `check-config` need not wait for.
    name = arguments.command.replace("-", "_")
    command = importlib.import_module(f"app.commands.{name}_" if iskeyword(name) else f"app.commands.{name}")
    try:
        return int(command.run(arguments))
    except ConfigurationError as error:
        print(f"concertina: {error}", file=sys.stderr)
        return USAGE_ERROR
    except (CommandError, GatewayError) as error:
        config = getattr(arguments, "config", None)
        message = str(error) if config is None else add_config_option(str(error), f" --config {shlex.quote(config)}")
        print(f"concertina: {message}", file=sys.stderr)
        return COMMAND_FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def build_parser() -> argparse.ArgumentParser:
    parser = SuggestingParser(
        prog="concertina",
        description="An OpenAI-compatible gateway whose conversations never outgrow the model's context window.",
        epilog="example: concertina init my.yaml && concertina serve --config my.yaml\n\n"
        "`concertina COMMAND --help` tells more. Commands: docs/command-line.md. Settings: docs/configuration.md.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="print the version and stop")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    _add_init_command(commands)
    _add_serve_command(commands)
    migrate = _add_command(commands, "migrate", "bring the database's schema up to date", "--config my.yaml")
    _add_config_option(migrate)
    _add_quiet_option(migrate)
    check = _add_command(
        commands, "check-config", "say whether a configuration can be used, and what it amounts to", "my.yaml"
    )
    check.add_argument("file", metavar="FILE", help="the YAML file")
    _add_doctor_command(commands)
    _add_simulate_command(commands)
    _add_keys_command(commands)
    _add_export_command(commands)
    _add_import_command(commands)
    _add_purge_command(commands)
    reencrypt = _add_command(
        commands, "reencrypt", "write everything that is stored under the active key", "--config my.yaml"
    )
    _add_config_option(reencrypt)
    _add_quiet_option(reencrypt)
    return parser


def _add_command(commands: SubcommandParsers, name: str, description: str, example: str) -> SuggestingParser:
    """A command, described by one sentence and one example."""
    command = commands.add_parser(
        name,
        help=description,
        description=f"{description[0].upper()}{description[1:]}.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.epilog = f"example: {command.prog} {example}"
    return command


def _add_init_command(commands: SubcommandParsers) -> None:
    init = _add_command(
        commands, "init", "write a configuration, by asking three questions", "my.yaml --provider openai --auth keys"
    )
    init.add_argument("file", metavar="FILE", nargs="?", default="concertina.yaml", help="without it concertina.yaml")
    init.add_argument(
        "--provider",
        choices=("openai", "anthropic", "gemini", "azure", "openrouter", "ollama", "local", "other"),
        help="who answers; `local`: vLLM, llama.cpp, LM Studio",
    )
    init.add_argument("--base-url", metavar="URL", help="the provider's address, where it has no fixed one")
    init.add_argument("--key-env", metavar="NAME", help="the environment variable with the provider's key; or none")
    init.add_argument("--database", choices=("sqlite", "postgres"), help="where conversations are kept")
    init.add_argument("--auth", choices=("open", "keys"), help="who is served: everybody, or holders of a key")
    init.add_argument("--force", action="store_true", help="overwrite the file")


def _add_doctor_command(commands: SubcommandParsers) -> None:
    doctor = _add_command(commands, "doctor", "try out store and providers, and say what is wrong", "--config my.yaml")
    _add_config_option(doctor)
    doctor.add_argument("--ask", action="store_true", help="also let a model of each provider answer")


def _add_serve_command(commands: SubcommandParsers) -> None:
    serve = _add_command(commands, "serve", "run the gateway", "--config my.yaml --port 8080")
    _add_config_option(serve)
    serve.add_argument("--host", help="address to listen on (server.host)")
    serve.add_argument("--port", help="port to listen on, 0 for any free one (server.port)")
    serve.add_argument("--workers", help="number of processes (server.workers)")


def _add_simulate_command(commands: SubcommandParsers) -> None:
    simulate = _add_command(
        commands, "simulate", "run the simulated model as a server of its own", "--port 8001 --seconds-per-token 0.02"
    )
    simulate.add_argument("--host", default="127.0.0.1", help="address to listen on")
    simulate.add_argument("--port", type=int, default=8001, help="port to listen on, 0 for any free one")
    simulate.add_argument("--first-token-seconds", type=float, default=0.0, help="pause before an answer begins")
    simulate.add_argument("--seconds-per-token", type=float, default=0.0, help="pause between streamed words")
    simulate.add_argument("--summary-seconds", type=float, default=0.0, help="further pause before a summary")
    simulate.add_argument("--window", type=int, default=128_000, help="tokens, for models whose name states none")


def _add_keys_command(commands: SubcommandParsers) -> None:
    keys = _add_command(
        commands,
        "keys",
        "make, list, change and revoke the gateway's own API keys",
        "create --name shop --expires-in 90d",
    )
    actions = keys.add_subparsers(dest="action", metavar="ACTION", required=True)
    create = _add_command(actions, "create", "make a key and show it, once", "--name operator --scopes admin")
    create.add_argument("--name", required=True, help="for people: who uses it")
    create.add_argument("--tenant", help="whose conversations it sees: the tenant of another key; without it a new one")
    create.add_argument("--scopes", metavar="A,B", help="of chat, read, manage and admin; without it the first three")
    create.add_argument("--policy", help="the context policy of its requests that name none")
    create.add_argument("--models", metavar="A,B", help="names that it may ask for, * and ? being wildcards")
    expiry = create.add_mutually_exclusive_group()
    expiry.add_argument("--expires-in", metavar="TIME", help="such as 12h, 30d or 8w; without it never")
    expiry.add_argument("--expires-at", metavar="MOMENT", help="such as 2027-01-31 or 2027-01-31T12:00+01:00")
    create.add_argument(
        "--budget-usd", type=float, metavar="USD", help="what it may spend in a calendar month (UTC), in US dollars"
    )
    create.add_argument("--requests-per-minute", type=int, metavar="N", help="in place of the settings' limit for keys")
    create.add_argument("--tokens-per-minute", type=int, metavar="N", help="in place of the settings' limit for keys")
    create.add_argument(
        "--pass-through",
        metavar="LIST",
        help="paths below /v1 that are passed through, in place of the provider's list",
    )
    create.add_argument("--retention-days", type=int, metavar="N", help="erase conversations that rest for longer")
    listed = _add_command(actions, "list", "list keys, those that are no longer valid too", "--json")
    listed.add_argument("--tenant", help="only this tenant's")
    update = _add_command(actions, "update", "change a key's budget; what it has spent stays", "key_… --budget-usd 50")
    update.add_argument("key_id", metavar="KEY", help="its id, the beginning of its id, or its name")
    update.add_argument("--budget-usd", metavar="USD", required=True, help="US dollars a month, or none for no limit")
    revoke = _add_command(actions, "revoke", "end a key's validity", "key_…")
    revoke.add_argument("key_id", metavar="KEY", help="its id, the beginning of its id, or its name")
    for action in (create, listed, update, revoke):
        _add_config_option(action)
        action.add_argument("--json", action="store_true", help="print JSON")


def _add_purge_command(commands: SubcommandParsers) -> None:
    purge = _add_command(commands, "purge", "erase old conversations now", "--older-than 30d --dry-run")
    _add_config_option(purge)
    purge.add_argument("--older-than", metavar="AGE", help="such as 30d; without it the configured rules hold")
    purge.add_argument("--tenant", metavar="T", help="of this tenant only")
    purge.add_argument("--dry-run", action="store_true", help="say how many there are, and erase nothing")
    _add_quiet_option(purge)


def _add_export_command(commands: SubcommandParsers) -> None:
    export = _add_command(commands, "export", "write stored conversations as chat messages", "--out copies")
    export.add_argument("conversations", metavar="CONVERSATION", nargs="*", help="its id; without any, all of them")
    export.add_argument("--tenant", metavar="T", help="only this tenant's; its own ids are understood then, too")
    export.add_argument(
        "--out",
        metavar="DIR",
        default="-",
        help="a file of messages per conversation in this folder; - for one line each",
    )
    export.add_argument("--include-deleted", action="store_true", help="also what was deleted and not erased")
    _add_config_option(export)
    _add_quiet_option(export)


def _add_import_command(commands: SubcommandParsers) -> None:
    import_command = _add_command(
        commands,
        "import",
        "take in exports, or message lists in OpenAI's form",
        "all.jsonl --tenant ten_…",
    )
    import_command.add_argument("file", metavar="FILE", help="the file; - for what comes in")
    import_command.add_argument("--tenant", metavar="T", required=True, help="whose conversations they are to be")
    import_command.add_argument(
        "--format",
        default="auto",
        choices=("auto", "jsonl", "openai"),
        help="what the file is; without it its shape tells",
    )
    _add_config_option(import_command)
    _add_quiet_option(import_command)


def _add_config_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--config", metavar="FILE", help="YAML file; CONCERTINA_CONFIG where this is not given")


def _add_quiet_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--quiet", action="store_true", help="say nothing of how far it has come, nor at the end")


if __name__ == "__main__":
    sys.exit(main())
