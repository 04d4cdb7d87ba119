"""A conversation in memory with its log, its chunks and a summarizer made of words, for tests of planning."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import orjson
from msgspec.structs import replace

from app.context.plan.budget import Budget, compute_budget, compute_summary_token_limit
from app.context.plan.log_rounds import LogTail, build_boundary_after, split_into_rounds
from app.context.plan.outline import Boundary, LastView, Outline, Pin, Plan, SummarizeMode, SummaryRange, make_last_view
from app.context.plan.planner import plan_view
from app.context.plan.policy import ContextPolicy
from app.context.plan.summary_chain import find_chain_and_folds
from app.context.user_text.user_text import NO_USER_TEXT, UserLine, UserText
from app.context.user_text.user_text_message import count_user_text_frame_tokens, render_user_line
from app.context.view.client_versions import NO_VERSIONS
from app.context.view.message_edits import render_edited_message
from app.context.view.view_rendering import (
    RenderedMessage,
    count_summary_message_tokens,
    count_summary_section_tokens,
    render_view,
    render_view_with_origins,
)
from app.conversation.conversation_types import LogMessage, Summary
from app.dialects.body.message import ChatMessage, decode_body
from app.dialects.body.message_fields import extract_text
from tests.support.chat_counter import AnyMessage, as_body

PIECE = re.compile(r"\w{1,5}|[^\w\s]|\s+")
FIRST_WORD = re.compile(r"\w+")
IMAGE_TOKENS = 85
START = datetime(2026, 1, 1, tzinfo=UTC)
INSTRUCTIONS = orjson.dumps({"role": "system", "content": "Answer briefly."})
Body = dict[str, Any]


class WordCounter:
    """Counts pieces of words, signs and stretches of white space: additive wherever a section ends."""

    def __init__(self) -> None:
        self.calls = 0

    def count(self, text: str) -> int:
        self.calls += 1
        return len(PIECE.findall(text))

    def count_message(self, message: AnyMessage) -> int:
        body = as_body(message)
        return (
            4
            + self.count(extract_text(body.get("content")))
            + self._images(body)
            + sum(map(self._call, calls_of(body)))
        )

    def _call(self, call: Body) -> int:
        facts = call.get("function") or call.get("custom") or {}
        return self.count(facts.get("name", "")) + self.count(facts.get("arguments", facts.get("input", "")))

    def _images(self, body: Body) -> int:
        content = body.get("content")
        parts: list[Body] = content if isinstance(content, list) else []
        return sum(IMAGE_TOKENS for part in parts if part.get("type") == "image_url")


def calls_of(body: Body) -> list[Body]:
    """The tool calls of a message, of any kind."""
    legacy = body.get("function_call")
    return body.get("tool_calls") or ([{"function": legacy}] if legacy else [])


COUNT = WordCounter()


def words(tokens: int, word: str = "word") -> str:
    """Text of about `tokens` tokens."""
    return " ".join([word] * max(1, tokens // 2))


def user(content: object) -> Body:
    return {"role": "user", "content": content}


def assistant(content: object, **fields: object) -> Body:
    return {"role": "assistant", "content": content, **fields}


def calls(*names: str, arguments: str = "{}", content: object = None) -> Body:
    return assistant(
        content,
        tool_calls=[
            {"id": f"call_{place}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for place, name in enumerate(names)
        ],
    )


def result(content: object, call_id: str = "call_0") -> Body:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def log_of(bodies: Sequence[Body], count: WordCounter = COUNT) -> list[LogMessage]:
    log: list[LogMessage] = []
    total = 0
    for seq, body in enumerate(bodies):
        tokens = count.count_message(body)
        total += tokens
        link = seq.to_bytes(16, "big")
        log.append(LogMessage(seq, ChatMessage.from_body(body), link, link, True, tokens, total, False))
    return log


def chunk_of(to_seq: int, *, from_seq: int = 0, text: str = "What was said.", **fields: Any) -> Summary:
    through_turn = fields.pop("through_turn", to_seq)
    facts: dict[str, Any] = {
        "id": f"chunk_{from_seq}_{to_seq}",
        "conversation_id": "conv",
        "from_link": from_seq.to_bytes(16, "big"),
        "to_link": to_seq.to_bytes(16, "big"),
        "tokens": count_summary_section_tokens(text, through_turn=through_turn, counter=COUNT),
        "tokens_total": 0,
        "anchor_seq": None,
        "anchor_tokens": 0,
        "kind": "model",
        "model": "sim",
        "prompt_version": "1",
        "created_at": START,
    }
    return Summary(from_seq=from_seq, to_seq=to_seq, text=text, through_turn=through_turn, **{**facts, **fields})


@dataclass
class World:
    """A conversation that grows, is planned, and is compacted by a summarizer that always uses all it may."""

    window: int = 8_192
    policy: ContextPolicy = field(default_factory=ContextPolicy)
    bodies: list[Body] = field(default_factory=list)
    stored: list[Summary] = field(default_factory=list)
    ratio: float = 1.0
    output: int = 0
    last: LastView = field(default_factory=LastView)
    pins: tuple[Pin, ...] = ()
    user_text: UserText = NO_USER_TEXT
    new_from_seq: int | None = None
    summarizer_share: float = 0.6
    replans: int = 0

    def __post_init__(self) -> None:
        self.log = log_of(self.bodies)

    @property
    def budget(self) -> Budget:
        return compute_budget(
            self.policy, window=self.window, requested_output=self.output, calibration_ratio=self.ratio
        )

    @property
    def instructions_tokens(self) -> int:
        return COUNT.count_message(orjson.loads(INSTRUCTIONS)) + 3

    def say(self, *bodies: Body) -> None:
        # An answer that is said with what follows it was stored when it was given.
        self.new_from_seq = len(self.bodies) + (bodies[0]["role"] == "assistant")
        self.bodies.extend(bodies)
        for body in bodies:
            seq, tokens = len(self.log), COUNT.count_message(body)
            total = tokens + (self.log[-1].tokens_total if self.log else 0)
            link = seq.to_bytes(16, "big")
            self.log.append(LogMessage(seq, ChatMessage.from_body(body), link, link, True, tokens, total, False))

    def outline(self, *, loaded: bool = True, start: Boundary | None = None) -> Outline:
        chain, folds = find_chain_and_folds(self.stored, are_replacing=self.policy.has_replacing_summaries)
        if not self.policy.may_summarize:
            chain, folds = (), ()
        if start is None:
            start = build_boundary_after(chain[-1]) if chain else Boundary()
        return Outline(
            instructions_tokens=self.instructions_tokens,
            log_tokens=self.log[-1].tokens_total if self.log else 0,
            next_seq=len(self.log),
            summaries=chain,
            folds=folds,
            tail=self.log[start.to_seq :] if loaded else None,
            tail_start=start,
            new_from_seq=max(0, len(self.log) - 1) if self.new_from_seq is None else self.new_from_seq,
            pins=self.pins,
            last_view=self.last,
            user_texts=(self.user_text,),
        )

    def plan(self, summarize: SummarizeMode = "auto", *, loaded: bool = True) -> Plan:
        """The plan as a request makes it: the log is read only if the plan asks for it, and `loaded` allows it."""
        decided = self.plan_of(self.outline(loaded=False), summarize)
        if loaded and decided.needs_tail is not None:
            decided = self.plan_of(self.outline(start=decided.needs_tail), summarize)
            assert decided.needs_tail is None
        return decided

    def plan_of(self, outline: Outline, summarize: SummarizeMode) -> Plan:
        if summarize == "ahead":
            outline = replace(outline, new_from_seq=outline.next_seq)
        return plan_view(
            outline,
            self.budget,
            self.policy,
            counter=COUNT,
            summarizer_input_tokens=int(self.window * self.summarizer_share),
            summarize=summarize,
        )

    def settle(self, summarize: SummarizeMode = "auto", most_replans: int = 50) -> Plan:
        """Plan and compact until nothing more is asked for; the boundary is remembered as that of the last view."""
        decided = self.plan(summarize)
        self.replans = 0
        while decided.to_summarize:
            self.replans += 1
            assert self.replans <= most_replans, decided.notes
            self.compact(decided)
            decided = self.plan(summarize)
        self.remember(decided)
        return decided

    def compact(self, decided: Plan) -> None:
        """Make the summaries that a plan asks for."""
        for part in decided.to_summarize:
            self.stored.append(self.summary_of(part))

    def remember(self, decided: Plan) -> None:
        """What a conversation keeps of a view that was answered, in the form in which it is stored."""
        kept = make_last_view(decided, self.last)
        self.last = msgspec.convert(orjson.loads(orjson.dumps(msgspec.to_builtins(kept))), LastView)
        assert self.last == kept

    def pin(self, *seqs: int) -> None:
        """Pin the rounds that these messages belong to."""
        self.pins = tuple(
            Pin(one.from_seq, one.to_seq, one.tokens)
            for one in split_into_rounds(self.log)
            if any(one.from_seq <= seq < one.to_seq for seq in seqs)
        )

    def keep_user_text(self, *seqs: int) -> None:
        """Keep the first word of these messages, if they are the user's and begin with a word."""
        found = []
        for seq in seqs:
            if seq >= len(self.log):
                break
            message = self.log[seq].message
            word = FIRST_WORD.match(message.text)
            if message.role == "user" and word:
                tokens = COUNT.count(render_user_line(word.group(), None))
                found.append(UserLine(seq, 0, word.end(), tokens))
        frame_tokens = count_user_text_frame_tokens(COUNT.count_message)
        room_tokens = int(self.window * self.policy.user_text_ratio) - frame_tokens
        while found and sum(one.tokens for one in found) > room_tokens:
            found.pop()
        self.user_text = UserText(len(self.log), 1, frame_tokens, False, tuple(found))

    def summary_tokens(self, decided: Plan) -> int:
        """What the message in front of the verbatim part takes."""
        return count_summary_message_tokens(decided.summaries, decided.dropped_message_count, COUNT)

    def shown(self, decided: Plan, seq: int) -> Body:
        """A message as a plan shows it."""
        message = render_edited_message(decided.edits[seq], lambda at: self.log[at].message)
        assert message is not None
        return decode_body(message)

    def summary_of(self, part: SummaryRange, kind: str = "model") -> Summary:
        if part.folds:
            shown = {chunk.id: chunk for chunk in self.stored}
            last = max((shown[name] for name in part.folds), key=lambda chunk: chunk.to_seq)
            assert last.to_seq == part.to_seq
            tokens = sum(shown[name].tokens for name in part.folds)
            boundary = {
                "tokens_total": last.tokens_total,
                "anchor_seq": last.anchor_seq,
                "anchor_tokens": last.anchor_tokens,
                "through_turn": last.through_turn,
            }
        else:
            end = LogTail(self.log, after=None).build_boundary(part.to_seq)
            tokens = sum(message.tokens for message in self.log[part.from_seq : part.to_seq])
            boundary = {
                "tokens_total": end.tokens_total,
                "anchor_seq": end.anchor_seq,
                "anchor_tokens": end.anchor_tokens,
                "through_turn": end.through_turn,
            }
        limit = self.budget.compute_raw_tokens(compute_summary_token_limit(self.policy, self.window))
        made = chunk_of(
            part.to_seq,
            from_seq=part.from_seq,
            text=words(min(limit, tokens) - 1, "fact"),
            created_at=START + timedelta(seconds=len(self.stored)),
            kind=kind,
            folds=part.folds,
            **boundary,
        )
        return replace(made, id=f"chunk_{len(self.stored)}")

    def render_with_origins(self, decided: Plan) -> list[RenderedMessage]:
        return list(
            render_view_with_origins(decided, lambda seq: self.log[seq].message.raw, len(self.log), NO_VERSIONS)
        )

    def render(self, decided: Plan) -> list[bytes]:
        return render_view(
            decided,
            instructions=[INSTRUCTIONS],
            find_raw_message=lambda seq: self.log[seq].message.raw,
            next_seq=len(self.log),
        )
