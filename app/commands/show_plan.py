"""`concertina show-plan`: what would be sent for a stored conversation if it went on now. No model is called."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from msgspec.structs import replace
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from app.assembly.models import policy_of
from app.commands import CommandFailed
from app.commands.open_store import opened_store
from app.commands.top_screen.number_format import shown as printable
from app.compaction.summarizer.summarizer import input_tokens
from app.context.count.token_counter import counter_for
from app.context.plan.policy import Policy
from app.context.view.message_fate import REASONS, Disposition
from app.conversation.messages import Chunk, Conversation, LogMessage
from app.conversations.views.stored_turn import Wish, bare_request, place_of
from app.conversations.views.view_objects import excerpt
from app.pipeline.chat_request import Caller
from app.pipeline.respond.context_status import summary_fields
from app.pipeline.token_counting import Counting
from app.pipeline.view.view_builder import Turn, Views
from app.pipeline.view.view_history import MAX_OUTPUT, Seen, asked_in, messages_seen, seen
from app.pipeline.view.view_preview import Preview, preview, rows
from app.pipeline.view.view_state import CALIBRATION, calibration_of
from app.settings import Settings, load
from app.settings.sections import EVERY_MODEL
from app.simulator.context_window import window_of
from app.store.contract import Store
from app.upstream.provider import Call, ClientKeyRule, Deployment, Reply, Target, Window
from app.upstream.routing import window_registry

PLAIN_WIDTH: Final = 120
STYLES: Final = {
    "summarized": "dim",
    "dropped": "red",
    "anchor": "cyan",
    "pinned": "cyan",
    **dict.fromkeys(("masked", "truncated", "cleared", "told"), "yellow"),
}


class _Unasked:
    """A provider that is only named."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.client_key_rule: ClientKeyRule = "never"

    async def send(self, call: Call) -> Reply:
        raise NotImplementedError

    async def models(self, authorization: str | None) -> list[dict[str, Any]]:
        raise NotImplementedError

    async def aclose(self) -> None:
        """There is nothing to close."""


@dataclass(frozen=True, slots=True)
class _Shown:
    """A view with every message of the log."""

    preview: Preview
    model: str
    rows: Sequence[tuple[LogMessage, Disposition]]


@dataclass(frozen=True, slots=True)
class _Model:
    """The model that the plan is for."""

    name: str
    key: str
    window_tokens: int
    max_output_tokens: int | None
    """What the last request asked for."""


def run(arguments: argparse.Namespace) -> int:
    settings = load(arguments.config)
    if arguments.answer is not None:
        return _run_seen(settings, arguments)
    shown = asyncio.run(_look(settings, arguments))
    if arguments.json:
        print(orjson.dumps(as_json(shown), option=orjson.OPT_INDENT_2).decode())
    else:
        _print(shown)
    return 0


def _run_seen(settings: Settings, arguments: argparse.Namespace) -> int:
    """Show what the model saw for an answer."""
    shown, view, sent = asyncio.run(_look_back(settings, arguments))
    if arguments.json:
        told = as_json(shown) | {
            "answer": arguments.answer,
            "exact": view.is_exact,
            "sent": [orjson.loads(raw) for raw in sent],
        }
        print(orjson.dumps(told, option=orjson.OPT_INDENT_2).decode())
        return 0
    _print(shown, answer=arguments.answer)
    print("these are the very bytes that were sent" if view.is_exact else "the bytes that were sent differed in form")
    return 0


async def _look_back(settings: Settings, arguments: argparse.Namespace) -> tuple[_Shown, Seen, list[bytes]]:
    async with opened_store(settings) as store:
        conversation = await _found(store, settings, arguments.conversation)
        entries = await store.read(conversation, max(0, arguments.answer), arguments.answer + 1)
        view = await seen(store, conversation, entries[0]) if entries else None
        if view is None:
            raise CommandFailed(f"message {arguments.answer} of {conversation.id!r} is no answer of this gateway.")
        sent = await messages_seen(store, conversation, view.plan, view.next_seq, view.versions)
        told = Preview(conversation, (), view.budget, view.plan, view.budget.soft)
        every = await rows(store, conversation, view.plan, 0, view.next_seq)
    return _Shown(told, str((entries[0].meta or {}).get("model")), every), view, sent


async def _found(store: Store, settings: Settings, conversation_id: str) -> Conversation:
    conversation = await store.look_up(conversation_id)
    if conversation is None:
        raise CommandFailed(
            f"there is no conversation {conversation_id!r} in {settings.database.location}; "
            "the id is the `conversation_id` that every answer carries."
        )
    return conversation


async def _look(settings: Settings, arguments: argparse.Namespace) -> _Shown:
    async with opened_store(settings) as store:
        conversation = await _found(store, settings, arguments.conversation)
        model = await _model(settings, store, conversation, arguments)
        counting = Counting(counter_for)
        turn = await _turn(conversation, model, _policy(settings, arguments.policy), counting)
        told = await preview(Views(store=store, counting=counting), turn)
        every = await rows(store, conversation, told.plan, 0, conversation.head_seq + 1)
    return _Shown(told, model.name, every)


async def _turn(conversation: Conversation, model: _Model, policy: Policy, counting: Counting) -> Turn:
    """The turn that a request would be which adds nothing."""
    provider, _, name = model.key.partition("/")
    caller, output = Caller(conversation.tenant), model.max_output_tokens
    request = bare_request(caller, model.name, Wish(), policy=policy.name, max_output_tokens=output)
    place = place_of(conversation)
    counted = await counting.instructions(place.instructions, request, conversation.counter)
    return Turn(
        request=request,
        target=Target(model.name, (Deployment(_Unasked(provider), name),)),
        policy=policy,
        window=Window(model.window_tokens, "config"),
        calibration=calibration_of(conversation.state, model.key),
        summarizer_input_tokens=input_tokens(policy, model.window_tokens),
        place=replace(place, instructions_tokens=counted),
    )


def _policy(settings: Settings, name: str | None) -> Policy:
    chosen = name or settings.policy
    if chosen not in settings.policies:
        raise CommandFailed(f"there is no policy {chosen!r}; known are {', '.join(sorted(settings.policies))}.")
    return policy_of(settings, chosen)


async def _model(settings: Settings, store: Store, conversation: Conversation, arguments: argparse.Namespace) -> _Model:
    """The model asked for, or that of the last answer with the window it had then."""
    answers = await store.read(conversation, max(0, conversation.head_seq - 1), conversation.head_seq + 1)
    meta: Mapping[str, Any] = next((entry.meta for entry in reversed(answers) if entry.meta), {})
    name = arguments.model or meta.get("model")
    if not isinstance(name, str):
        raise CommandFailed(f"{conversation.id!r} has no answer yet that would name a model; give one with --model.")
    seen = [key for key in conversation.state.get(CALIBRATION, {}) if key.partition("/")[2] == name]
    key, configured = _deployment(settings, name)
    if arguments.model is None and seen:
        key = seen[-1]
    window = arguments.window or configured
    if window is None and arguments.model is None:
        window = (meta.get("context") or {}).get("window")
    if window is None:
        window = (await store.model_facts()).get(key, {}).get("window") or _known_window(settings, key)
    return _Model(name, key, int(window), asked_in(meta).get(MAX_OUTPUT))


def _deployment(settings: Settings, name: str) -> tuple[str, int | None]:
    """`provider/model` of the first place that a name stands for, and the window that is configured for it."""
    served = settings.served_models
    if settings.uses_simulated_model or not (name in served or EVERY_MODEL in served):
        return f"simulator/{name}", None
    place = (served.get(name) or served[EVERY_MODEL]).expanded()[0]
    return f"{place.provider}/{place.model or name}", place.context_window


def _known_window(settings: Settings, key: str) -> int:
    name = key.partition("/")[2]
    if settings.uses_simulated_model:
        return window_of(name)
    known = window_registry.find(name)
    return known[0] if known else settings.window_default


def as_json(told: _Shown) -> dict[str, Any]:
    """The plan as an object: numbers calibrated where they are compared with the window, raw where they are counted."""
    shown = told.preview
    decided = shown.plan
    return {
        "conversation_id": shown.conversation.id,
        "model": told.model,
        "status": decided.status,
        "prompt_tokens": shown.prompt_tokens,
        "limit": shown.limit_tokens,
        "window": shown.budget.window,
        "compacts_above": shown.compacts_above,
        "fits": decided.fits,
        "instructions": [message.text for message in shown.instructions],
        "summaries": [_summary(chunk) for chunk in decided.chunks],
        "messages": [
            {
                "seq": row.seq,
                "role": row.role,
                "disposition": row.kind,
                "summary": row.chunk_id,
                "tokens": row.tokens,
                "shown_tokens": row.shown_tokens,
                "quoted": row.is_quoted,
                "reason": row.reason,
                "text": excerpt(entry),
            }
            for entry, row in told.rows
        ],
        "to_summarize": [{"from_seq": one.from_seq, "to_seq": one.to_seq} for one in decided.to_summarize],
        "notes": [{"code": note.code, **note.facts} for note in decided.notes],
    }


def _summary(chunk: Chunk) -> dict[str, Any]:
    return {
        **summary_fields(chunk),
        "kind": chunk.kind,
        "model": chunk.model,
        "created_at": chunk.created_at.isoformat(),
        "text": chunk.text,
    }


def _print(told: _Shown, *, answer: int | None = None) -> None:
    shown = told.preview
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=PLAIN_WIDTH)
    budget, decided = shown.budget, shown.plan
    saw = "would see it now" if answer is None else f"saw it for answer {answer}"
    model = escape(printable(told.model))
    console.print(f"[bold]{shown.conversation.id}[/] as {model} {saw}: [bold]{decided.status}[/]")
    console.print(
        f"{shown.prompt_tokens:,} tokens of {shown.limit_tokens:,} (window {budget.window:,}, "
        f"compaction above {shown.compacts_above:,})" + ("" if decided.fits else " - does not fit")
    )
    if shown.instructions:
        console.print(f"instructions: {len(shown.instructions)} stored system message(s), sent verbatim")
    else:
        console.print("instructions: none stored; what a client sends along comes on top")
    if decided.chunks:
        console.print(_summaries(decided.chunks))
    console.print(_messages(told))
    for kind in dict.fromkeys(row.kind for _, row in told.rows):
        console.print(f"{kind}: {REASONS[kind]}", style=STYLES.get(kind, ""))
    for one in decided.to_summarize:
        console.print(f"would first be summarized: messages {one.from_seq} to {one.to_seq - 1}")
    for note in decided.notes:
        facts = ", ".join(f"{name} {value}" for name, value in note.facts.items())
        console.print(f"note: {note.code}" + (f" ({facts})" if facts else ""))


def _summaries(chunks: tuple[Chunk, ...]) -> Table:
    table = Table("summary", "messages", "tokens", "text", title="Summaries, oldest first", title_justify="left")
    for chunk in chunks:
        covers = f"{chunk.from_seq}-{chunk.to_seq - 1}"
        table.add_row(
            _short_id(chunk.id), covers, str(chunk.tokens), Text("\n".join(map(printable, chunk.text.split("\n"))))
        )
    return table


def _messages(told: _Shown) -> Table:
    table = Table(title="The log, every message of it", title_justify="left", expand=True)
    for name, width in (("seq", 4), ("role", 9), ("tokens", 6), ("sent", 6), ("as", 15)):
        table.add_column(name, no_wrap=True, width=width)
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for entry, row in told.rows:
        sent_as = f"in {_short_id(row.chunk_id)}" if row.chunk_id else row.kind
        quoted = " + quoted" if row.is_quoted else ""
        cells = (str(row.seq), row.role, str(row.tokens), str(row.shown_tokens), sent_as + quoted, excerpt(entry))
        table.add_row(*(Text(printable(cell)) for cell in cells), style=STYLES.get(row.kind, ""))
    return table


def _short_id(chunk_id: str) -> str:
    return chunk_id[:12]
