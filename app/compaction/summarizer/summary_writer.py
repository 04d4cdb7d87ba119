"""Writes one summary by one model: in one call, or in parts that are merged. Asks for an improvement at most once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.compaction.acceptance.empty_summaries import says_nothing
from app.compaction.acceptance.summary_acceptance import (
    accept_summary,
    append_missing_values,
    choose_values_to_request,
    read_answer_text,
    strip_to_summary,
)
from app.compaction.acceptance.value_finding import ValueMention
from app.compaction.acceptance.values_appendix import collect_values, compute_kept_share
from app.compaction.summarizer.prompts import (
    FOLD_DESCRIPTION,
    LOG_PARTS_NOTE,
    PARTS_NOTE,
    PromptVariant,
    build_improvement_prompt,
    build_instruction,
    build_repetition_prompt,
    describe_range,
)
from app.compaction.summarizer.range_parts import MAX_PARALLEL_CALLS, compute_part_limit, split_into_parts
from app.compaction.summarizer.summarizer_call import (
    FIRST_ATTEMPT,
    SummarizerAnswer,
    SummarizerAttempt,
    SummarizerClient,
)
from app.compaction.summarizer.summarizer_request_body import (
    CachedViewPrompt,
    FollowUpPrompt,
    SummaryPrompt,
    TranscriptPrompt,
)
from app.compaction.summarizer.summary_request import EmptySummary, NoUsableSummary, SummaryRequest
from app.compaction.summarizer.transcript import TranscriptEntry, build_transcript_entries
from app.context.plan.log_rounds import split_into_rounds
from app.context.view.view_rendering import ViewTokenCounter
from app.conversation.conversation_types import LogMessage, Summary
from app.dialects.summarizer_fields import build_cached_prefix_fields, read_parameter_names
from app.errors import GatewayError, UpstreamRefused
from app.upstream.protocols.overflow_detection import detect_overflow

THINKING_FACTOR = 4
"""A model that used its whole output limit for reasoning gets this many times as much, once."""
MAX_HALVINGS = 2
"""How often the input is halved for a model whose window is smaller than configured."""
NOTHING_SAID = "[no summary of this part]"
TRANSCRIPT_FILL_SHARE = 0.98
"""The share of a transcript's limit that is planned by the sizes of its entries; the rest is for estimation errors."""


@dataclass(slots=True)
class SummaryWriter:
    """Makes the calls for one summary. `counter` counts in the encoding of the conversation."""

    request: SummaryRequest
    client: SummarizerClient
    counter: ViewTokenCounter
    may_repeat: bool = True
    """Whether the model may be asked once more after an answer that says nothing."""
    model: str = ""
    """The model that answered last, by the provider's name."""
    usages: list[Mapping[str, Any]] = field(default_factory=list)

    async def write_from_cached_view(self) -> str:
        """Writes a summary from the last view with the instruction as a further message.

        The provider has the view in its cache, so the prompt costs little.

        Raises:
            NoUsableSummary, UpstreamRefused, UpstreamUnavailable: as `SummaryGenerator.generate_summary`.
        """
        request = self.request
        prompt = CachedViewPrompt(
            instruction=self._build_instruction(request.prompt_variant),
            range_description=self._describe_range(),
            view_prefix=request.source.view_prefix,
            limit_tokens=request.limit_tokens,
            fields=build_cached_prefix_fields(request.job.fields),
        )
        answer = await self._call_with_reasoning_room(prompt, FIRST_ATTEMPT)
        entries = await asyncio.to_thread(build_transcript_entries, request.messages, request.earlier_summaries)
        if await _is_empty(answer, entries):
            raise EmptySummary
        return await self._complete_summary(prompt, answer)

    def _describe_range(self) -> str:
        """Describes which messages the instruction is about."""
        request = self.request
        if request.source.folded_summaries:
            return FOLD_DESCRIPTION.format(count=len(request.source.folded_summaries))
        first = request.messages[0].message
        count = request.source.prefix_message_count or len(request.messages)
        return describe_range(request.source.style, count=count, speaker=first.role, opening_text=first.transcript_text)

    async def write_from_transcript(self) -> str:
        """Writes a summary from a fenced transcript, in parts if the summarizer cannot read it at once.

        Raises:
            NoUsableSummary, UpstreamRefused, UpstreamUnavailable: as `SummaryGenerator.generate_summary`.
        """
        prompt = await self._build_transcript_prompt()
        return await self._complete_summary(prompt, await self._summarize_transcript(prompt))

    async def _build_transcript_prompt(self) -> TranscriptPrompt:
        """Builds the prompt from the material, or from summaries of its parts."""
        request = self.request
        messages, earlier_summaries = request.messages, request.earlier_summaries
        instruction_text = self._build_instruction(request.prompt_variant)
        if request.log_parts is not None:
            call_budget = await self.client.compute_first_call_budget(request.limit_tokens)
            material_tokens = TranscriptPrompt(instruction_text, (), request.limit_tokens).compute_material_limit(
                call_budget
            )
            earlier_summaries, messages = await request.log_parts.make_missing_part_summaries(
                int(material_tokens * TRANSCRIPT_FILL_SHARE), self._summarize_log_part
            )
            instruction_text = f"{instruction_text}\n\n{LOG_PARTS_NOTE}" if earlier_summaries else instruction_text
        return await self._build_fitting_prompt(
            instruction_text,
            await asyncio.to_thread(build_transcript_entries, messages, earlier_summaries),
            request.limit_tokens,
        )

    async def _build_fitting_prompt(
        self, instruction_text: str, entries: Sequence[TranscriptEntry], limit_tokens: int
    ) -> TranscriptPrompt:
        """Builds a prompt for entries, or for summaries of their parts if the summarizer cannot read them at once."""
        whole_prompt = TranscriptPrompt(instruction_text, entries, limit_tokens)
        call_budget = await self.client.compute_first_call_budget(limit_tokens)
        material_tokens = whole_prompt.compute_material_limit(call_budget)
        parts = await asyncio.to_thread(
            split_into_parts, whole_prompt.entries, material_tokens, call_budget.counter.count
        )
        if len(parts) == 1:
            return whole_prompt
        summaries = await self._summarize_parts(parts, compute_part_limit(len(parts), material_tokens, limit_tokens))
        merge_instruction = f"{instruction_text}\n\n{PARTS_NOTE}"
        return TranscriptPrompt(
            merge_instruction,
            [TranscriptEntry(number, "summary", part_summary) for number, part_summary in enumerate(summaries, 1)],
            limit_tokens,
        )

    async def _summarize_log_part(
        self, messages: Sequence[LogMessage], merged_summaries: Sequence[Summary], limit_tokens: int
    ) -> tuple[str, str]:
        """Writes the summary of a part of the log, or merges part summaries.

        Returns:
            The text, and the model that wrote it.
        """
        instruction_text = build_instruction(
            self.request.job.policy.summarizer, PromptVariant(is_fold=bool(merged_summaries))
        )
        entries = await asyncio.to_thread(build_transcript_entries, messages, merged_summaries)
        # `make_missing_part_summaries` cuts between rounds only, so a single round may be too long for the summarizer
        # and is split
        # further.
        is_one_round = len(split_into_rounds(messages)) == 1
        prompt = TranscriptPrompt(instruction_text, entries, limit_tokens)
        answer = await self._summarize_transcript(
            await self._build_fitting_prompt(instruction_text, entries, limit_tokens) if is_one_round else prompt
        )
        replaced_tokens = sum(item.tokens for item in messages) + sum(one.tokens for one in merged_summaries)
        return await asyncio.to_thread(
            append_missing_values,
            read_answer_text(answer.completion),
            collect_values(messages, merged_summaries, read_parameter_names(self.request.job.fields)),
            limit_tokens=limit_tokens,
            allowed_tokens=replaced_tokens,
            count_tokens=self.counter.count,
        ), answer.model

    async def _summarize_parts(self, parts: Sequence[Sequence[TranscriptEntry]], limit_tokens: int) -> list[str]:
        """Summarizes each part, a few at a time. Raises the first failure after all parts have ended."""
        slots = asyncio.Semaphore(MAX_PARALLEL_CALLS)
        instruction_text = self._build_instruction(PromptVariant(is_fold=self.request.prompt_variant.is_fold))

        async def one(part: Sequence[TranscriptEntry]) -> str:
            async with slots:
                try:
                    answer = await self._summarize_transcript(TranscriptPrompt(instruction_text, part, limit_tokens))
                # A part may be noise of which nothing can be said. The summary of all parts is judged, too.
                except EmptySummary:
                    return NOTHING_SAID
                return read_answer_text(answer.completion)

        # All are awaited even if one fails: a task that runs on would call the model for a summary that nobody takes.
        results = await asyncio.gather(*map(one, parts), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, str)]

    async def _summarize_transcript(self, prompt: TranscriptPrompt) -> SummarizerAnswer:
        """Calls the model with a transcript; once more if its answer says nothing about the transcript.

        Raises:
            EmptySummary: the second answer says nothing, either.
        """
        answer = await self._call_with_overflow_halving(prompt)
        if not await _is_empty(answer, prompt.entries):
            return answer
        if not self.may_repeat:
            raise EmptySummary
        request_text = build_repetition_prompt(limit_tokens=prompt.limit_tokens)
        answer = await self._call_model(FollowUpPrompt(prompt, answer.completion.text, request_text), FIRST_ATTEMPT)
        if await _is_empty(answer, prompt.entries):
            raise EmptySummary
        return answer

    async def _call_with_overflow_halving(self, prompt: TranscriptPrompt) -> SummarizerAnswer:
        """Calls the model with a transcript; after an overflow again with half of it, then with a quarter."""
        attempt = FIRST_ATTEMPT
        for _ in range(MAX_HALVINGS):
            try:
                return await self._call_with_reasoning_room(prompt, attempt)
            except UpstreamRefused as refusal:
                if detect_overflow(refusal.status, refusal.raw_body) is None:
                    raise
            attempt = await self._halve_input(prompt, attempt)
        return await self._call_with_reasoning_room(prompt, attempt)

    async def _halve_input(self, prompt: TranscriptPrompt, attempt: SummarizerAttempt) -> SummarizerAttempt:
        """Returns the attempt with half of the input. The input may have been smaller than the room for it."""
        call_budget = await self.client.compute_first_call_budget(prompt.limit_tokens)
        tokens = await asyncio.to_thread(lambda: sum(call_budget.counter.count(entry.text) for entry in prompt.entries))
        share = min(attempt.input_share, tokens / prompt.compute_material_limit(call_budget))
        return replace(attempt, input_share=share / 2)

    async def _call_with_reasoning_room(self, prompt: SummaryPrompt, attempt: SummarizerAttempt) -> SummarizerAnswer:
        """Calls the model; a second time with a higher output limit if reasoning used up the first."""
        answer = await self._call_model(prompt, attempt)
        if answer.completion.is_cut_off and not strip_to_summary(answer.completion.text):
            return await self._call_model(prompt, replace(attempt, output_factor=THINKING_FACTOR))
        return answer

    async def _call_model(self, prompt: SummaryPrompt, attempt: SummarizerAttempt) -> SummarizerAnswer:
        answer = await self.client.call_model(prompt, attempt)
        self.model = answer.model
        if answer.usage is not None:
            self.usages.append(answer.usage)
        return answer

    async def _complete_summary(self, prompt: SummaryPrompt, answer: SummarizerAnswer) -> str:
        """Reads the summary of an answer and appends the values that it leaves out."""
        request, count_tokens = self.request, self.counter.count
        text = accept_summary(answer.completion, request, self.counter)
        values = await asyncio.to_thread(
            collect_values, request.messages, request.earlier_summaries, read_parameter_names(request.job.fields)
        )
        lacking = await asyncio.to_thread(choose_values_to_request, text, values, request.limit_tokens, count_tokens)
        if lacking:
            request_text = build_improvement_prompt(lacking, limit_tokens=request.limit_tokens)
            text = await self._improve_summary(FollowUpPrompt(prompt, text, request_text), text, values)
        return await asyncio.to_thread(
            append_missing_values,
            text,
            values,
            limit_tokens=request.limit_tokens,
            allowed_tokens=request.max_tokens_with_gain,
            count_tokens=count_tokens,
        )

    async def _improve_summary(self, prompt: FollowUpPrompt, text: str, values: Sequence[ValueMention]) -> str:
        """Asks the model to add the lacking values. Returns the better of both summaries.

        Args:
            prompt: the first call with its answer, and the values that the answer lacks.
            text: the first summary.
            values: the values of the range.
        """
        try:
            improved_text = accept_summary(
                (await self._call_model(prompt, FIRST_ATTEMPT)).completion, self.request, self.counter
            )
        # The first summary is usable, so a failed improvement is no failure.
        except (NoUsableSummary, GatewayError):
            return text
        return improved_text if compute_kept_share(values, improved_text) > compute_kept_share(values, text) else text

    def _build_instruction(self, variant: PromptVariant) -> str:
        return build_instruction(self.request.job.policy.summarizer, variant, self.request.job.focus)


async def _is_empty(answer: SummarizerAnswer, entries: Sequence[TranscriptEntry]) -> bool:
    """Whether an answer says nothing about the entries. Raises `NoUsableSummary` as `read_answer_text` does."""
    text = read_answer_text(answer.completion)
    return await asyncio.to_thread(says_nothing, text, [entry.spoken_text for entry in entries])
