"""Messages in another form than they came: what was done to each, as data, and how it is done again. Pure.

A view is rendered anew with each request. What is stored of a shortened message is not its text but the operations
that made it, so the same message comes out in the same bytes until the next cut.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from app.context.stages.excerpt import HEAD_SHARE, contents_within, shortened_arguments, shortened_body
from app.context.stages.round_lines import told_round
from app.conversation.canonical_form import REASONING_PARTS
from app.conversation.messages import Message

EditKind = Literal["masked", "truncated", "cleared", "told"]
Op = tuple[str | int | float, ...]
"""Name of an operation and its arguments."""
Body = dict[str, Any]

REASONING_FIELDS: Final = ("reasoning", "reasoning_content", "reasoning_details", "thinking_blocks")


class Edit(msgspec.Struct, frozen=True):
    """What a view shows in place of a message."""

    seq: int
    kind: EditKind
    ops: tuple[Op, ...]
    tokens: int
    """Raw count of what is shown; 0 where another message's edit stands for this one too."""
    saved_tokens: int
    """How much less that is than the message itself."""


def edited(edit: Edit, message_at: Callable[[int], Message]) -> Message | None:
    """The message as it is shown; None where another one stands for it."""
    message = message_at(edit.seq)
    name = edit.ops[0][0]
    if name == "gone":
        return None
    if name == "tell":
        _, count, chars = edit.ops[0]
        told = told_round([message_at(seq) for seq in range(edit.seq, edit.seq + int(count))], int(chars))
        return Message.of({"role": "assistant", "content": told})
    return Message.of(body_after(message.body, edit.ops))


def messages_told(edit: Edit) -> int:
    """For how many messages of the log the one that is shown stands: none where another one stands for it."""
    name, *arguments = edit.ops[0]
    if name == "gone":
        return 0
    return int(arguments[0]) if name == "tell" else 1


def body_after(body: Body, ops: Sequence[Op]) -> Body:
    """A copy of a message after some operations."""
    for name, *arguments in ops:
        body = OPERATIONS[str(name)](body, *arguments)
    return body


def with_op(ops: Sequence[Op], op: Op) -> tuple[Op, ...]:
    """Operations with one more; of two of the same name the later stands."""
    return (*(known for known in ops if known[0] != op[0]), op)


def _shorten(body: Body, share: float) -> Body:
    """Keep a share of the characters of each long text."""
    return shortened_body(body, share)


def _contents(body: Body, chars: int, head_share: float = HEAD_SHARE) -> Body:
    """Keep about so many characters of the content, this share of them from its beginning."""
    return {**body, "content": contents_within(body.get("content"), chars, head_share)}


def _arguments(body: Body, chars: int) -> Body:
    """Keep about so many characters of the arguments of each call, which remain a JSON object."""
    return _with_functions(body, lambda arguments: shortened_arguments(arguments, chars))


def _say(body: Body, text: str) -> Body:
    """A short text in place of the content."""
    return {**body, "content": text}


def _inputs(body: Body) -> Body:
    """Clear the arguments of each call."""
    return _with_functions(body, lambda _: "{}")


def _thoughtless(body: Body) -> Body:
    """Leave reasoning out."""
    kept = {name: value for name, value in body.items() if name not in REASONING_FIELDS}
    content = kept.get("content")
    if isinstance(content, list):
        kept["content"] = [part for part in content if not is_reasoning(part)]
    return kept


def is_reasoning(part: object) -> bool:
    """Whether a content part is a model's reasoning."""
    return isinstance(part, Mapping) and part.get("type") in REASONING_PARTS


def _with_functions(body: Body, change: Callable[[str], str]) -> Body:
    copy = dict(body)
    if isinstance(body.get("tool_calls"), list):
        copy["tool_calls"] = [_with_function(call, change) for call in body["tool_calls"]]
    if isinstance(body.get("function_call"), dict):
        copy["function_call"] = _with_arguments(body["function_call"], change)
    return copy


def _with_function(call: object, change: Callable[[str], str]) -> object:
    if not isinstance(call, dict) or not isinstance(call.get("function"), dict):
        return call
    return {**call, "function": _with_arguments(call["function"], change)}


def _with_arguments(function: Body, change: Callable[[str], str]) -> Body:
    arguments = function.get("arguments")
    return {**function, "arguments": change(arguments)} if isinstance(arguments, str) else function


OPERATIONS: Final[Mapping[str, Callable[..., Body]]] = {
    "shorten": _shorten,
    "contents": _contents,
    "arguments": _arguments,
    "say": _say,
    "inputs": _inputs,
    "thoughtless": _thoughtless,
}
