"""From a recollection to the view that is sent: outline, plan, compaction, messages."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from app.compaction.summarizer.request_body import INSTRUCTION_TOKENS
from app.context.calibration import LOWEST_SLOPE, Calibration, Prompt, digest_instructions
from app.context.plan.budget import Budget, budget_for, summary_limit
from app.context.plan.log_cuts import boundary_after
from app.context.plan.outline import START, LastView, Outline, Plan, Range, Summarize
from app.context.plan.planner import plan
from app.context.plan.policy import Policy
from app.context.plan.summary_chain import find_omitted
from app.context.view.missing_results import close_calls, is_missing_result
from app.context.view.view_messages import render, summary_message
from app.conversation.messages import Chunk, Conversation, LogMessage, Message
from app.errors import ContextLengthExceeded
from app.pipeline.call.search_tool import Recalled
from app.pipeline.chat_request import ChatRequest
from app.pipeline.compact.summary_chain import NO_CHAIN, Chain, Chains, chain_of
from app.pipeline.resolve.resolved_request import PINS, Recollection
from app.pipeline.respond.context_status import tokens_header
from app.pipeline.token_counting import SCHEMA_FIELDS, Counting
from app.pipeline.view.pins import fitting, pins_of
from app.pipeline.view.view_state import last_view_of
from app.store.contract import Store
from app.upstream.provider import ClientKey, Target, Window, bind_client_key

Raws = Mapping[int, bytes] | Sequence[bytes]
UNTOUCHED: Final = Plan(status="full", chunks=(), boundary=START, prompt_tokens=0, fits=True)
NOTHING_RAN: Final[Mapping[str, Any]] = MappingProxyType({"ran": False})
MOST_LINES: Final = 1_000
"""Of so many budgets it is remembered what they come to."""
READ_GAP_MESSAGES: Final = 2
"""Messages this near to each other are read as one range, and those between them left aside."""
CLIENT_TOOLS: Final = ("function", "custom")
"""Types of tools whose calls come back to the client; a provider runs all others by itself."""
PROVIDER_TOOL_FIELDS: Final = frozenset({"web_search_options", "search_parameters", "plugins"})
"""Fields that let a provider search by itself: OpenAI, xAI, OpenRouter."""
LONG_TAIL_MESSAGES: Final = 1_000
LONG_TAIL_TOKENS: Final = 32_768
"""What is cut into rounds or shortened within a few milliseconds; longer tails are planned off the event loop."""


class Turn(msgspec.Struct, frozen=True):
    """One request with everything that was found out about it before planning."""

    request: ChatRequest
    target: Target
    policy: Policy
    window: Window
    calibration: Calibration
    summarizer_input_tokens: int
    place: Recollection
    recalled: Recalled | None = None
    """Where the model is offered the recall tool, which then is one of the request's tools."""

    @property
    def model_key(self) -> str:
        return self.target.deployments[0].key

    @property
    def client_key(self) -> ClientKey | None:
        """The client's own key, meant for the first provider of the model that the client asked for."""
        return bind_client_key(self.request.caller.authorization, self.target.deployments[0].provider)

    @property
    def instructions_tokens(self) -> int:
        """The raw count to plan with: ours, and what the provider was seen to add to it."""
        calibration, counted = self.calibration, self.place.instructions_tokens
        if not calibration.reports and not calibration.attachments:
            return counted
        return calibration.planned_instructions_tokens(counted, self.instructions_digest)

    @property
    def instructions_digest(self) -> str:
        """Names the leading system messages and the tool schemas."""
        fields = self.request.fields
        schemas = {name: bytes(fields[name]) for name in SCHEMA_FIELDS & fields.keys()}
        return digest_instructions((bytes(message.raw) for message in self.place.instructions), schemas)

    def prompt(self, view: View) -> Prompt:
        """What is sent with a view, by our raw count."""
        counted = self.place.instructions_tokens
        return Prompt(
            estimated_tokens=view.plan.prompt_tokens - view.outline.instructions_tokens + counted,
            instructions_tokens=counted,
            instructions=self.instructions_digest,
            boundary_seq=view.plan.boundary_seq,
            has_provider_tools=runs_provider_tools(self.request),
        )


class View(msgspec.Struct, frozen=True):
    """What is to be sent, and how it came about."""

    outline: Outline
    plan: Plan
    budget: Budget
    messages: Sequence[bytes] | None
    """JSON text of each message; None for the client's own, untouched."""
    raws: Raws | None = None
    """JSON text of the log's messages that it shows, by seq, and perhaps of others."""
    compaction: Mapping[str, Any] = NOTHING_RAN
    recovered: bool = False
    warnings: tuple[str, ...] = ()
    provider_output_limit: int | None = None
    """The longest answer beside this prompt, by what the provider said of its window."""

    @property
    def prompt_tokens(self) -> int:
        """Calibrated."""
        return self.budget.calibrated(self.plan.prompt_tokens)

    def output_limit(self, added_tokens: int = 0) -> int | None:
        """The answer's limit to send in place of the client's; None where the client's stays.

        Args:
            added_tokens: raw count of messages behind the view.
        """
        added = self.budget.calibrated(added_tokens)
        if self.provider_output_limit is None:
            return self.budget.output_limit(self.prompt_tokens + added)
        return max(1, self.provider_output_limit - added)

    @property
    def uncompacted_tokens(self) -> int:
        """What would be sent if every summary there is were used and nothing cut: calibrated."""
        outline = self.outline
        covered = outline.chunks[-1].tokens_total if outline.chunks else 0
        summaries = sum(chunk.tokens for chunk in outline.chunks)
        return self.budget.calibrated(outline.instructions_tokens + summaries + outline.log_tokens - covered)


class Views:
    """Plans views. Reads from the store only what a view needs: chunks if there are any, and the log behind them."""

    def __init__(self, *, store: Store, counting: Counting) -> None:
        self._store = store
        self._chains = Chains(store)
        self._counting = counting
        self._known_lines: dict[tuple[str, int, bool, int | None, int | None], tuple[Policy, Budget]] = {}

    def budget(self, turn: Turn, window: int | None = None, ratio: float | None = None) -> Budget:
        """The budget of a turn, or of the same turn with another window or calibration."""
        if ratio is None:
            ratio = turn.calibration.slope
        budget = self._lines(turn, window)
        return budget if ratio == budget.ratio else replace(budget, ratio=ratio)

    def _lines(self, turn: Turn, known_window: int | None) -> Budget:
        """The budget of an uncalibrated turn: there are few, and most turns have one that was worked out before."""
        policy, output, longest = turn.policy, turn.request.max_output_tokens, turn.window.max_input
        window, is_guess = known_window or turn.window.tokens, known_window is None and turn.window.source == "default"
        key = (policy.name, window, is_guess, output, longest)
        known = self._known_lines.get(key)
        if known is not None and known[0] is policy:
            return known[1]
        budget = budget_for(policy, window=window, requested_output=output)
        if is_guess:
            budget = replace(budget, requested_output=0)  # the provider may have room for it
        if longest is not None and longest < budget.hard:
            budget = replace(budget, hard=longest, soft=min(budget.soft, longest))
        if len(self._known_lines) >= MOST_LINES:
            self._known_lines.clear()
        self._known_lines[key] = policy, budget
        return budget

    async def make(
        self,
        turn: Turn,
        budget: Budget,
        *,
        summarize: Summarize,
        more_chunks: Sequence[Chunk] = (),
    ) -> View:
        """Plan a view and render it.

        Args:
            more_chunks: chunks made for this request, whether or not the store could keep them.

        Raises:
            ContextLengthExceeded: instructions and newest message alone do not fit, by the lowest count there may be.
            StoreUnavailable: the log or its chunks are needed and cannot be read.
        """
        place = turn.place
        view = _without_cut_attachments(
            turn, await self.planned(turn, budget, summarize=summarize, more_chunks=more_chunks)
        )
        plan = view.plan
        if not plan.fits:
            if LOWEST_SLOPE * turn.prompt(view).estimated_tokens > budget.window:
                raise too_long(view)
            view = replace(view, warnings=(*view.warnings, _doubt(view)))
        if place.client_log is not None and plan.is_untouched and not place.lacks_results:
            return view
        shown = await self.shown(place, view, plan)
        added_tokens = self._missing_result_tokens(place, shown.messages or ())
        if not added_tokens:
            return shown
        if plan.fits and budget.calibrated(plan.prompt_tokens + added_tokens) > budget.hard:
            hard = budget.hard - budget.calibrated(added_tokens)
            tighter = replace(budget, hard=hard, soft=min(budget.soft, hard))
            view = _without_cut_attachments(
                turn, await self.planned(turn, tighter, summarize=summarize, more_chunks=more_chunks)
            )
            plan = view.plan
            if not plan.fits:
                view = replace(view, warnings=(*view.warnings, _doubt(view)))
            shown = await self.shown(place, view, plan)
            added_tokens = self._missing_result_tokens(place, shown.messages or ())
        plan = replace(plan, prompt_tokens=plan.prompt_tokens + added_tokens)
        return replace(shown, plan=plan, budget=budget)

    def _missing_result_tokens(self, place: Recollection, messages: Sequence[bytes]) -> int:
        """What the results take that stand for missing ones."""
        counter = self._counting.counter(place.conversation.counter)
        return sum(counter.message(Message(raw).body) for raw in messages if is_missing_result(raw))

    async def shown(self, place: Recollection, view: View, plan: Plan) -> View:
        """A view with its messages, by a plan that may quote more than its own; what it shows already is not read
        again.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        raws = await self._raws(place, plan, view.raws)
        messages = _rendered(place, plan, raws, view.outline.next_seq)
        return replace(view, plan=plan, messages=messages, raws=raws)

    async def planned(
        self, turn: Turn, budget: Budget, *, summarize: Summarize, more_chunks: Sequence[Chunk] = ()
    ) -> View:
        """A view without its messages, whether or not it fits. Reads what is needed to decide, no more.

        Raises:
            StoreUnavailable: the log or its chunks are needed and cannot be read.
        """
        place, policy = turn.place, turn.policy
        over = budget.calibrated(turn.instructions_tokens + place.log_tokens) > budget.soft
        may_have_any = place.conversation.chunk_count or ((over or summarize in {"now", "ahead"}) and place.keeps)
        omitted = find_omitted(place.versions)
        replacing = policy.replaces
        if policy.summarizes and may_have_any:
            chain = await self._chains.of(place, replacing=replacing, made=more_chunks, omitted=omitted)
        else:
            chain = chain_of(made=more_chunks, replacing=replacing, omitted=omitted) if more_chunks else NO_CHAIN
        view = await self._planned(turn, budget, summarize, chain, omitted, is_over=over)
        if chain.has_read(view.plan.chunks):
            return view
        chain = await self._chains.of(place, replacing=replacing, made=more_chunks, omitted=omitted, anew=True)
        return await self._planned(turn, budget, summarize, chain, omitted, is_over=over)

    async def _planned(
        self, turn: Turn, budget: Budget, summarize: Summarize, chain: Chain, omitted: Set[int], *, is_over: bool
    ) -> View:
        """A view without its messages, on the chunks that there are.

        Args:
            omitted: seqs of the messages that the client leaves out.
            is_over: whether all of the log would be above the soft line.
        """
        place, conversation = turn.place, turn.place.conversation
        versions = place.versions
        last = versions.project_view(
            last_view_of(conversation.state, turn.policy, budget.window), [one.seq for one in place.changes]
        )
        marks = conversation.marks
        at_start = place.is_fresh and not chain.chunks and not last.boundary.to_seq
        outline = Outline(
            instructions_tokens=turn.instructions_tokens,
            log_tokens=place.log_tokens,
            next_seq=place.next_seq,
            chunks=tuple(map(versions.project_chunk, chain.chunks)),
            folds=tuple(map(versions.project_chunk, chain.folds)),
            tail=versions.project_entries(place.new) if at_start else None,
            new_from_seq=conversation.head_seq + 1,
            pins=fitting(tuple(map(versions.project_pin, pins_of(marks))), turn.policy, budget) if marks else (),
            last=last,
            omitted=omitted,
        )
        decided = await self._plan(turn, outline, budget, summarize, is_over=is_over)
        if (start := decided.needs_tail) is not None:
            tail = versions.project_entries(await self.log(place, start.to_seq))
            outline = replace(outline, tail=tail, tail_start=start)
            decided = await self._plan(turn, outline, budget, summarize, is_over=is_over)
        return View(outline, decided, budget, None, warnings=_warnings(place, outline) if marks else ())

    async def _plan(self, turn: Turn, outline: Outline, budget: Budget, summarize: Summarize, *, is_over: bool) -> Plan:
        """The plan; made in a thread where there is much to cut, or long text to shorten.

        Args:
            is_over: whether all of the log would be above the soft line.
        """
        if is_over and outline.tail is not None and _takes_long(outline):
            return await asyncio.to_thread(self._decided, turn, outline, budget, summarize)
        return self._decided(turn, outline, budget, summarize)

    def _decided(self, turn: Turn, outline: Outline, budget: Budget, summarize: Summarize) -> Plan:
        return plan(
            outline,
            budget,
            turn.policy,
            count=self._counting.counter(turn.place.conversation.counter),
            summarizer_input_tokens=turn.summarizer_input_tokens,
            summarize=summarize,
            through_seq=turn.request.through_seq,
        )

    async def answered(self, place: Recollection, conversation: Conversation) -> Recollection:
        """A place as the next request will find it, with the answer at the log's end.

        Raises:
            StoreUnavailable: the answer cannot be read.
        """
        log = None
        head_seq = conversation.head_seq
        if place.aligned and place.client_log is not None and len(place.client_log) == head_seq:
            (answer,) = await self._store.read(conversation, head_seq, head_seq + 1)
            log = [*place.client_log, answer.message.raw]
        return replace(place, conversation=conversation, new=(), client_log=log, seqs=None, changes=(), lease=None)

    async def prefix(self, turn: Turn, view: View, wanted: Range) -> tuple[list[bytes], int]:
        """What the provider has seen last of a range: the messages of the view up to the range's end, in the same
        bytes, and how many of them stand in the range. Empty where the view does not show it."""
        place, outline = turn.place, view.outline
        shown_from = outline.chunks[-1].to_seq if outline.chunks else 0
        if turn.policy.summarizer.form == "transcript":
            return [], 0
        if not wanted.folds and any(seq in place.versions for seq in range(wanted.from_seq, wanted.to_seq)):
            return [], 0  # summaries are made of the originals, which the provider has not seen
        if wanted.folds:
            return self._summaries(place, view, wanted), 1
        if wanted.style == "checkpoint":
            seen = _as_last_seen(outline, wanted, _summarizer_room(turn.policy, view.budget))
            messages = close_calls(await self.rendered(place, seen, wanted.to_seq), at_end=True)
            return [bytes(raw) for raw in messages], len(messages) - len(place.instructions)
        if wanted.style == "additive" and wanted.from_seq != shown_from:
            return [], 0
        boundary = boundary_after(outline.chunks[-1]) if outline.chunks else START
        last = outline.last if outline.last.boundary == boundary else LastView()
        seen = Plan(
            status="summarized",
            chunks=view.plan.chunks,
            boundary=boundary,
            prompt_tokens=0,
            fits=True,
            pins=tuple(pin for pin in outline.pins if pin.from_seq < shown_from),
            edits={edit.seq: edit for edit in last.edits},
            quotations=tuple(one for one in last.quotations if one.before_seq < wanted.to_seq),
        )
        raws = await self._raws(place, seen)
        rendered = close_calls(_rendered(place, seen, raws, wanted.to_seq), at_end=True)
        messages = [bytes(raw) for raw in rendered]
        return messages, len(messages) - len(_rendered(place, seen, raws, shown_from))

    def _summaries(self, place: Recollection, view: View, wanted: Range) -> list[bytes]:
        """The beginning of the view that shows the summaries to be folded and nothing after them."""
        shown = view.plan.chunks[: len(wanted.folds)]
        summary = summary_message(shown)
        if summary is None or tuple(chunk.id for chunk in shown) != wanted.folds:
            return []
        return [*(message.raw for message in place.instructions), summary.raw]

    async def log_between(self, conversation: Conversation, from_seq: int, to_seq: int) -> list[LogMessage]:
        """Stored messages `[from_seq, to_seq)`."""
        return await self._store.read(conversation, from_seq, to_seq)

    async def log(self, place: Recollection, start: int) -> list[LogMessage]:
        """The log from a seq to its end: what is stored of it, then what is new."""
        head = place.conversation.head_seq
        stored = [] if start > head else await self._store.read(place.conversation, start, head + 1)
        return [*stored, *(entry for entry in place.new if entry.seq >= start)]

    async def rendered(self, place: Recollection, decided: Plan, next_seq: int) -> list[bytes]:
        """The messages of a plan, in the client's own bytes where it sent them."""
        return _rendered(place, decided, await self._raws(place, decided), next_seq)

    async def _raws(self, place: Recollection, decided: Plan, known: Raws | None = None) -> Raws:
        """JSON text of what a plan shows, by seq.

        Args:
            known: that of a view with the same boundary.
        """
        if place.client_log is not None and place.aligned:
            return place.client_log
        found = dict(known) if isinstance(known, Mapping) else {}
        early = _shown_early(decided) - found.keys()
        stored = await _read_of(self._store, place.conversation, early, decided.boundary_seq)
        fresh = [entry for entry in place.new if entry.seq in early and entry.seq < decided.boundary_seq]
        tail = await self.log(place, decided.boundary_seq) if known is None else []
        found.update((entry.seq, entry.message.raw) for entry in (*stored, *fresh, *tail))
        return found


def runs_provider_tools(request: ChatRequest) -> bool:
    """Whether the provider may run tools by itself (web search, file search) and count their results as prompt."""
    fields = request.fields
    if not PROVIDER_TOOL_FIELDS.isdisjoint(fields):
        return True
    tools = request.value("tools") if "tools" in fields else None
    named = [tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    return any(tool.get("type", "function") not in CLIENT_TOOLS for tool in named)


def _rendered(place: Recollection, decided: Plan, raws: Raws, next_seq: int) -> list[bytes]:
    instructions = [message.raw for message in place.instructions]
    messages = render(
        decided,
        instructions=instructions,
        message_at=raws.__getitem__,
        next_seq=next_seq,
        versions=place.versions,
    )
    return close_calls(messages)


async def read_early(store: Store, conversation: Conversation, decided: Plan) -> list[LogMessage]:
    """The stored messages that a plan shows, or quotes, from before its boundary."""
    return await _read_of(store, conversation, _shown_early(decided), decided.boundary_seq)


async def _read_of(store: Store, conversation: Conversation, seqs: Set[int], before_seq: int) -> list[LogMessage]:
    """Those of some messages that are stored, and what lies between two that are near to each other."""
    end = min(before_seq, conversation.head_seq + 1)
    ranges = list(_stretches(sorted(seq for seq in seqs if seq < end)))
    return await store.read_ranges(conversation, ranges) if ranges else []


def _shown_early(decided: Plan) -> set[int]:
    """Places of the anchor, and of what is pinned or quoted, wherever in the log."""
    early = {seq for pin in decided.pins for seq in range(pin.from_seq, pin.to_seq)}
    early |= {passage.seq for quotation in decided.quotations for passage in quotation.passages}
    return early if decided.anchor_seq is None else early | {decided.anchor_seq}


def _warnings(place: Recollection, outline: Outline) -> tuple[str, ...]:
    left_out = len(place.conversation.marks.get(PINS, ())) - len(outline.pins)
    return (f"{left_out} pinned messages have no room in this window.",) if left_out else ()


def _stretches(seqs: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges `[from, to)` that hold these seqs, in order; what lies a few messages apart is read at once."""
    first = past = -READ_GAP_MESSAGES
    for seq in seqs:
        if seq - past > READ_GAP_MESSAGES:
            if past > first:
                yield first, past
            first = seq
        past = seq + 1
    if past > first:
        yield first, past


def _takes_long(outline: Outline) -> bool:
    covered = outline.chunks[-1].tokens_total if outline.chunks else 0
    return outline.log_tokens - covered > LONG_TAIL_TOKENS or len(outline.tail or ()) > LONG_TAIL_MESSAGES


def _summarizer_room(policy: Policy, budget: Budget) -> int:
    """How much of a conversation its own model can read beside the instruction for a summary: raw tokens."""
    return budget.raw(budget.window - summary_limit(policy, budget.window) - INSTRUCTION_TOKENS)


def _as_last_seen(outline: Outline, wanted: Range, room_tokens: int) -> Plan:
    """How a checkpoint's reader gets the log: as it is, or, where that is too long, in the bytes of the last view, if
    that left nothing out. These are in the provider's cache."""
    last, tail, start = outline.last, outline.tail, (outline.tail_start or START).to_seq
    if last.boundary.to_seq or not last.edits or tail is None or not start < wanted.to_seq <= start + len(tail):
        return UNTOUCHED
    tokens = outline.instructions_tokens + tail[wanted.to_seq - 1 - start].tokens_total
    return UNTOUCHED if tokens <= room_tokens else replace(UNTOUCHED, edits={edit.seq: edit for edit in last.edits})


def _without_cut_attachments(turn: Turn, view: View) -> View:
    """The view with its tokens estimated without the attachments that it no longer shows."""
    shown = turn.calibration.showing(view.plan.boundary_seq)
    if shown is turn.calibration:
        return view
    outline, plan, budget = view.outline, view.plan, view.budget
    instructions_tokens = replace(turn, calibration=shown).instructions_tokens
    prompt_tokens = plan.prompt_tokens - outline.instructions_tokens + instructions_tokens
    fits = plan.fits or budget.calibrated(prompt_tokens) <= budget.hard
    return replace(
        view,
        outline=replace(outline, instructions_tokens=instructions_tokens),
        plan=replace(plan, prompt_tokens=prompt_tokens, fits=fits),
    )


def _doubt(view: View) -> str:
    """What to say of a prompt that does not fit by our estimate and is sent all the same."""
    prompt, budget = view.budget.calibrated(view.plan.prompt_tokens), view.budget
    return (
        f"By the gateway's estimate the instructions and the newest message take {prompt} tokens of the {budget.hard} "
        "there are for them. The provider decides."
    )


def too_long(view: View) -> ContextLengthExceeded:
    """OpenAI's sentence, which clients look for, and the breakdown."""
    decided, outline, budget = view.plan, view.outline, view.budget
    prompt = budget.calibrated(decided.prompt_tokens)
    instructions = budget.calibrated(outline.instructions_tokens)
    error = ContextLengthExceeded(
        f"This model's maximum context length is {budget.window} tokens. However, your messages resulted in {prompt} "
        f"tokens. Please reduce the length of the messages.",
        param="messages",
        hint=(
            f"The instructions and tools take {instructions} tokens and the newest message {prompt - instructions}; "
            f"{budget.hard} are available beside the {budget.reserve + budget.output} kept for the answer."
        ),
    )
    error.context_headers["x-context-tokens"] = tokens_header(prompt, budget)
    return error
