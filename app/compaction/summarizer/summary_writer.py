"""How one model writes one summary: in one call, or in parts that are merged; asked again at most once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from app.compaction.acceptance.acceptance import accepted, completed, finish_reason, said, told, worth_asking_again
from app.compaction.acceptance.facts import Mention
from app.compaction.acceptance.kept_facts import kept_share, values_of
from app.compaction.summarizer.prompts import LOG_PARTS_NOTE, PARTS_NOTE, Wish, fold_scope, instruction, scope
from app.compaction.summarizer.range_parts import part_limit, parts_of
from app.compaction.summarizer.request_body import (
    AgainPrompt,
    ConversationPrompt,
    Prompt,
    TranscriptPrompt,
    bound_fields,
)
from app.compaction.summarizer.summarizer_call import FIRST, Answer, Attempt, Calls
from app.compaction.summarizer.summary_request import SummaryRefused, SummaryRequest
from app.compaction.summarizer.transcript import Entry, entries_of, spoken
from app.context.plan.log_cuts import rounds_of
from app.context.view.view_messages import Counter
from app.conversation.messages import Chunk, LogMessage
from app.errors import GatewayError, UpstreamRefused
from app.upstream.protocols.overflow import recognise

THINKING_FACTOR = 4
"""A model that spent its whole allowance on thinking gets this many times as much, once."""
HALVINGS = 2
"""How often what is read is halved for a model whose window is smaller than believed."""
PARALLEL_PARTS = 4
FILL = 0.98
"""Of what a transcript may take, what is filled by sizes that are known before it is put together."""


@dataclass(slots=True)
class Writing:
    """The calls that a summary takes.

    `count` counts in the encoding of the conversation.
    """

    request: SummaryRequest
    calls: Calls
    count: Counter
    model: str = ""
    """Who answered last, by its provider's name."""
    usages: list[Mapping[str, Any]] = field(default_factory=list)

    async def from_conversation(self) -> str:
        """A summary by who has just read the messages themselves: the last view goes on with the instruction.

        Raises:
            SummaryRefused, UpstreamRefused, UpstreamUnavailable: as `Summarizer.summarize`.
        """
        request = self.request
        prompt = ConversationPrompt(
            text=self._instruction(request.wish),
            scope=self._scope(),
            prefix=request.prefix,
            limit_tokens=request.limit_tokens,
            fields=bound_fields(request.fields),
        )
        return await self._finished(prompt, await self._thought_out(prompt, FIRST))

    def _scope(self) -> str:
        """What the instruction is about."""
        request = self.request
        if request.folded:
            return fold_scope(len(request.folded))
        first = request.messages[0].message
        count = request.meant or len(request.messages)
        return scope(request.style, count=count, speaker=first.role, begins=spoken(first))

    async def from_transcript(self) -> str:
        """A summary of a fenced transcript; in parts where the summarizer cannot read it at once.

        Raises:
            SummaryRefused, UpstreamRefused, UpstreamUnavailable: as `Summarizer.summarize`.
        """
        prompt = await self._transcript_prompt()
        return await self._finished(prompt, await self._read_out(prompt))

    async def _transcript_prompt(self) -> TranscriptPrompt:
        """What to read: the material itself, or summaries of its parts."""
        request = self.request
        text, messages, earlier = self._instruction(request.wish), request.messages, request.earlier
        if request.parts is not None:
            room = await self.calls.room(request.limit_tokens)
            material_tokens = TranscriptPrompt(text, (), request.limit_tokens).material_tokens(room)
            earlier, messages = await request.parts.cover(int(material_tokens * FILL), self._part)
            text = f"{text}\n\n{LOG_PARTS_NOTE}" if earlier else text
        return await self._in_parts(text, await asyncio.to_thread(entries_of, messages, earlier), request.limit_tokens)

    async def _in_parts(self, text: str, entries: Sequence[Entry], limit_tokens: int) -> TranscriptPrompt:
        """A prompt for entries, or for summaries of their parts where the summarizer cannot read them at once."""
        whole = TranscriptPrompt(text, entries, limit_tokens)
        room = await self.calls.room(limit_tokens)
        material_tokens = whole.material_tokens(room)
        parts = await asyncio.to_thread(parts_of, whole.entries, material_tokens, room.count.count)
        if len(parts) == 1:
            return whole
        summaries = await self._of_parts(parts, part_limit(len(parts), material_tokens, limit_tokens))
        merging = f"{text}\n\n{PARTS_NOTE}"
        return TranscriptPrompt(
            merging, [Entry(place, "summary", one) for place, one in enumerate(summaries, 1)], limit_tokens
        )

    async def _part(
        self, messages: Sequence[LogMessage], merged: Sequence[Chunk], limit_tokens: int
    ) -> tuple[str, str]:
        """A summary of a part of the log, or of summaries of parts, and the model that wrote it."""
        text = instruction(self.request.policy.summarizer, Wish(is_fold=bool(merged)))
        entries = await asyncio.to_thread(entries_of, messages, merged)
        is_one_round = len(rounds_of(messages)) == 1
        prompt = TranscriptPrompt(text, entries, limit_tokens)
        answer = await self._read_out(await self._in_parts(text, entries, limit_tokens) if is_one_round else prompt)
        replaced_tokens = sum(one.tokens for one in messages) + sum(one.tokens for one in merged)
        return await asyncio.to_thread(
            completed,
            told(answer.body),
            values_of(messages, merged),
            limit_tokens=limit_tokens,
            allowed_tokens=replaced_tokens,
            count=self.count.count,
        ), answer.model

    async def _of_parts(self, parts: Sequence[Sequence[Entry]], limit_tokens: int) -> list[str]:
        """A summary of each part, a few at a time. The first failure is everybody's, once all have ended."""
        turns = asyncio.Semaphore(PARALLEL_PARTS)
        text = self._instruction(Wish(is_fold=self.request.wish.is_fold))

        async def one(part: Sequence[Entry]) -> str:
            async with turns:
                return told((await self._read_out(TranscriptPrompt(text, part, limit_tokens))).body)

        results = await asyncio.gather(*map(one, parts), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return [result for result in results if isinstance(result, str)]

    async def _read_out(self, prompt: TranscriptPrompt) -> Answer:
        """The answer to a transcript; asked again with half of it, and a quarter, if that was too long."""
        attempt = FIRST
        for _ in range(HALVINGS):
            try:
                return await self._thought_out(prompt, attempt)
            except UpstreamRefused as refusal:
                if recognise(refusal.status, refusal.raw_body) is None:
                    raise
            attempt = await self._halved(prompt, attempt)
        return await self._thought_out(prompt, attempt)

    async def _halved(self, prompt: TranscriptPrompt, attempt: Attempt) -> Attempt:
        """The same with half of what was read; that may have been less than there was room for."""
        room = await self.calls.room(prompt.limit_tokens)
        tokens = await asyncio.to_thread(lambda: sum(room.count.count(entry.text) for entry in prompt.entries))
        share = min(attempt.input_share, tokens / prompt.material_tokens(room))
        return replace(attempt, input_share=share / 2)

    async def _thought_out(self, prompt: Prompt, attempt: Attempt) -> Answer:
        """An answer; asked a second time with a larger allowance if the first was spent on thinking."""
        answer = await self._put(prompt, attempt)
        if finish_reason(answer.body) == "length" and not said(answer.body):
            return await self._put(prompt, replace(attempt, allowance=THINKING_FACTOR))
        return answer

    async def _put(self, prompt: Prompt, attempt: Attempt) -> Answer:
        answer = await self.calls.put(prompt, attempt)
        self.model = answer.model
        if answer.usage is not None:
            self.usages.append(answer.usage)
        return answer

    async def _finished(self, prompt: Prompt, answer: Answer) -> str:
        """The summary of an answer, with the values that it leaves out."""
        request, count = self.request, self.count.count
        text = accepted(answer.body, request, self.count)
        values = await asyncio.to_thread(values_of, request.messages, request.earlier)
        lacking = await asyncio.to_thread(worth_asking_again, text, values, request.limit_tokens, count)
        if lacking:
            text = await self._better(AgainPrompt(prompt, text, lacking), text, values)
        return await asyncio.to_thread(
            completed,
            text,
            values,
            limit_tokens=request.limit_tokens,
            allowed_tokens=request.allowed_tokens,
            count=count,
        )

    async def _better(self, prompt: AgainPrompt, text: str, values: Sequence[Mention]) -> str:
        """The answer to a second request if it keeps more than the first; a failure leaves the first as it was."""
        try:
            again = accepted((await self._put(prompt, FIRST)).body, self.request, self.count)
        except (SummaryRefused, GatewayError):
            return text
        return again if kept_share(values, again) > kept_share(values, text) else text

    def _instruction(self, wish: Wish) -> str:
        return instruction(self.request.policy.summarizer, wish, self.request.focus)
