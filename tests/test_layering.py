"""Imports point down, and pure rooms stay pure: the shape of the code, kept true by reading it."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "app").rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

LINES = [
    {"main", "server", "__main__", "commands", "assembly"},
    {"api"},
    {"conversations"},
    {"pipeline"},
    {"compaction"},
    {"context", "upstream", "store"},
    {"dialects"},
    {"conversation"},
    {"errors", "observability"},
]
"""A room may import itself and rooms on lines below its own, never one beside it."""

BESIDE_THE_HOUSE = {
    "settings": {"settings"},
    "simulator": {"simulator", "context", "conversation", "dialects", "upstream.provider_contract", "errors"},
}
PROTOCOLS = ("app.dialects.chat.", "app.dialects.responses.")
MAY_IMPORT_PROTOCOLS = (
    *("dialects.", "upstream.protocols.", "assembly."),
    *("api.chat", "api.responses", "api.conversations."),  # endpoints of one protocol
)
READ_SETTINGS = {"main", "assembly", "__main__", "commands", "settings"}
MAY_IMPORT_MIGRATIONS = {"main", "commands", "store"}
HOME_OF_LIBRARY = {
    "aiohttp": {"upstream"},
    "alembic": {"store"},
    "asyncpg": {"store"},
    "cryptography": {"store"},
    "fastapi": {"api", "main", "assembly"},
    "httpx": {"upstream"},
    "opentelemetry": {"observability"},  # its SDK is an extra: nobody else may need it
    "pydantic": {"api", "settings"},
    "pydantic_settings": {"settings"},
    "python_multipart": {"api"},
    "sqlalchemy": set(),
    "sqlite3": {"store"},
    "starlette": {"api", "main", "server"},
    "yaml": {"settings"},
    "yarl": {"upstream"},
}
"""Rooms that may know a library: its exceptions and types end there."""
PURE = ("context", "conversation", "dialects")
EFFECTS = {"anyio", "asyncio", "httpx", "io", "logging", "os", "pathlib", "random", "secrets", "socket", "subprocess"}
EFFECTS |= {"tempfile", "threading", "time", "urllib.request", "uuid"}


def name_of(file: Path) -> str:
    """`app/store/sql.py` as `store.sql`, `tests/live.py` as `live`."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__")


@cache
def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def may_import(room: str, target: str) -> bool:
    if target.split(".")[0] == "settings":
        return room in READ_SETTINGS
    if room in BESIDE_THE_HOUSE:
        return any(f"{target}.".startswith(f"{allowed}.") for allowed in BESIDE_THE_HOUSE[room])
    line = next(index for index, rooms in enumerate(LINES) if room in rooms)
    below = {"simulator"} if line == 0 else set[str]()
    return target.split(".")[0] in below.union({room}, *LINES[line + 1 :], LINES[0] if line == 0 else ())


def find_faults(files: Iterable[Path], find: Callable[[str, ast.Module], Iterable[str]]) -> list[str]:
    """What is wrong in each of some files, with the file's path before it.

    Args:
        find: called with the room and the code of a file.
    """
    faults = []
    for file in files:
        room = name_of(file).split(".")[0]
        faults += [f"{file.relative_to(ROOT)}: {fault}" for fault in find(room, parse(file))]
    return faults


def files_of(*rooms: str) -> list[Path]:
    return [file for file in FILES if name_of(file).split(".")[0] in rooms]


def test_imports_point_down() -> None:
    def find(room: str, tree: ast.Module) -> list[str]:
        targets = [name.removeprefix("app.") for name in imports(tree) if name.startswith("app.")]
        return [target for target in targets if room and not may_import(room, target)]

    assert find_faults(FILES, find) == []


def test_a_protocol_is_known_to_its_dialect_only() -> None:
    def find(file: Path) -> list[str]:
        name = name_of(file)
        if name.startswith(MAY_IMPORT_PROTOCOLS):
            return []
        return [f"{name}: {target}" for target in imports(parse(file)) if target.startswith(PROTOCOLS)]

    assert [fault for file in FILES for fault in find(file)] == []


def test_a_library_is_known_to_its_rooms_only() -> None:
    def find(room: str, tree: ast.Module) -> list[str]:
        libraries = {name.split(".")[0] for name in imports(tree)}
        return [name for name in libraries if room not in HOME_OF_LIBRARY.get(name, {room})]

    assert find_faults(FILES, find) == []


def test_the_nouns_need_nothing_but_json_values_and_hashes() -> None:
    def find(room: str, tree: ast.Module) -> set[str]:
        libraries = {name.split(".")[0] for name in imports(tree)}
        return libraries - sys.stdlib_module_names - {"app", "msgspec", "orjson"}

    assert find_faults(files_of("conversation"), find) == []


def test_decisions_are_pure() -> None:
    def find(room: str, tree: ast.Module) -> list[str]:
        nodes = list(ast.walk(tree))
        effects = [name for name in imports(tree) if any(f"{name}.".startswith(f"{effect}.") for effect in EFFECTS)]
        awaits = [type(node).__name__ for node in nodes if isinstance(node, ast.AsyncFunctionDef | ast.Await)]
        calls = [node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        return effects + awaits + [name for name in calls if name in {"open", "print", "input"}]

    assert find_faults(files_of(*PURE), find) == []


def test_imports_stand_at_the_top() -> None:
    def find(room: str, tree: ast.Module) -> list[str]:
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
        return [name for function in functions for name in imports(function)]

    assert find_faults(FILES, find) == []


def test_migrations_are_run_by_the_store_and_the_commands_only() -> None:
    def find(room: str, tree: ast.Module) -> list[str]:
        names = [name for name in imports(tree) if name.split(".")[0] == "migrations"]
        return [] if room in MAY_IMPORT_MIGRATIONS else names

    assert find_faults(FILES, find) == []


def test_only_the_pipeline_knows_its_order() -> None:
    def find(room: str, tree: ast.Module) -> list[str]:
        return [name for name in imports(tree) if f"{name}.".startswith("app.pipeline.pipeline.")]

    assert find_faults(files_of("pipeline"), find) == []


STEPS = {
    "turn": set(),
    "resolve": {"turn"},
    "admission": {"turn", "resolve"},
    "view": {"turn"},
    "compact": {"turn", "view"},
    "call": {"turn", "view", "compact"},
    "persist": {"turn", "resolve"},
    "respond": {"turn", "view", "compact", "call", "persist"},
}
"""The steps of a turn, and which of the others each may import."""


def test_a_step_of_a_turn_knows_only_those_that_it_is_told_of() -> None:
    files = [file for file in files_of("pipeline") if file.parent.name != "pipeline"]  # `pipeline.py` knows all
    faults = [
        f"{name_of(file)}: {name}"
        for file in files
        for name in imports(parse(file))
        if name.startswith("app.pipeline.") and name.split(".")[2] not in STEPS[file.parent.name] | {file.parent.name}
    ]
    assert faults == []
    assert {file.parent.name for file in files} == set(STEPS)


SUB_FOLDERS = {
    "api": {"admin", "conversations", "edge"},
    "compaction": {"acceptance", "summarizer"},
    "context": {"count", "plan", "quote", "stages", "user_text", "view"},
    "conversations": {"erase", "history", "items", "summaries", "transfer", "views"},
    "dialects": {"body", "chat", "items", "messages", "responses"},
    "pipeline": {"admission", "call", "compact", "persist", "resolve", "respond", "turn", "view"},
    "store": {"contract", "encryption", "postgres", "search", "sql", "sqlite"},
    "upstream": {"http", "protocols", "quirks", "routing"},
}
NEVER_IMPORTS = {
    "store.contract": {
        "store.encryption",
        "store.postgres",
        "store.search",
        "store.sql",
        "store.sqlite",
    },
    "store.postgres": {"store.sqlite"},
    "store.sql": {"store.postgres", "store.sqlite"},
    "store.sqlite": {"store.postgres"},
    "upstream.http": {"upstream.protocols", "upstream.quirks", "upstream.routing"},
    "upstream.quirks": {"upstream.http", "upstream.protocols", "upstream.routing"},
    "api.edge": {"api.admin", "api.conversations"},
}
"""Sub-folders that know nothing of others in their room."""


def test_each_sub_folder_of_a_room_is_named_here() -> None:
    found: dict[str, set[str]] = {}
    for file in FILES:
        parts = file.relative_to(ROOT / "app").parts
        if len(parts) > 2:
            found.setdefault(parts[0], set()).add(parts[1])
    assert found == SUB_FOLDERS


def test_a_sub_folder_knows_nothing_of_those_beside_it() -> None:
    faults = []
    for folder, others in NEVER_IMPORTS.items():

        def find(room: str, tree: ast.Module, others: set[str] = others) -> list[str]:
            names = [name.removeprefix("app.") for name in imports(tree)]
            return [name for name in names if any(f"{name}.".startswith(f"{other}.") for other in others)]

        faults += find_faults(sorted((ROOT / "app" / folder.replace(".", "/")).rglob("*.py")), find)
    assert faults == []


WHOLE_STORE = ("assembly", "commands.configured_store", "store")
"""What builds, opens or wraps a backend. All others take the contract that they use."""


def test_only_those_who_build_or_wrap_a_backend_take_all_four_contracts() -> None:
    def find(room: str, tree: ast.Module) -> list[str]:
        return [name for name in imports(tree) if name == "app.store.contract.store.Store"]

    others = [file for file in FILES if not f"{name_of(file)}.".startswith(tuple(f"{name}." for name in WHOLE_STORE))]
    assert find_faults(others, find) == []


PROTOCOL_WORDS = {
    *("approval_request_id", "call_id", "choices", "custom_tool_call", "custom_tool_call_output", "delta"),
    *("encrypted_content", "finish_reason", "function_call", "function_call_output", "image_url"),
    *("incomplete_details", "input_audio", "input_image", "input_text", "item_reference", "max_completion_tokens"),
    *("max_tokens", "output_index", "output_text", "parallel_tool_calls", "reasoning_content", "reasoning_details"),
    *("refusal", "response_format", "stream_options", "thinking_blocks", "tool_call_id", "tool_calls", "tool_choice"),
}
"""Words of Chat Completions and of the Responses API. They belong to `app/dialects`, and to what calls or plays a
provider."""
WORD_IN_TEXT = re.compile(rf"\b(?:{'|'.join(sorted(word for word in PROTOCOL_WORDS if '_' in word))})\b")
CORE = ("api", "compaction", "context", "conversation", "conversations", "pipeline", "store")
OWN_WIRE = {
    "api.conversations.history": "schema of rows with fields `tool_calls` and `finish_reason`",
    "api.conversations.stored_completions": "schema of OpenAI's stored completions",
    "api.model_calls": "schemas of the protocols' own endpoints",
    "api.responses_resource": "a parameter of OpenAI's stored responses",
    "conversations.history.conversation_history": "rows with fields `tool_calls` and `finish_reason`",
    "conversations.history.readable_log": "rows with fields `tool_calls` and `finish_reason`",
    "conversations.items.item_building": "items of OpenAI's conversations API",
}
"""Files in which the gateway's own API has such a word, each with the reason."""


def protocol_words(tree: ast.AST) -> set[str]:
    """The words of the protocols that code names: as text, as an attribute, as a field of a class."""
    words, nodes = set[str](), list(ast.walk(tree))
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Attribute):
            words.add(node.attr)
        elif isinstance(node, ast.ClassDef):
            fields = [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
            words |= {field.id for field in fields if isinstance(field, ast.Name)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docstrings:
            text = node.value if isinstance(node.value, str) else node.value.decode("latin-1")
            words |= {text, *WORD_IN_TEXT.findall(text)}
    return words & PROTOCOL_WORDS


CORE_FILES = files_of(*CORE)


def test_the_core_names_no_word_of_a_protocol() -> None:
    others = [file for file in CORE_FILES if name_of(file) not in OWN_WIRE]
    assert find_faults(others, lambda _, tree: protocol_words(tree)) == []


def test_each_file_that_may_name_words_of_a_protocol_names_one() -> None:
    named = {name_of(file) for file in CORE_FILES if protocol_words(parse(file))}
    assert OWN_WIRE.keys() - named == set(), "the file names no such word any more: take it from the list"


def dotted_patches(tree: ast.AST) -> Iterator[str]:
    """The names of ours that are patched by their path, as in `setattr("app.…", …)` and `patch("app.…")`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args:
            function, target = node.func, node.args[0]
            called = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            if called in {"setattr", "delattr", "patch"} and isinstance(target, ast.Constant):
                name = str(target.value)
                if name.startswith(("app.", "migrations.")):
                    yield name


def test_no_test_patches_a_module_of_ours_by_its_path() -> None:
    """Such a patch breaks when code moves. Clocks, bounds and stores are arguments (`app/assembly/dependencies.py`)."""
    assert find_faults(TESTS, lambda _, tree: dotted_patches(tree)) == []
