"""What answers consist of, in no protocol's words. A decoder makes these values of a provider's answer; an encoder
writes them for a client of another protocol, or after rounds were joined.

`choice` is the place among several answers to one question. `block` is the place of an item or a content block within
the answer, as its provider numbers them; texts of one block are one text. A provider without blocks has block 0 only.

- `Begin`: the answer begins. It comes again when more of its identity is known.
- `Text`: a piece of what the model says, with the log probabilities of its tokens.
- `Reasoning`: a piece of what the model thinks, or of the summary of it. Pieces of one block and part are one text. A
  piece without text says that there is reasoning which cannot be read.
- `Refusal`: a piece of what the model says instead of an answer.
- `CallBegin`, `CallText`: a call of a tool, and a piece of what the tool is called with. `call` is the number of the
  call in its choice.
- `Sealed`: a part that only its origin can read, such as encrypted reasoning; `kind` says what is sealed.
- `Citation`: a source of a text. `fields` has `url`, `title`, and the place in the block, `start_index` and `end_index`
  in characters, as far as the provider tells them.
- `Usage`: the tokens that the provider counted, as the log keeps them.
- `Finish`: a choice has ended; `reason` as the log keeps it: `stop`, `length`, `content_filter`, `tool_calls`, or a
  provider's own word.
- `Other`: fields that only clients of the protocol `protocol` understand; of a call if `call` is there, of the whole
  answer if `choice` is None.
- `Failure`: the answer has failed; `body` is a JSON object with the key `error`, or the provider's own event.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Begin(msgspec.Struct, frozen=True, gc=False):
    id: str | None = None
    created: int | None = None
    model: str | None = None
    service_tier: str | None = None


class Text(msgspec.Struct, frozen=True, gc=False):
    text: str
    block: int | None = 0
    choice: int = 0
    logprobs: Sequence[Any] = ()


class Reasoning(msgspec.Struct, frozen=True, gc=False):
    text: str
    block: int | None = 0
    part: int | None = 0
    is_summary: bool = False
    choice: int = 0


class Refusal(msgspec.Struct, frozen=True, gc=False):
    text: str
    block: int | None = 0
    choice: int = 0


class CallBegin(msgspec.Struct, frozen=True, gc=False):
    call: int
    id: str
    name: str
    is_custom: bool = False
    choice: int = 0


class CallText(msgspec.Struct, frozen=True, gc=False):
    call: int
    text: str
    choice: int = 0


class Sealed(msgspec.Struct, frozen=True, gc=False):
    kind: str
    data: str
    block: int | None = 0
    choice: int = 0


class Citation(msgspec.Struct, frozen=True, gc=False):
    fields: Mapping[str, Any]
    block: int | None = 0
    choice: int = 0


class Usage(msgspec.Struct, frozen=True, gc=False):
    counts: Mapping[str, Any]


class Finish(msgspec.Struct, frozen=True, gc=False):
    reason: str
    choice: int = 0


class Failure(msgspec.Struct, frozen=True, gc=False):
    body: bytes


class Other(msgspec.Struct, frozen=True, gc=False):
    protocol: str
    fields: Mapping[str, Any]
    call: int | None = None
    choice: int | None = 0


def move_citation(fields: Mapping[str, Any], offset: int) -> dict[str, Any]:
    """Returns the fields of a citation, without its type, in a text that stands behind `offset` other characters."""
    return {
        name: value + offset if name in ("start_index", "end_index") and isinstance(value, int) else value
        for name, value in fields.items()
        if name != "type"
    }


AnswerValue = (
    Begin | Text | Reasoning | Refusal | CallBegin | CallText | Sealed | Citation | Usage | Finish | Failure | Other
)
