"""`concertina init`: writes a configuration with comments. It asks three questions, or takes the answers as options."""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from app.commands import CommandError
from app.settings.checks import find_base_url_fault
from app.settings.configuration_errors import suggest_names
from app.settings.load import is_variable_set
from app.settings.providers_and_models import Provider

SCHEMA_FILE: Final = Path(__file__).parents[2] / "config/concertina.schema.json"
"""The same folder in a clone and in an installed package."""
KEY_VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,63}")
"""Upper case only: many keys are letters and digits, too, and must not be taken for the name of a variable."""
SQLITE_URL: Final = "sqlite+aiosqlite:///data/concertina.db"
POSTGRES_URL: Final = "${DATABASE_URL:-postgresql://concertina@localhost:5432/concertina}"
MAX_ATTEMPTS: Final = 3
"""How often a question is asked if its answers cannot be used."""


@dataclass(frozen=True, slots=True)
class ProviderChoice:
    """What `init` knows about a kind of provider."""

    title: str
    base_url: str | None
    """None: the operator must say it."""
    key_variable: str | None
    """The variable in which the provider's own tools expect the key; None: usually there is no key."""
    example_url: str = ""
    lines: tuple[str, ...] = ()
    """Further settings of the provider, with comments."""
    model_lines: tuple[str, ...] = ()
    """Comments about models of this kind of provider."""


PROVIDERS: Final[Mapping[str, ProviderChoice]] = {
    "openai": ProviderChoice("OpenAI", "https://api.openai.com/v1", "OPENAI_API_KEY"),
    "anthropic": ProviderChoice(
        "Anthropic",
        "https://api.anthropic.com/v1",
        "ANTHROPIC_API_KEY",
        lines=("protocol: anthropic",),
    ),
    "gemini": ProviderChoice(
        "Google Gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        "GEMINI_API_KEY",
        lines=(
            "# Gemini signs its tool calls, and refuses those of a running tool loop without their signature.",
            "quirks: {tool_call_ids: unique, restore_fields: [tool_calls.extra_content], restore_scope: tool_turns}",
        ),
    ),
    "azure": ProviderChoice(
        "Azure OpenAI",
        None,
        "AZURE_OPENAI_API_KEY",
        example_url="https://my-resource.openai.azure.com/openai/v1",
        lines=("auth_header: api-key",),
        model_lines=("Azure's model names are the names of your deployments.",),
    ),
    "openrouter": ProviderChoice(
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        "OPENROUTER_API_KEY",
        lines=("quirks: {restore_fields: [reasoning_details], restore_scope: tool_turns}",),
    ),
    "ollama": ProviderChoice(
        "Ollama on this machine",
        "http://127.0.0.1:11434/v1",
        None,
        lines=("quirks: {developer_to_system: true, max_tokens_field: max_tokens}",),
        model_lines=(
            "Ollama cuts longer prompts silently at the window it was started with (OLLAMA_CONTEXT_LENGTH):",
            "name each model with the same number.",
        ),
    ),
    "local": ProviderChoice(
        "local server without a key (vLLM, llama.cpp, LM Studio)",
        "http://127.0.0.1:8001/v1",
        None,
        lines=("quirks: {developer_to_system: true}",),
        model_lines=("Chat templates that refuse what OpenAI takes: config/providers.yaml has the quirks by family.",),
    ),
    "other": ProviderChoice(
        "any other address, with a key",
        None,
        "PROVIDER_API_KEY",
        example_url="https://api.example.com/v1",
    ),
}
USES: Final[Mapping[str, tuple[str, str, str]]] = {
    "me": ("only you, on this machine: SQLite, no keys of the gateway", "sqlite", "open"),
    "team": ("a team: SQLite, everybody gets a key of the gateway", "sqlite", "keys"),
    "production": ("several gateways on one PostgreSQL, with keys", "postgres", "keys"),
}
"""The answers to the third question: what is shown, the database, and who is let in."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What the file is made from."""

    provider: str
    base_url: str
    key_variable: str | None
    database: str
    auth: str


def run(arguments: argparse.Namespace) -> int:
    file = Path(arguments.file)
    if file.exists() and not arguments.force:
        raise CommandError(f"{arguments.file} exists. Name another file, or overwrite it with --force.")
    answers = _collect_answers(arguments, ask=_ask if sys.stdin.isatty() else None)
    try:
        # "x": a file that another process has made meanwhile is not overwritten either.
        with file.open("w" if arguments.force else "x", encoding="utf-8") as target:
            target.write(write_configuration(answers))
    except OSError as error:
        raise CommandError(f"cannot write {arguments.file}: {error.strerror}.") from error
    print(f"Wrote {arguments.file}.")
    for line in _list_next_steps(answers, shlex.quote(arguments.file)):
        print(line)
    return 0


def _collect_answers(arguments: argparse.Namespace, ask: Callable[[str, str], str] | None) -> Answers:
    """Takes the answers from options, and asks for those that are missing.

    Args:
        ask: asks a question with a default; None: nobody can be asked, since standard input is no terminal.

    Raises:
        CommandError: an option cannot be used, or a needed one is missing and nobody can be asked.
    """
    provider = arguments.provider
    if provider is None:
        if ask is None:
            raise CommandError(
                "standard input is no terminal, so nothing can be asked: give --provider "
                f"({', '.join(PROVIDERS)}), and if needed --base-url, --key-env, --database, --auth."
            )
        provider = _ask_choice(ask, "1. Which provider answers?", {name: row.title for name, row in PROVIDERS.items()})
    choice = PROVIDERS[provider]
    base_url = arguments.base_url or choice.base_url
    # Servers of one's own have usual addresses, and often others.
    is_uncertain = choice.base_url is None or choice.key_variable is None
    if arguments.base_url is None and is_uncertain and ask is not None:
        base_url = _ask_until_valid(ask, "   Its address", base_url or choice.example_url, _check_base_url)
    if base_url is None:
        raise CommandError(f"--provider {provider} needs --base-url, such as {choice.example_url}.")
    default_variable = choice.key_variable or "none"
    key_text = arguments.key_env
    if key_text is None and ask is not None:
        question = "2. Which environment variable has its key? (never the key itself; none: it needs no key)"
        key_text = _ask_until_valid(ask, question, default_variable, _check_key_variable)
    key_variable = _check_key_variable(key_text or default_variable)
    database, auth = arguments.database, arguments.auth
    if (database is None or auth is None) and ask is not None:
        use = _ask_choice(ask, "3. Who uses the gateway?", {name: title for name, (title, _, _) in USES.items()})
        database, auth = database or USES[use][1], auth or USES[use][2]
    return Answers(
        provider,
        _check_base_url(base_url),
        None if key_variable == "none" else key_variable,
        database or "sqlite",
        auth or "open",
    )


def _ask(question: str, default: str) -> str:
    try:
        return input(f"{question} [{default}] ").strip() or default
    except EOFError as error:
        raise CommandError("the input ended before the last question; nothing was written.") from error


def _ask_choice(ask: Callable[[str, str], str], question: str, choices: Mapping[str, str]) -> str:
    """Returns the name of a choice. It is answered with its number, or with its name."""
    names = list(choices)
    print(question)
    for number, name in enumerate(names, 1):
        print(f"   {number}  {name}: {choices[name]}")

    def check(answer: str) -> str:
        if answer in choices:
            return answer
        if answer.isdecimal() and 1 <= int(answer) <= len(names):
            return names[int(answer) - 1]
        raise CommandError(f"expected a number from 1 to {len(names)}, or a name; {suggest_names(answer, names)}")

    return _ask_until_valid(ask, "  ", "1", check)


def _ask_until_valid(ask: Callable[[str, str], str], question: str, default: str, check: Callable[[str], str]) -> str:
    """Asks until the answer can be used, at most `MAX_ATTEMPTS` times."""
    for _ in range(MAX_ATTEMPTS - 1):
        answer = ask(question, default)
        try:
            return check(answer)
        except CommandError as error:
            print(f"   {error}")
    return check(ask(question, default))


def _check_base_url(text: str) -> str:
    """Returns an address that passes the settings' own check, and contains no secret: the file is to have none."""
    fault = find_base_url_fault(text)
    if fault is None:
        if re.search(r"[\s\"'\\{}$]", text):
            fault = "it must have no spaces, quotes, braces, backslashes and '$'"
        elif "@" in text or Provider(base_url=text).has_own_key:
            fault = "it must have no key and no password inside: the file names only the variable with the key"
    if fault is not None:
        raise CommandError(f"the address: {fault}" if fault.endswith("?") else f"the address: {fault}.")
    return text.rstrip("/")


def _check_key_variable(text: str) -> str:
    """Returns a variable's name, or `none`. The message does not repeat the text: it may be a key."""
    if text != "none" and KEY_VARIABLE.fullmatch(text) is None:
        raise CommandError(
            "the key: expected the name of an environment variable in capitals, such as OPENAI_API_KEY, and never the "
            "key itself; `none` if the provider needs no key."
        )
    return text


def write_configuration(answers: Answers) -> str:
    """Returns the text of a configuration file. It contains no key: `${NAME}` stands for the variable that has it."""
    choice = PROVIDERS[answers.provider]
    return "\n".join(
        [
            f"# yaml-language-server: $schema={SCHEMA_FILE.as_uri()}",
            "# Concertina's configuration. Every setting: docs/configuration.md. In words: concertina check-config",
            "",
            *_write_provider(answers, choice),
            "",
            *_write_models(answers, choice),
            "",
            *_write_access(answers),
            "",
            *_write_context(),
            "",
        ]
    )


def _write_provider(answers: Answers, choice: ProviderChoice) -> Sequence[str]:
    lines = ["providers:", f"  {answers.provider}:", f'    base_url: "{answers.base_url}"']
    if answers.key_variable is not None:
        # In mode `keys` a missing key is refused at start, and the message should name the variable.
        reference = f"${{{answers.key_variable}}}" if answers.auth == "keys" else f"${{{answers.key_variable}:-}}"
        comment = "" if answers.auth == "keys" else "  # if it is empty, clients' own keys are passed on"
        lines.append(f'    api_key: "{reference}"{comment}')
    elif answers.auth == "open":
        lines.append("    # api_key: left out, so clients' own keys are passed on")
    elif not Provider(base_url=answers.base_url).has_private_address:
        lines.append("    api_key: none  # any word: the provider needs no key, and gets no client's")
    return [*lines, *(f"    {line}" for line in choice.lines)]


def _write_models(answers: Answers, choice: ProviderChoice) -> Sequence[str]:
    return [
        "# Every model of the provider works under its own name. Most windows are known, or read from its model list;",
        "# for others the window is window_default (8,192 tokens): state it here.",
        *(f"# {line}" for line in choice.model_lines),
        "models:",
        f'  "*": {{provider: {answers.provider}}}',
        f"  # my-model: {{provider: {answers.provider}, context_window: 32768}}",
        f"  # fast: {{provider: {answers.provider}, model: its-name-there, fallbacks: [my-model]}}  # an alias",
    ]


def _write_access(answers: Answers) -> Sequence[str]:
    url = SQLITE_URL if answers.database == "sqlite" else POSTGRES_URL
    lines = ["database:", f'  url: "{url}"']
    if answers.database == "sqlite":
        lines[1] += "  # a file, below the folder in which the gateway is started"
    lines += ["", "auth:"]
    if answers.auth == "keys":
        lines.append("  mode: keys  # make a key: concertina keys create --name NAME; an operator's: --scopes admin")
    else:
        lines.append("  mode: open  # every client is served, and each credential sees its own conversations only")
    return [
        *lines,
        "  # allowed_hosts: [gateway.example.com]  # the gateway's public names, if it has any",
        "",
        "server:",
        "  host: 127.0.0.1  # 0.0.0.0 listens on every interface: protect the port then, or use auth.mode: keys",
        "  port: 8000",
    ]


def _write_context() -> Sequence[str]:
    return [
        "# How conversations are kept below the window (docs/choosing.md compares the policies).",
        "policy: additive",
        "policies:",
        "  additive:",
        "    threshold_ratio: 0.7  # compact when the prompt passes this share of the window",
        "    summarizer:",
        "      model: same  # write summaries with the request's own model; a cheaper one's name costs less",
        "",
        "# retention: {days: 90}  # erase conversations that rest for longer",
    ]


def _list_next_steps(answers: Answers, file: str) -> Sequence[str]:
    lines = []
    if answers.key_variable is not None and not is_variable_set(answers.key_variable):
        lines.append(f"{answers.key_variable} is not set in this shell. Set it first:  export {answers.key_variable}=…")
    if answers.database == "postgres" and not is_variable_set("DATABASE_URL"):
        lines.append("DATABASE_URL is not set in this shell. Set it to the address of your PostgreSQL.")
    # As it was typed: in a clone the program is not on the path.
    program = shlex.quote(sys.argv[0]) if Path(sys.argv[0]).name == "concertina" else "concertina"
    lines.append(f"Next, see whether all of it works:  {program} doctor --config {file}")
    if answers.auth == "keys":
        lines.append(f"Make a key for yourself:            {program} keys create --name NAME --config {file}")
    lines.append(f"Then serve:                         {program} serve --config {file}")
    return lines
