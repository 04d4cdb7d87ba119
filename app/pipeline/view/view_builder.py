"""Builds the view of a turn: outline → plan → messages. The summaries that the plan uses exist already; compaction
makes new ones elsewhere."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from app.context.calibration import LOWEST_SLOPE
from app.context.plan.budget import (
    SUMMARY_INSTRUCTION_TOKENS,
    Budget,
    compute_budget,
    compute_summary_token_limit,
)
from app.context.plan.compaction_price import COMMON_RATES, TokenRates, price_further_compaction
from app.context.plan.log_rounds import build_boundary_after
from app.context.plan.outline import LOG_START, LastView, Outline, Plan, SummarizeMode, SummaryRange
from app.context.plan.planner import plan_view
from app.context.stages.draft import select_pins_before, select_user_text
from app.context.stages.requested_edits import clear_as_requested, drop_requested_edits, may_clear_more
from app.context.view.client_versions import NO_VERSIONS
from app.context.view.client_words import NO_WORDS, ClientWords
from app.context.view.view_rendering import (
    RenderedMessage,
    build_summary_message,
    render_view,
    render_view_with_origins,
)
from app.conversation.context_edits import ClearedContext, ContextEdits
from app.conversation.conversation_types import Conversation, LogMessage, Summary
from app.dialects.client_dialects import CLIENT_DIALECTS
from app.dialects.item_decoding import decode_item
from app.dialects.missing_tool_results import add_missing_tool_results, is_placeholder_result
from app.errors import ContextLengthExceeded
from app.pipeline.turn.last_view_and_calibration import is_cache_cold, read_cached_prompt, read_last_view
from app.pipeline.turn.resolved_request import PINS, ResolvedRequest
from app.pipeline.turn.token_counting import MessageCounter
from app.pipeline.turn.turn import RawLogMessages, Turn, View
from app.pipeline.view.client_words_reader import merge_into_ranges, read_client_words
from app.pipeline.view.pins import decode_pins, select_fitting_pins
from app.pipeline.view.summary_chain_cache import EMPTY_CHAIN, SummaryChain, SummaryChainCache, build_chain
from app.pipeline.view.user_text import UserTextReader, select_valid_user_text
from app.store.contract.conversations import ConversationStore
from app.store.contract.summaries import ConversationAndSummaryStore
from app.upstream.provider_contract import ModelDeployment

UNTOUCHED_PLAN: Final = Plan(status="full", summaries=(), boundary=LOG_START, prompt_tokens=0, fits=True)
MAX_USER_TEXT_READS: Final = 3
LONG_TAIL_MESSAGES: Final = 1_000
LONG_TAIL_TOKENS: Final = 32_768
"""A tail with more messages or tokens than this is planned in a thread. A shorter tail takes a few milliseconds."""


@dataclass(eq=False, kw_only=True)
class ViewBuilder:
    """Plans views and renders their messages. Reads from the store only what a view needs: summaries if there are any,
    and the log after them."""

    store: ConversationAndSummaryStore
    message_counter: MessageCounter
    unix_seconds: Callable[[], float]

    def __post_init__(self) -> None:
        self._summary_chains = SummaryChainCache(self.store)
        self._user_text_reader = UserTextReader(store=self.store, message_counter=self.message_counter)

    def compute_budget(self, turn: Turn, window: int | None = None, slope: float | None = None) -> Budget:
        """Returns the budget of a turn, or of the same turn with another window or slope."""
        budget = compute_budget(
            turn.policy,
            window=window or turn.window.tokens,
            requested_output=turn.request.max_output_tokens,
            calibration_ratio=turn.calibration.slope if slope is None else slope,
        )
        if window is None and turn.window.source == "default":
            # The real window may be larger than the guess, so the requested output is left to the provider.
            budget = replace(budget, requested_output=0)
        max_input, compact_threshold = turn.window.max_input_tokens, turn.request.compaction.threshold_tokens
        if max_input is not None and max_input < budget.limit:
            budget = replace(budget, limit=max_input, compaction_threshold=min(budget.compaction_threshold, max_input))
        return budget if compact_threshold is None else budget.replace_threshold(compact_threshold)

    async def build_view(
        self,
        turn: Turn,
        budget: Budget,
        *,
        summarize: SummarizeMode,
        new_summaries: Sequence[Summary] = (),
    ) -> View:
        """Plans a view and renders its messages.

        Args:
            new_summaries: summaries made for this request, whether or not the store could keep them.

        Raises:
            ContextLengthExceeded: the instructions and the newest message alone do not fit, even by the lowest possible
                count.
            StoreUnavailable: the log or its summaries are needed and cannot be read.
        """
        resolved_request = turn.resolved_request
        view = await self._plan_or_refuse(turn, budget, summarize, new_summaries)
        # Nothing to render: the client's own bytes are sent, which keeps the provider's prompt cache valid.
        if (
            resolved_request.client_messages is not None
            and view.plan.shows_log_unchanged
            and not resolved_request.has_missing_results
            and resolved_request.capsule is None  # its own bytes are nothing to a provider
        ):
            return view
        view = await self.render_view(resolved_request, view, view.plan)
        added_tokens = self._count_missing_result_tokens(resolved_request, view)
        # The stand-ins for missing tool results are known only after rendering. If the view does not fit with them, it
        # is planned again with a limit that is lower by their tokens.
        prompt_tokens = budget.calibrate_tokens(view.plan.prompt_tokens + added_tokens)
        if added_tokens and view.plan.fits and prompt_tokens > budget.limit:
            limit = budget.limit - budget.calibrate_tokens(added_tokens)
            reduced_budget = replace(budget, limit=limit, compaction_threshold=min(budget.compaction_threshold, limit))
            view = await self._plan_or_refuse(turn, reduced_budget, summarize, new_summaries)
            view = await self.render_view(resolved_request, view, view.plan)
            added_tokens = self._count_missing_result_tokens(resolved_request, view)
        if not added_tokens:
            return view
        plan = replace(view.plan, prompt_tokens=view.plan.prompt_tokens + added_tokens)
        return replace(view, plan=plan, budget=budget)

    async def _plan_or_refuse(
        self, turn: Turn, budget: Budget, summarize: SummarizeMode, new_summaries: Sequence[Summary]
    ) -> View:
        """Plans a view. Arguments and exceptions as of `build_view`."""
        view = await self.plan_view(turn, budget, summarize=summarize, new_summaries=new_summaries)
        if turn.calibration.attachments:
            view = _discount_cut_attachments(turn, view)
        if view.plan.fits:
            return view
        # Our count may be too high. The request is refused only if it cannot fit by the lowest count; otherwise the
        # provider decides.
        if LOWEST_SLOPE * turn.build_counted_prompt(view).estimated_tokens > budget.window:
            raise make_context_length_error(view)
        return replace(view, warnings=(*view.warnings, _render_overflow_warning(view)))

    def _count_missing_result_tokens(self, resolved_request: ResolvedRequest, view: View) -> int:
        """Returns the tokens of the messages that stand for missing tool results."""
        counter = self.message_counter.find_token_counter(resolved_request.conversation.token_counter_name)
        return sum(counter.count_message(decode_item(raw)) for raw in view.messages or () if is_placeholder_result(raw))

    async def render_view(self, resolved_request: ResolvedRequest, view: View, plan: Plan) -> View:
        """Renders the messages of a view by a plan that may have more quotations than the view's own. Messages that the
        view has read already are not read again.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        raw_log_messages = await self._read_raw_messages(resolved_request, plan, view.raw_log_messages)
        messages = _render_messages(resolved_request, plan, raw_log_messages, view.outline.next_seq)
        return replace(view, plan=plan, messages=messages, raw_log_messages=raw_log_messages)

    async def plan_view(
        self, turn: Turn, budget: Budget, *, summarize: SummarizeMode, new_summaries: Sequence[Summary] = ()
    ) -> View:
        """Plans a view without rendering it, whether or not it fits. Reads only what the decision needs.

        Raises:
            StoreUnavailable: the log or its summaries are needed and cannot be read.
        """
        resolved_request, policy = turn.resolved_request, turn.policy
        # A summary that is due soon is shown now, if the whole prompt must be paid for anyway.
        waits = policy.compaction.blocking or turn.request.compaction.threshold_tokens is not None
        is_cold = summarize == "auto" and not waits and self._is_cache_cold(turn)
        if is_cold:
            line = min(budget.compaction_threshold, budget.precompaction_threshold)
            budget = budget.replace_threshold(line)
        log_estimate = budget.calibrate_tokens(turn.planned_instructions_tokens + resolved_request.log_tokens)
        is_over = log_estimate > budget.compaction_threshold
        # Another replica may have stored summaries that `chunk_count` does not count yet. They are looked for only if
        # the view needs them.
        may_have_summaries = resolved_request.conversation.chunk_count or (
            (is_over or summarize in {"now", "ahead"}) and resolved_request.storage.is_stored
        )
        words = await read_client_words(self.store, resolved_request)
        if not resolved_request.is_named and 0 in words.omitted_seqs:
            # The client keeps a window, and no summary of what the window has passed may be shown to it. So each turn
            # would need a new one: the window is sent as it is while it fits.
            budget = budget.replace_threshold(budget.limit)
        read_chain = functools.partial(
            self._summary_chains.read_chain,
            resolved_request,
            is_replacing=policy.has_replacing_summaries,
            new_summaries=new_summaries,
            words=words,
        )
        chain = EMPTY_CHAIN
        if may_have_summaries and policy.may_summarize:
            chain = await read_chain()
        elif new_summaries:
            chain = build_chain(new_summaries=new_summaries, is_replacing=policy.has_replacing_summaries, words=words)
        outline = self._build_outline(turn, budget, chain, words)
        if outline.summaries and not (waits or is_cold):
            rates = _find_token_rates(turn.target.deployments[0])
            budget = price_further_compaction(outline, budget, policy, rates)
        if resolved_request.creates_conversation and not is_over and policy.is_additive_without_stages:
            # The first turn of a branch has no prompt cache to keep: its view need not begin where its parent's did.
            outline = replace(outline, last_view=LastView(asked_seq=outline.last_view.asked_seq))
        cleared = None
        if turn.context_edits is not None:
            outline, cleared = await self._clear_as_requested(turn, turn.context_edits, outline, budget)
        elif outline.last_view.cleared_seqs:
            outline = drop_requested_edits(outline)
        make_plan = functools.partial(
            self._plan_with_user_text, turn, budget=budget, summarize=summarize, words=words, is_over=is_over
        )
        outline, plan, raised_budget = await make_plan(outline=outline)
        # The chain came from a cache. If the plan uses an outdated part of it, the chain is read again and the view is
        # planned again.
        if plan.summaries and not chain.has_verified_all(plan.summaries):
            known = outline
            outline = self._build_outline(turn, budget, await read_chain(bypass_cache=True), words)
            outline = replace(outline, user_texts=known.user_texts, last_view=known.last_view)
            outline, plan, raised_budget = await make_plan(outline=outline)
        warnings = _build_pin_warnings(resolved_request, outline) if PINS in resolved_request.conversation.marks else ()
        told = {} if cleared is None else CLIENT_DIALECTS[turn.request.protocol].render_cleared_context(cleared)
        return View(outline, plan, raised_budget, None, warnings=warnings, words=words, protocol_fields=told)

    async def _plan_with_user_text(
        self,
        turn: Turn,
        outline: Outline,
        budget: Budget,
        summarize: SummarizeMode,
        words: ClientWords,
        *,
        is_over: bool,
    ) -> tuple[Outline, Plan, Budget]:
        """Makes the plan, and makes it again with the user text of what it hides, as long as that moves the boundary
        on. Arguments, result and exceptions as of `_make_plan`.

        Returns:
            Also the budget, whose threshold is higher by the user text, unless the client has set the threshold.
        """
        reads = MAX_USER_TEXT_READS if turn.policy.user_text_ratio else 0
        while True:
            known = outline.user_texts[-1]
            raised = budget
            if known.lines and turn.request.compaction.threshold_tokens is None:
                user_text_tokens = budget.calibrate_tokens(known.count_tokens(known.lines))
                raised = replace(budget, user_text_tokens=user_text_tokens)
            outline, plan = await self._make_plan(turn, outline, raised, summarize, is_over=is_over)
            if plan.boundary_seq <= known.before_seq or not reads:
                return outline, plan, raised
            reads -= 1
            known = await self._user_text_reader.read_through(turn, budget, words, known, plan)
            outline = replace(outline, user_texts=(*outline.user_texts, known))

    async def _clear_as_requested(
        self, turn: Turn, edits: ContextEdits, outline: Outline, budget: Budget
    ) -> tuple[Outline, ClearedContext]:
        """Clears what the client asks to clear.

        Returns:
            The outline, with the edits as those of its last view; and what is cleared.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        resolved, boundary = turn.resolved_request, outline.last_view.boundary
        loaded = outline
        if may_clear_more(outline, edits, budget):
            tail = resolved.shown.client_versions.apply_to_log_messages(
                await self.read_log_tail(resolved, boundary.to_seq)
            )
            loaded = replace(outline, tail=tail, tail_start=boundary)
        counter = self.message_counter.find_token_counter(resolved.conversation.token_counter_name)
        view, cleared = clear_as_requested(loaded, edits, budget=budget, policy=turn.policy, counter=counter)
        return replace(outline, last_view=view), cleared

    async def count_cleared_tokens(self, turn: Turn) -> int | None:
        """Returns the calibrated tokens that the client asks to clear; None if it asks for nothing.

        Raises:
            StoreUnavailable: the log cannot be read.
        """
        if turn.context_edits is None:
            return None
        budget = self.compute_budget(turn)
        outline = self._build_outline(turn, budget, EMPTY_CHAIN, NO_WORDS)
        _, cleared = await self._clear_as_requested(turn, turn.context_edits, outline, budget)
        return cleared.result_tokens

    def _is_cache_cold(self, turn: Turn) -> bool:
        before = read_cached_prompt(turn.resolved_request.conversation.state)
        return before is not None and is_cache_cold(before, turn.target.deployments[0].cache, self.unix_seconds())

    def _build_outline(self, turn: Turn, budget: Budget, chain: SummaryChain, words: ClientWords) -> Outline:
        """Builds what the planner needs to know of a log.

        Args:
            words: what the client changed or left out.
        """
        resolved_request, conversation = turn.resolved_request, turn.resolved_request.conversation
        versions, marks = resolved_request.shown.client_versions, conversation.marks
        summaries, folds, new_messages = chain.summaries, chain.folds, resolved_request.new_messages
        last_view = read_last_view(conversation.state, turn.policy, budget.window)
        pins = decode_pins(marks) if PINS in marks else ()
        if versions is not NO_VERSIONS:
            new_version_seqs = [version.seq for version in resolved_request.shown.new_versions]
            last_view = versions.recount_view_for_versions(last_view, new_version_seqs)
            last_view = words.drop_quotations(last_view, new_version_seqs)
            pins = words.add_volatile_pins(tuple(map(versions.recount_pin_for_versions, pins)))
            summaries = tuple(map(versions.recount_summary_for_versions, summaries))
            folds = tuple(map(versions.recount_summary_for_versions, folds))
            new_messages = tuple(versions.apply_to_log_messages(new_messages))
        user_text = last_view.user_text
        if user_text.before_seq:
            user_text = select_valid_user_text(user_text, resolved_request, words)
        # If nothing is stored, the request's own messages are the whole tail and no read is needed.
        is_tail_known = conversation.head_seq < 0 and not summaries and not last_view.boundary.to_seq
        return Outline(
            instructions_tokens=turn.planned_instructions_tokens,
            log_tokens=resolved_request.log_tokens,
            next_seq=resolved_request.next_seq,
            summaries=summaries,
            folds=folds,
            tail=new_messages if is_tail_known else None,
            new_from_seq=conversation.head_seq + 1,
            pins=select_fitting_pins(pins, turn.policy, budget) if pins else (),
            last_view=last_view,
            omitted_seqs=words.omitted_seqs,
            user_texts=(user_text,),
        )

    async def _make_plan(
        self, turn: Turn, outline: Outline, budget: Budget, summarize: SummarizeMode, *, is_over: bool
    ) -> tuple[Outline, Plan]:
        """Makes the plan, in a thread if there is much to cut or long text to shorten.

        Args:
            is_over: whether the whole log is above the compaction threshold.

        Returns:
            The outline, with the tail of the log if the planner asked for it, and the plan.
        """
        resolved_request = turn.resolved_request
        make_plan = functools.partial(
            plan_view,
            budget=budget,
            policy=turn.policy,
            counter=self.message_counter.find_token_counter(resolved_request.conversation.token_counter_name),
            summarizer_input_tokens=turn.summarizer_input_tokens,
            summarize=summarize,
            through_seq=turn.request.compaction.through_seq,
        )
        is_long = is_over and outline.tail is not None and _is_long_tail(outline)
        plan = await asyncio.to_thread(make_plan, outline) if is_long else make_plan(outline)
        # The first plan works with stored totals only. The tail is read only if the planner must look at single
        # messages.
        if (tail_start := plan.needs_tail) is not None:
            tail = await self.read_log_tail(resolved_request, tail_start.to_seq)
            shown_tail = resolved_request.shown.client_versions.apply_to_log_messages(tail)
            outline = replace(outline, tail=shown_tail, tail_start=tail_start)
            is_long = is_over and _is_long_tail(outline)
            plan = await asyncio.to_thread(make_plan, outline) if is_long else make_plan(outline)
        return outline, plan

    async def advance_past_answer(
        self, resolved_request: ResolvedRequest, conversation: Conversation
    ) -> ResolvedRequest:
        """Returns the request as the next one will find the conversation: the answer is stored, and nothing is new.

        Raises:
            StoreUnavailable: the answer cannot be read.
        """
        client_messages = None
        head_seq = conversation.head_seq
        if (
            resolved_request.is_aligned_by_index
            and resolved_request.client_messages is not None
            and len(resolved_request.client_messages) == head_seq
        ):
            (answer,) = await self.store.read_log(conversation, head_seq, head_seq + 1)
            client_messages = [*resolved_request.client_messages, answer.message.raw]
        return replace(
            resolved_request,
            conversation=conversation,
            new_messages=(),
            client_messages=client_messages,
            shown=replace(resolved_request.shown, log_seqs=None, new_versions=()),
            storage=replace(resolved_request.storage, lease=None),
        )

    async def build_cached_prefix(self, turn: Turn, view: View, summary_range: SummaryRange) -> tuple[list[bytes], int]:
        """Returns the messages that the provider has read last, up to the end of a summary range, in the same bytes,
        and how many of them are in the range. A summarizer call that begins with them hits the provider's cache. The
        list is empty if the view does not show the range, or may show words that the client leaves out."""
        resolved_request, outline = turn.resolved_request, view.outline
        shown_from = outline.summaries[-1].to_seq if outline.summaries else 0
        if turn.policy.summarizer.form == "transcript" or view.words.leaves_out_before(summary_range.from_seq):
            return [], 0
        if not summary_range.folds and any(
            seq in resolved_request.shown.client_versions for seq in range(summary_range.from_seq, summary_range.to_seq)
        ):
            # A summary reads masked results as they were, and the provider has seen the client's versions.
            return [], 0
        if summary_range.folds:
            return self._build_fold_prefix(resolved_request, view, summary_range), 1
        if summary_range.style == "checkpoint":
            window, limit = view.budget.window, compute_summary_token_limit(turn.policy, view.budget.window)
            room_tokens = view.budget.compute_raw_tokens(window - limit - SUMMARY_INSTRUCTION_TOKENS)
            cached_plan = _plan_checkpoint_prefix(outline, summary_range, room_tokens)
            raw_log_messages = await self._read_raw_messages(resolved_request, cached_plan)
            messages = add_missing_tool_results(
                _render_messages(resolved_request, cached_plan, raw_log_messages, summary_range.to_seq), at_end=True
            )
            return [bytes(raw) for raw in messages], len(messages) - len(resolved_request.instructions)
        # An additive range that does not begin where the shown summaries end is not at the beginning of the verbatim
        # messages.
        if summary_range.style == "additive" and summary_range.from_seq != shown_from:
            return [], 0
        boundary = build_boundary_after(outline.summaries[-1]) if outline.summaries else LOG_START
        last_view = outline.last_view if outline.last_view.boundary == boundary else LastView()
        cached_plan = Plan(
            status="summarized",
            summaries=view.plan.summaries,
            boundary=boundary,
            prompt_tokens=0,
            fits=True,
            pins=select_pins_before(boundary, outline.pins),
            user_text=select_user_text(boundary, outline),
            edits={edit.seq: edit for edit in last_view.edits},
            quotations=tuple(one for one in last_view.quotations if one.before_seq < summary_range.to_seq),
        )
        raw_log_messages = await self._read_raw_messages(resolved_request, cached_plan)
        rendered = add_missing_tool_results(
            _render_messages(resolved_request, cached_plan, raw_log_messages, summary_range.to_seq), at_end=True
        )
        messages = [bytes(raw) for raw in rendered]
        return messages, len(messages) - len(
            _render_messages(resolved_request, cached_plan, raw_log_messages, shown_from)
        )

    def _build_fold_prefix(
        self, resolved_request: ResolvedRequest, view: View, summary_range: SummaryRange
    ) -> list[bytes]:
        """Returns the beginning of the view through the message with the summaries to fold."""
        shown_summaries = view.plan.summaries[: len(summary_range.folds)]
        summary_message = build_summary_message(shown_summaries)
        if summary_message is None or tuple(summary.id for summary in shown_summaries) != summary_range.folds:
            return []
        return [*(message.raw for message in resolved_request.instructions), summary_message.raw]

    async def read_log_tail(self, resolved_request: ResolvedRequest, from_seq: int) -> list[LogMessage]:
        """Returns the log from a seq to its end: the stored messages, then the new ones."""
        head = resolved_request.conversation.head_seq
        stored = [] if from_seq > head else await self.store.read_log(resolved_request.conversation, from_seq, head + 1)
        return [*stored, *(entry for entry in resolved_request.new_messages if entry.seq >= from_seq)]

    async def render_plan_with_origins(
        self, resolved_request: ResolvedRequest, plan: Plan, next_seq: int
    ) -> list[RenderedMessage]:
        """Returns the messages of a plan, in the client's own bytes if the client sent them, without instructions and
        stand-ins for results; each with what it stands for."""
        raw_messages = await self._read_raw_messages(resolved_request, plan)
        versions = resolved_request.shown.client_versions
        return list(render_view_with_origins(plan, raw_messages.__getitem__, next_seq, versions))

    async def _read_raw_messages(
        self, resolved_request: ResolvedRequest, plan: Plan, known_messages: RawLogMessages | None = None
    ) -> RawLogMessages:
        """Returns the JSON text of the log messages that a plan shows, by seq.

        Args:
            known_messages: the messages of a view with the same boundary.
        """
        if resolved_request.client_messages is not None and resolved_request.is_aligned_by_index:
            return resolved_request.client_messages
        raw_messages = dict(known_messages) if isinstance(known_messages, Mapping) else {}
        conversation = resolved_request.conversation
        tail_seq = plan.boundary_seq if known_messages is None else resolved_request.next_seq
        early_seqs = {seq for seq in find_early_seqs(plan) - raw_messages.keys() if seq < plan.boundary_seq}
        ranges = [*merge_into_ranges(sorted(seq for seq in early_seqs if seq <= conversation.head_seq))]
        if tail_seq <= conversation.head_seq:
            ranges.append((tail_seq, conversation.head_seq + 1))
        stored = await self.store.read_log_ranges(conversation, ranges) if ranges else []
        new = (entry for entry in resolved_request.new_messages if entry.seq in early_seqs or entry.seq >= tail_seq)
        raw_messages.update((entry.seq, entry.message.raw) for entry in (*stored, *new))
        return raw_messages


def _find_token_rates(deployment: ModelDeployment) -> TokenRates:
    """Returns the price of a deployment's tokens beside that of new ones; common rates if it is not known."""
    price = deployment.price
    if not (price.input and price.output and price.cached_input):
        return COMMON_RATES
    written = price.input if price.cache_write is None else price.cache_write
    return TokenRates(price.cached_input / price.input, written / price.input, price.output / price.input)


def _render_messages(
    resolved_request: ResolvedRequest, plan: Plan, raw_log_messages: RawLogMessages, next_seq: int
) -> list[bytes]:
    instructions = [message.raw for message in resolved_request.instructions]
    messages = render_view(
        plan,
        instructions=instructions,
        find_raw_message=raw_log_messages.__getitem__,
        next_seq=next_seq,
        versions=resolved_request.shown.client_versions,
    )
    return add_missing_tool_results(messages)


async def read_shown_before_boundary(
    store: ConversationStore, conversation: Conversation, plan: Plan
) -> list[LogMessage]:
    """Returns the stored messages before a plan's boundary that the plan shows or quotes, the two after each pin, and
    messages between those that are near to each other."""
    seqs = find_early_seqs(plan) | {seq for pin in plan.pins for seq in (pin.to_seq, pin.to_seq + 1)}
    end = min(plan.boundary_seq, conversation.head_seq + 1)
    ranges = list(merge_into_ranges(sorted(seq for seq in seqs if seq < end)))
    return await store.read_log_ranges(conversation, ranges) if ranges else []


def find_early_seqs(plan: Plan) -> set[int]:
    """Returns the seqs of the messages from before the boundary that a view shows or repeats: anchor, pins, quotations
    and user text."""
    seqs = {seq for pin in plan.pins for seq in range(pin.from_seq, pin.to_seq)}
    seqs.update(one.seq for one in plan.user_text)
    seqs |= {passage.seq for quotation in plan.quotations for passage in quotation.passages}
    return seqs if plan.repeated_message_seq is None else seqs | {plan.repeated_message_seq}


def _build_pin_warnings(resolved_request: ResolvedRequest, outline: Outline) -> tuple[str, ...]:
    shown_seqs = {pin.from_seq for pin in outline.pins}
    pins = decode_pins(resolved_request.conversation.marks)
    omitted_pin_count = sum(pin.from_seq not in shown_seqs for pin in pins)
    return (
        (f"{omitted_pin_count} pinned messages do not fit into this window and are left out.",)
        if omitted_pin_count
        else ()
    )


def _is_long_tail(outline: Outline) -> bool:
    covered_tokens = outline.summaries[-1].tokens_total if outline.summaries else 0
    return outline.log_tokens - covered_tokens > LONG_TAIL_TOKENS or len(outline.tail or ()) > LONG_TAIL_MESSAGES


def _plan_checkpoint_prefix(outline: Outline, summary_range: SummaryRange, room_tokens: int) -> Plan:
    """Returns the plan by which a checkpoint's summarizer reads the log: unchanged or, if that is too long, with the
    edits of the last view, if that view left nothing out. The edited bytes are in the provider's cache.

    Args:
        room_tokens: how many raw tokens of the conversation its own model can read beside the summary's instruction.
    """
    last_view, tail, start = outline.last_view, outline.tail, (outline.tail_start or LOG_START).to_seq
    if (
        last_view.boundary.to_seq
        or not last_view.edits
        or tail is None
        or not start < summary_range.to_seq <= start + len(tail)
    ):
        return UNTOUCHED_PLAN
    tokens = outline.instructions_tokens + tail[summary_range.to_seq - 1 - start].tokens_total
    edits = {} if tokens <= room_tokens else {edit.seq: edit for edit in last_view.edits}
    return replace(UNTOUCHED_PLAN, edits=edits)


def _discount_cut_attachments(turn: Turn, view: View) -> View:
    """Returns the view with its tokens estimated without the attachments that it no longer shows."""
    reduced_calibration = turn.calibration.drop_attachments_before(view.plan.boundary_seq)
    if reduced_calibration is turn.calibration:
        return view
    outline, plan, budget = view.outline, view.plan, view.budget
    instructions_tokens = replace(turn, calibration=reduced_calibration).planned_instructions_tokens
    prompt_tokens = plan.prompt_tokens - outline.instructions_tokens + instructions_tokens
    fits = plan.fits or budget.calibrate_tokens(prompt_tokens) <= budget.limit
    return replace(
        view,
        outline=replace(outline, instructions_tokens=instructions_tokens),
        plan=replace(plan, prompt_tokens=prompt_tokens, fits=fits),
    )


def _render_overflow_warning(view: View) -> str:
    """Returns the warning for a prompt that does not fit by our estimate and is sent anyway."""
    prompt_tokens, budget = view.budget.calibrate_tokens(view.plan.prompt_tokens), view.budget
    return (
        f"By the gateway's estimate the instructions and the newest message take {prompt_tokens} "
        f"tokens of the {budget.limit} "
        "that are available. The provider decides."
    )


def make_context_length_error(view: View) -> ContextLengthExceeded:
    """Builds the error with OpenAI's sentence, which clients search for, and a hint with the token counts."""
    plan, outline, budget = view.plan, view.outline, view.budget
    prompt_tokens = budget.calibrate_tokens(plan.prompt_tokens)
    instructions_tokens = budget.calibrate_tokens(outline.instructions_tokens)
    error = ContextLengthExceeded(
        f"This model's maximum context length is {budget.window} tokens. However, your messages "
        f"resulted in {prompt_tokens} "
        f"tokens. Please reduce the length of the messages.",
        param="messages",
        hint=(
            f"The instructions and tools take {instructions_tokens} tokens and the newest message "
            f"{prompt_tokens - instructions_tokens}; "
            f"{budget.limit} are available; {budget.reserve_tokens + budget.output} are reserved for the answer."
        ),
    )
    error.context_headers["x-context-tokens"] = budget.render_tokens(prompt_tokens)
    return error
