"""Builds the response object: the whole answer of the Responses API, and the part of most events that is not a delta.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import msgspec
import orjson

from app.dialects.chat.stream_frames import splice_fields
from app.dialects.error_body import read_error_body
from app.dialects.responses.stream_events import COMPLETED, INCOMPLETE
from app.dialects.usage import NO_USAGE, TokenUsage, read_usage
from app.errors import GatewayError, UpstreamRefused

_DEFAULTS: Final = {
    **dict.fromkeys(("conversation", "instructions", "max_output_tokens", "max_tool_calls"), b"null"),
    **dict.fromkeys(("previous_response_id", "prompt_cache_key", "safety_identifier", "user"), b"null"),
    **dict.fromkeys(("parallel_tool_calls", "store"), b"true"),
    **dict.fromkeys(("temperature", "top_p"), b"1.0"),
    **dict.fromkeys(("frequency_penalty", "presence_penalty"), b"0"),
    "background": b"false",
    "metadata": b"{}",
    "reasoning": b'{"effort":null,"summary":null}',
    "service_tier": b'"default"',
    "text": b'{"format":{"type":"text"}}',
    "tool_choice": b'"auto"',
    "tools": b"[]",
    "top_logprobs": b"0",
    "truncation": b'"disabled"',
}
DEFAULT_ECHO: Final[Mapping[str, bytes]] = dict(sorted(_DEFAULTS.items()))
"""Request fields that a response object repeats, with OpenAI's values for a request that lacks them. The penalties are
those of github.com/openresponses/openresponses, which requires them in each object."""
OPTIONAL_ECHO: Final = ("prompt", "prompt_cache_retention")
"""Request fields that a response object repeats only if the request has them."""
GATEWAY_ECHO: Final = frozenset(
    {
        *("background", "conversation", "instructions", "max_output_tokens", "metadata", "previous_response_id"),
        *("prompt_cache_key", "safety_identifier", "store", "tool_choice", "tools", "truncation", "user"),
    }
)
"""Fields that the gateway keeps from a Responses provider, or changes on the way (the search tool is one of `tools`):
the provider's echo of them is not what the client sent. The provider's word counts for the others: it has filled in its
defaults."""
PROVIDER_FACTS: Final = (
    *(name for name in (*DEFAULT_ECHO, *OPTIONAL_ECHO) if name not in GATEWAY_ECHO),
    *("access_programs", "completed_at", "image", "incomplete_details", "input_transformations", "moderation"),
    *("prompt_cache_diagnostics", "prompt_cache_options", "tool_usage", "usage"),
)
"""Members of a Responses provider's object that a stored response shows, too. Members that OpenAI's types do not have
are not among them: they could repeat the answer's text, which must be erasable."""
ENCRYPTED_REASONING: Final = b"reasoning.encrypted_content"
"""The member of `include` with which a client asks for encrypted reasoning."""
LOGPROBS: Final = b"message.output_text.logprobs"
"""The member of `include` with which a client asks for logarithmic probabilities."""
INCOMPLETE_REASONS: Final = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""Why a response is incomplete, by the finish reason of a chat completion."""

SERVER_ERROR: Final = "server_error"
RATE_LIMIT: Final = "rate_limit_exceeded"
INVALID_PROMPT: Final = "invalid_prompt"
OWN_ERROR_CODES: Final = frozenset({"context_length_exceeded", RATE_LIMIT})
"""Codes of the gateway's errors that a response object has, too."""

_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_items: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


class ResponseObject:
    """Renders the response objects of one request.

    Args:
        response_id: `resp_` and hex digits.
        created_at: Unix seconds.
        fields: the request's fields, each as JSON.
        find_completion: returns when the answer was complete, in Unix seconds. It is called when that is the case.
    """

    def __init__(
        self,
        response_id: str,
        created_at: int,
        fields: Mapping[str, bytes],
        find_completion: Callable[[], float] | None = None,
    ) -> None:
        self.response_id = response_id
        self.created_at = created_at
        self._find_completion = find_completion or (lambda: created_at)
        self.hides_encrypted_reasoning = ENCRYPTED_REASONING not in fields.get("include", b"")
        self.shows_logprobs = LOGPROBS in fields.get("include", b"")
        self._model = fields.get("model", b'""')
        self._echo: dict[str, msgspec.Raw] = {
            name: _select_value(fields, name, default) for name, default in DEFAULT_ECHO.items()
        }
        self._echo |= {name: _select_value(fields, name, b"null") for name in OPTIONAL_ECHO if name in fields}

    @cached_property
    def completed_at(self) -> int:
        """When the answer was complete, in Unix seconds. To be read first when it is."""
        return int(self._find_completion())

    def render(
        self,
        fields: bytes,
        *,
        status: str | None = None,
        model: str | None = None,
        output: Sequence[Any] = (),
        usage: Mapping[str, Any] | None = None,
        error: Mapping[str, Any] | None = None,
        finish: str | None = None,
        provider_facts: Mapping[str, Any] | None = None,
    ) -> bytes:
        """Renders a response object.

        Args:
            fields: our fields, as `splice_fields` takes them.
            status: `in_progress` or `failed`; None: that of an answer which has ended (`choose_status`).
            model: the provider's name for the model; the request's if the provider reported none.
            output: the items.
            usage: as Chat Completions have it.
            error: of a failed response.
            finish: how the answer has ended, as of `answer_events.Finish`.
            provider_facts: members that replace what would be rendered (`read_provider_facts`).
        """
        status = status or choose_status(finish)
        body = {
            "id": self.response_id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": self.completed_at if status == COMPLETED else None,
            "status": status,
            "error": error,
            "incomplete_details": _build_incomplete_details(finish),
            "model": model or msgspec.Raw(self._model),
            "output": output,
            "usage": None if usage is None else build_response_usage(usage),
            **self._echo,
            **(provider_facts or {}),
        }
        return _add_fields(_encode(body), fields)

    def render_original(self, body: bytes, fields: bytes, first_items: Sequence[Any] = ()) -> bytes:
        """Renders the object of a Responses provider as ours. What it says about the answer keeps its bytes.

        Args:
            body: the provider's object.
            fields: our fields, as `splice_fields` takes them.
            first_items: items of ours that come before the provider's.

        Raises:
            msgspec.DecodeError: the body is not a JSON object.
        """
        members = _decode_members(body)
        if self.hides_encrypted_reasoning and "output" in members and b"encrypted_content" in bytes(members["output"]):
            members["output"] = msgspec.Raw(
                _encode([self.hide_reasoning(raw) for raw in _decode_items(members["output"])])
            )
        if first_items:
            items = _decode_items(members.get("output", b"[]"))
            members["output"] = msgspec.Raw(_encode([*first_items, *items]))
        own = {name: value for name, value in self._echo.items() if name in GATEWAY_ECHO or name not in members}
        identity: dict[str, Any] = {"id": self.response_id, "created_at": self.created_at}
        if "completed_at" not in members:
            is_complete = bytes(members.get("status", b"")) == b'"completed"'
            identity |= {"completed_at": self.completed_at if is_complete else None}
        return _add_fields(_encode({**members, **identity, **own}), fields)

    def read_provider_facts(
        self, body: bytes, *, usage: Mapping[str, Any] | None, finish: str | None
    ) -> dict[str, Any]:
        """Reads from the object of a Responses provider what `render` would not say.

        Args:
            body: the provider's object.
            usage, finish: as of `render`.

        Raises:
            msgspec.DecodeError: the body is not a JSON object.
        """
        members = _decode_members(body)
        rendered = {
            **self._echo,
            "incomplete_details": msgspec.Raw(_encode(_build_incomplete_details(finish))),
            "usage": msgspec.Raw(_encode(None if usage is None else build_response_usage(usage))),
        }
        facts = {}
        for name in PROVIDER_FACTS:
            if name not in members or bytes(members[name]) == bytes(rendered.get(name, b"")):
                continue
            with suppress(orjson.JSONDecodeError):  # what orjson cannot read, the store cannot keep
                value = orjson.loads(bytes(members[name]))
                if name not in rendered or value != orjson.loads(bytes(rendered[name])):
                    facts[name] = value
        return facts

    def hide_reasoning(self, item: msgspec.Raw) -> msgspec.Raw:
        """Returns an output item as the client may see it: without encrypted reasoning, unless the client asked for
        it."""
        if self.hides_encrypted_reasoning and b"encrypted_content" in bytes(item):
            members = _decode_members(item)
            if "encrypted_content" in members and bytes(members.get("type", b"")) == b'"reasoning"':
                del members["encrypted_content"]
                return msgspec.Raw(_encode(members))
        return item

    def hide_item(self, item: Mapping[str, Any]) -> dict[str, Any]:
        """Returns a decoded output item as the client may see it; as `hide_reasoning`."""
        is_hidden = self.hides_encrypted_reasoning and item.get("type") == "reasoning"
        return {name: value for name, value in item.items() if not is_hidden or name != "encrypted_content"}


def replace_output(body: bytes, items: Sequence[bytes]) -> bytes:
    """Returns a response object with other items.

    Raises:
        msgspec.DecodeError: the body is not a JSON object.
    """
    return _encode({**_decode_members(body), "output": [msgspec.Raw(item) for item in items]})


def find_incomplete_reason(finish_reason: str | None) -> str | None:
    """Returns why an answer that ended so is incomplete; None if it is complete."""
    return INCOMPLETE_REASONS.get(finish_reason or "")


def build_response_usage(usage: Mapping[str, Any]) -> dict[str, Any] | None:
    """Translates the usage of a chat completion; None if it has no usable number."""
    read = TokenUsage(0) if usage == NO_USAGE else read_usage(usage)
    if read is None:
        return None
    details, input_details = usage.get("completion_tokens_details"), usage.get("prompt_tokens_details")
    reasoning = details.get("reasoning_tokens") if isinstance(details, dict) else None
    written = input_details.get("cache_write_tokens") if isinstance(input_details, dict) else None
    return {
        "input_tokens": read.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": read.cached_tokens,
            "cache_write_tokens": written if type(written) is int else 0,
        },
        "output_tokens": read.output_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning if type(reasoning) is int else 0},
        "total_tokens": read.prompt_tokens + read.output_tokens,
    }


def build_response_error(error: GatewayError) -> dict[str, str]:
    """Builds the `error` of a failed response, from the upstream's own error if there is one."""
    if not isinstance(error, UpstreamRefused):
        return {
            "code": error.code if error.code in OWN_ERROR_CODES else _choose_code(error.status),
            "message": error.message,
        }
    fields: Any = read_error_body(error)["error"]
    code = fields.get("code")
    if not isinstance(code, str) or not code:
        # Many servers write the status that they would have answered with.
        code = _choose_code(code if type(code) is int else error.status)
    return {"code": code, "message": str(fields.get("message") or error.message)}


def choose_status(finish: str | None) -> str:
    """Returns the status of a response whose answer has ended so."""
    return COMPLETED if find_incomplete_reason(finish) is None else INCOMPLETE


def _build_incomplete_details(finish: str | None) -> dict[str, str] | None:
    reason = find_incomplete_reason(finish)
    return None if reason is None else {"reason": reason}


def _choose_code(status: int) -> str:
    if status == 429:
        return RATE_LIMIT
    return INVALID_PROMPT if 400 <= status < 500 else SERVER_ERROR


def _add_fields(body: bytes, fields: bytes) -> bytes:
    return splice_fields(body, fields) if fields else body


def _select_value(fields: Mapping[str, bytes], name: str, default: bytes) -> msgspec.Raw:
    value = fields.get(name, default)
    if value == b"null":
        value = default
    elif name in ("reasoning", "text") and value != default:
        # A request may have some of the members; a response has the others, too.
        value = _encode({**_decode_members(default), **_decode_members(value)})
    elif name == "conversation" and value[:1] == b'"':
        # A request may name the conversation by its id alone; a response has an object.
        value = b'{"id":%b}' % value
    # A line break would end the `data:` line of an event. Outside of strings, where it cannot occur, it equals a space.
    return msgspec.Raw(value.replace(b"\n", b" ").replace(b"\r", b" "))
