"""`concertina show-plan`: shows what would be sent for a stored conversation if it went on now, or what was sent for an
answer. No model is called."""

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

from app.assembly.providers_and_routes import build_learned_limits, build_policy
from app.commands import CommandError, make_printable
from app.commands.configured_store import open_configured_store
from app.compaction.summarizer.summary_generator import compute_max_input_tokens
from app.context.count.token_counter import load_token_counter
from app.context.plan.policy import ContextPolicy
from app.context.view.message_fate import FATE_REASONS, MessageFate
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.conversations.views.stored_turn import StoredTurnRequest, build_bare_request, build_bare_resolved_request
from app.conversations.views.view_and_summary_objects import build_message_excerpt
from app.pipeline.call.window_learning import limit_conversation_window
from app.pipeline.chat_request import Caller
from app.pipeline.respond.context_status import build_summary_fields
from app.pipeline.token_counting import MessageCounter
from app.pipeline.turn import Turn
from app.pipeline.view.last_view_and_calibration import CALIBRATIONS, read_calibration
from app.pipeline.view.view_builder import ViewBuilder
from app.pipeline.view.view_preview import ViewPreview, build_preview, read_message_fates
from app.pipeline.view.view_restoration import (
    MAX_OUTPUT_TOKENS,
    RestoredView,
    explain_view,
    read_request_facts,
    restore_view,
    restore_view_messages,
)
from app.settings import Settings, load_settings
from app.settings.providers_and_models import EVERY_MODEL
from app.simulator.context_window import parse_window_from_name
from app.store.contract.conversations import ConversationStore
from app.store.contract.keys import KeyStore
from app.upstream.provider_contract import (
    ClientKeyRule,
    ContextWindow,
    ModelDeployment,
    ProviderProtocol,
    RouteTarget,
    UpstreamReply,
    UpstreamRequest,
)
from app.upstream.routing import known_model_windows

PLAIN_OUTPUT_WIDTH: Final = 120
FATE_STYLES: Final = {
    "summarized": "dim",
    "dropped": "red",
    "anchor": "cyan",
    "pinned": "cyan",
    **dict.fromkeys(("masked", "truncated", "cleared", "told"), "yellow"),
}


class _PlaceholderProvider:
    """Stands for a provider in a plan, which needs the provider's name only. It cannot be called."""

    protocol: ProviderProtocol = "openai"

    def __init__(self, name: str) -> None:
        self.name = name
        self.client_key_rule: ClientKeyRule = "never"

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        raise NotImplementedError

    async def list_models(self, authorization: str | None) -> list[dict[str, Any]]:
        raise NotImplementedError

    async def aclose(self) -> None:
        """Does nothing: there is no connection."""


@dataclass(frozen=True, slots=True)
class _PreviewWithLog:
    """A plan, and the fate of every message of the log in it."""

    preview: ViewPreview
    model: str
    rows: Sequence[tuple[LogMessage, MessageFate]]


@dataclass(frozen=True, slots=True)
class _PlannedModel:
    """The model that the plan is for."""

    name: str
    key: str
    window_tokens: int
    max_output_tokens: int | None
    """The limit of the answer in the last request."""


def run(arguments: argparse.Namespace) -> int:
    settings = load_settings(arguments.config)
    if arguments.answer is not None:
        return _print_view_of_answer(settings, arguments)
    preview_with_log = asyncio.run(_plan_next_turn(settings, arguments))
    if arguments.json:
        print(orjson.dumps(plan_to_json(preview_with_log), option=orjson.OPT_INDENT_2).decode())
    else:
        _print_plan(preview_with_log)
    return 0


def _print_view_of_answer(settings: Settings, arguments: argparse.Namespace) -> int:
    """Prints what the model saw when it gave an answer; returns the exit status."""
    preview_with_log, view_record, sent_messages = asyncio.run(_load_view_of_answer(settings, arguments))
    if arguments.json:
        output = plan_to_json(preview_with_log) | {
            "answer": arguments.answer,
            "reason": explain_view(view_record),
            "exact": view_record.is_exact,
            "inexact_reason": None if view_record.difference is None else view_record.difference.reason,
            "sent": [orjson.loads(raw) for raw in sent_messages],
        }
        print(orjson.dumps(output, option=orjson.OPT_INDENT_2).decode())
        return 0
    print(explain_view(view_record))
    _print_plan(preview_with_log, answer=arguments.answer)
    difference = view_record.difference
    print("exactly these bytes were sent" if difference is None else f"other bytes were sent: {difference.reason}")
    return 0


async def _load_view_of_answer(
    settings: Settings, arguments: argparse.Namespace
) -> tuple[_PreviewWithLog, RestoredView, list[bytes]]:
    """Restores the view of an answer. Returns it as a preview and as a record, with the messages that were sent."""
    async with open_configured_store(settings) as store:
        conversation = await _find_conversation(store, settings, arguments.conversation)
        # A negative number names no message: the range is empty, and the error below is raised.
        entries = await store.read_log(conversation, max(0, arguments.answer), arguments.answer + 1)
        view_record = await restore_view(store, conversation, entries[0]) if entries else None
        if view_record is None:
            raise CommandError(f"message {arguments.answer} of {conversation.id!r} is not an answer of this gateway.")
        sent_messages = await restore_view_messages(store, conversation, view_record)
        view_preview = ViewPreview(
            conversation, (), view_record.budget, view_record.plan, view_record.budget.compaction_threshold
        )
        log_rows = await read_message_fates(store, conversation, view_record.plan, 0, view_record.next_seq)
    return (
        _PreviewWithLog(view_preview, str((entries[0].meta or {}).get("model")), log_rows),
        view_record,
        sent_messages,
    )


async def _find_conversation(store: ConversationStore, settings: Settings, conversation_id: str) -> Conversation:
    conversation = await store.find_conversation_of_any_tenant(conversation_id)
    if conversation is None:
        raise CommandError(
            f"there is no conversation {conversation_id!r} in {settings.database.url_without_credentials}; "
            "the id is the `conversation_id` that every answer carries."
        )
    return conversation


async def _plan_next_turn(settings: Settings, arguments: argparse.Namespace) -> _PreviewWithLog:
    async with open_configured_store(settings) as store:
        conversation = await _find_conversation(store, settings, arguments.conversation)
        model = await _choose_model(settings, store, store, conversation, arguments)
        message_counter = MessageCounter(load_token_counter)
        turn = await _build_planned_turn(conversation, model, _find_policy(settings, arguments.policy), message_counter)
        view_preview = await build_preview(ViewBuilder(store=store, message_counter=message_counter), turn)
        log_rows = await read_message_fates(store, conversation, view_preview.plan, 0, conversation.head_seq + 1)
    return _PreviewWithLog(view_preview, model.name, log_rows)


async def _build_planned_turn(
    conversation: Conversation, model: _PlannedModel, policy: ContextPolicy, message_counter: MessageCounter
) -> Turn:
    """Builds the turn of a request that adds no message."""
    provider, _, name = model.key.partition("/")
    caller, output = Caller(conversation.tenant), model.max_output_tokens
    request = build_bare_request(caller, model.name, StoredTurnRequest(), policy=policy.name, max_output_tokens=output)
    resolved = build_bare_resolved_request(conversation)
    instructions_tokens = await message_counter.count_instruction_tokens(
        resolved.instructions, request, conversation.token_counter_name
    )
    return Turn(
        request=request,
        target=RouteTarget(model.name, (ModelDeployment(_PlaceholderProvider(provider), name),)),
        policy=policy,
        window=ContextWindow(model.window_tokens, "config"),
        calibration=read_calibration(conversation.state, model.key),
        summarizer_input_tokens=compute_max_input_tokens(policy, model.window_tokens),
        resolved_request=replace(resolved, instructions_tokens=instructions_tokens),
    )


def _find_policy(settings: Settings, name: str | None) -> ContextPolicy:
    policy_name = name or settings.policy
    if policy_name not in settings.policies:
        raise CommandError(f"there is no policy {policy_name!r}; known are {', '.join(sorted(settings.policies))}.")
    return build_policy(settings, policy_name)


async def _choose_model(
    settings: Settings,
    store: ConversationStore,
    model_facts: KeyStore,
    conversation: Conversation,
    arguments: argparse.Namespace,
) -> _PlannedModel:
    """Returns the model that is named on the command line; or else that of the last answer, with its window of that
    time.

    Raises:
        CommandError: no model is named, and no answer has one.
    """
    newest_messages = await store.read_log(conversation, max(0, conversation.head_seq - 1), conversation.head_seq + 1)
    meta: Mapping[str, Any] = next((entry.meta for entry in reversed(newest_messages) if entry.meta), {})
    name = arguments.model or meta.get("model")
    if not isinstance(name, str):
        raise CommandError(
            f"{conversation.id!r} has no answer yet from which to take the model; give one with --model."
        )
    calibrated_keys = [key for key in conversation.state.get(CALIBRATIONS, {}) if key.partition("/")[2] == name]
    key, configured_window = _find_deployment(settings, name)
    # A deployment that has answered in this conversation has a calibration, which makes the plan more exact than the
    # first configured deployment would.
    if arguments.model is None and calibrated_keys:
        key = calibrated_keys[-1]
    # The window from the best source: command line, configuration, the last answer, what was learned from an overflow,
    # known models. Providers' model lists are not asked: the command makes no calls.
    window = arguments.window or configured_window
    if window is None and arguments.model is None:
        window = (meta.get("context") or {}).get("window")
    limits = build_learned_limits(settings)
    limits.restore(await model_facts.read_model_facts())
    if window is None:
        learned = limits.find_limit(key)
        window = learned.tokens if learned and learned.is_stated else _find_known_window(settings, key)
    if arguments.window is None:
        window = limit_conversation_window(ContextWindow(int(window), ""), limits, conversation.state, key).tokens
    return _PlannedModel(name, key, int(window), read_request_facts(meta).get(MAX_OUTPUT_TOKENS))


def _find_deployment(settings: Settings, name: str) -> tuple[str, int | None]:
    """Returns `provider/model` of the first deployment of a model name, and its configured window."""
    served = settings.served_models
    # A name that is configured no longer gets a key, too: a plan can be made without a provider.
    if settings.uses_simulated_model or not (name in served or EVERY_MODEL in served):
        return f"simulator/{name}", None
    deployment = (served.get(name) or served[EVERY_MODEL]).expand_deployments()[0]
    return f"{deployment.provider}/{deployment.model or name}", deployment.context_window


def _find_known_window(settings: Settings, key: str) -> int:
    name = key.partition("/")[2]
    if settings.uses_simulated_model:
        return parse_window_from_name(name)
    known_window = known_model_windows.find_known_window(name)
    return known_window[0] if known_window else settings.window_default


def plan_to_json(preview_with_log: _PreviewWithLog) -> dict[str, Any]:
    """Returns the plan as a JSON object. Tokens of the whole prompt are calibrated, since they are compared with the
    window; tokens of single messages are raw counts."""
    view_preview = preview_with_log.preview
    plan = view_preview.plan
    return {
        "conversation_id": view_preview.conversation.id,
        "model": preview_with_log.model,
        "status": plan.status,
        "prompt_tokens": view_preview.prompt_tokens,
        "limit": view_preview.limit_tokens,
        "window": view_preview.budget.window,
        "compacts_above": view_preview.compacts_above,
        "fits": plan.fits,
        "instructions": [message.text for message in view_preview.instructions],
        "summaries": [_summary_to_json(summary) for summary in plan.summaries],
        "standing_requests": [{"seq": seq, "text": text} for seq, text in _list_standing_requests(preview_with_log)],
        "messages": [
            {
                "seq": row.seq,
                "role": row.role,
                "disposition": row.kind,
                "summary": row.summary_id,
                "tokens": row.tokens,
                "shown_tokens": row.shown_tokens,
                "quoted": row.is_quoted,
                "reason": row.reason,
                "text": build_message_excerpt(entry),
            }
            for entry, row in preview_with_log.rows
        ],
        "to_summarize": [
            {"from_seq": summary_range.from_seq, "to_seq": summary_range.to_seq} for summary_range in plan.to_summarize
        ],
        "notes": [{"code": note.code, **note.facts} for note in plan.notes],
    }


def _list_standing_requests(preview_with_log: _PreviewWithLog) -> list[tuple[int, str]]:
    """Returns the standing requests that the view shows: the message of each, and its text."""
    requests = preview_with_log.preview.plan.standing_requests
    texts = {entry.seq: entry.message.text for entry, _ in preview_with_log.rows} if requests else {}
    return [(one.seq, texts[one.seq][one.start : one.end]) for one in requests]


def _summary_to_json(summary: Summary) -> dict[str, Any]:
    return {
        **build_summary_fields(summary),
        "kind": summary.kind,
        "model": summary.model,
        "created_at": summary.created_at.isoformat(),
        "text": summary.text,
    }


def _print_plan(preview_with_log: _PreviewWithLog, *, answer: int | None = None) -> None:
    view_preview = preview_with_log.preview
    console = Console(highlight=False)
    if not console.is_terminal:
        # rich would wrap the lines of a file or a pipe at 80 columns.
        console = Console(highlight=False, width=PLAIN_OUTPUT_WIDTH)
    budget, plan = view_preview.budget, view_preview.plan
    saw_text = "would see it now" if answer is None else f"saw it for answer {answer}"
    model = escape(make_printable(preview_with_log.model))
    console.print(f"[bold]{view_preview.conversation.id}[/] as {model} {saw_text}: [bold]{plan.status}[/]")
    console.print(
        f"{view_preview.prompt_tokens:,} tokens of {view_preview.limit_tokens:,} (window {budget.window:,}, "
        f"compaction above {view_preview.compacts_above:,})" + ("" if plan.fits else " - does not fit")
    )
    if view_preview.instructions:
        console.print(f"instructions: {len(view_preview.instructions)} stored system message(s), sent verbatim")
    else:
        console.print("instructions: none stored; what a client sends along comes on top")
    if plan.summaries:
        console.print(_build_summary_table(plan.summaries))
    for seq, text in _list_standing_requests(preview_with_log):
        console.print(f"standing request of message {seq}: {escape(make_printable(text))}")
    console.print(_build_message_table(preview_with_log))
    for kind in dict.fromkeys(row.kind for _, row in preview_with_log.rows):
        console.print(f"{kind}: {FATE_REASONS[kind]}", style=FATE_STYLES.get(kind, ""))
    for summary_range in plan.to_summarize:
        console.print(f"would first be summarized: messages {summary_range.from_seq} to {summary_range.to_seq - 1}")
    for note in plan.notes:
        facts = ", ".join(f"{name} {value}" for name, value in note.facts.items())
        console.print(f"note: {note.code}" + (f" ({facts})" if facts else ""))


def _build_summary_table(summaries: tuple[Summary, ...]) -> Table:
    table = Table("summary", "messages", "tokens", "text", title="Summaries, oldest first", title_justify="left")
    for summary in summaries:
        covers = f"{summary.from_seq}-{summary.to_seq - 1}"
        table.add_row(
            _shorten_id(summary.id),
            covers,
            str(summary.tokens),
            Text("\n".join(map(make_printable, summary.text.split("\n")))),
        )
    return table


def _build_message_table(preview_with_log: _PreviewWithLog) -> Table:
    table = Table(title="The log, every message of it", title_justify="left", expand=True)
    for name, width in (("seq", 4), ("role", 9), ("tokens", 6), ("sent", 6), ("as", 15)):
        table.add_column(name, no_wrap=True, width=width)
    table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
    for entry, row in preview_with_log.rows:
        sent_as = f"in {_shorten_id(row.summary_id)}" if row.summary_id else row.kind
        quoted = " + quoted" if row.is_quoted else ""
        cells = (
            str(row.seq),
            row.role,
            str(row.tokens),
            str(row.shown_tokens),
            sent_as + quoted,
            build_message_excerpt(entry),
        )
        table.add_row(*(Text(make_printable(cell)) for cell in cells), style=FATE_STYLES.get(row.kind, ""))
    return table


def _shorten_id(summary_id: str) -> str:
    return summary_id[:12]
