"""What a provider bills for a long conversation, by the rule of its prompt cache: with the gateway's marks, without,
with a mark at the end of each prompt alone, and without a gateway.

The talk is that of `economy` at a window of 8,192. Tokens are four characters each, prices are list prices, and half a
minute passes between two requests. Without a gateway the whole history is sent, as if it fitted. `--picture FILE` draws
the bills as they grow.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final, Literal, get_args

import httpx
import orjson
from rich.console import Console
from rich.table import Column, Table

from app.simulator.openai_encoding import encode_completion, encode_stream_events
from app.simulator.simulated_model import SimulatedAnswer
from tests.benchmarks.quality.bill_picture import draw_bills
from tests.benchmarks.quality.economy import OFFICE_SEED, SYSTEM, TOOLS, TURNS, WINDOW
from tests.benchmarks.quality.economy_kinds import KINDS, Script, build_script
from tests.benchmarks.quality.model import BYTES_PER_TOKEN, MARK, by_length
from tests.benchmarks.quality.summaries import ordinary
from tests.benchmarks.quality.talk import ADDITIVE, TIMEOUT_SECONDS, Client
from tests.live import gateway, serving
from tests.support.messages_checks import check_messages_request, iterate_cacheable
from tests.support.messages_encoding import build_message, encode_message_events
from tests.support.messages_simulator import translate_request
from tests.support.prompt_caches import (
    CacheRule,
    CacheUse,
    PromptCache,
    PromptPiece,
    list_chat_pieces,
    list_messages_pieces,
)

Marks = Literal["marks", "no marks", "end only", "no gateway", "no gateway, end marked"]
SECONDS_BETWEEN: Final = 30.0
LIFETIME_SECONDS: Final = 300
LEAST_CACHED_PROMPT: Final = 1_024
LEAST_READ, MOST_OFF = 0.85, 0.01
MILLION: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Tariff:
    """A model, and US dollars for a million of its tokens (the makers' price pages, November 2026)."""

    model: str
    new: float
    read: float
    written: float
    output: float

    def bill(self, prompt_tokens: int, use: CacheUse, output_tokens: int) -> float:
        new = prompt_tokens - use.read - use.written
        dollars = new * self.new + use.read * self.read + use.written * self.written + output_tokens * self.output
        return dollars / MILLION


TARIFFS: Final[Mapping[CacheRule, Tariff]] = {
    "prefix": Tariff("gpt-5.4", 2.5, 0.25, 2.5, 15.0),
    "breakpoints": Tariff("gpt-5.6", 4.0, 0.4, 5.0, 20.0),
    "anthropic": Tariff("claude-sonnet-4-5", 3.0, 0.3, 3.75, 15.0),
}


VARIANTS: Final[Mapping[CacheRule, Sequence[Marks]]] = {
    "prefix": ("marks", "no gateway"),
    # OpenAI marks the end of each prompt by itself.
    "breakpoints": ("marks", "no marks", "no gateway"),
    "anthropic": get_args(Marks),
}


@dataclass(frozen=True, slots=True)
class BilledCall:
    is_summary: bool
    pieces: Sequence[str]
    prompt_tokens: int
    use: CacheUse
    usd: float


@dataclass(slots=True)
class Meter:
    """A provider's cache and its bill."""

    rule: CacheRule
    marks_end_only: bool = False
    """Every prompt has a mark at its end and nowhere else, whatever came."""
    seconds: float = 0.0
    calls: list[BilledCall] = field(default_factory=list)
    cache: PromptCache = field(init=False)

    def __post_init__(self) -> None:
        self.cache = PromptCache(self.rule, lambda: self.seconds)

    def bill(self, pieces: Sequence[PromptPiece], prompt_tokens: int, output: int, *, is_summary: bool) -> CacheUse:
        if not is_summary:
            self.seconds += SECONDS_BETWEEN
        if self.marks_end_only:
            bare = [piece._replace(seconds=None) for piece in pieces]
            pieces = [*bare[:-1], bare[-1]._replace(seconds=LIFETIME_SECONDS)]
        use = self.cache.read_and_write(pieces, prompt_tokens)
        usd = TARIFFS[self.rule].bill(prompt_tokens, use, output)
        self.calls.append(BilledCall(is_summary, [piece.text for piece in pieces], prompt_tokens, use, usd))
        return use


class BilledModel:
    """An ASGI application that plays a script, in Chat Completions or the Messages API.

    The place in the script comes as a stop word, which every protocol has; a call without it asks for a summary.
    """

    def __init__(self, script: Script, meter: Meter) -> None:
        self._script = script
        self._meter = meter

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raw, more = b"", True
        while more:
            event = await receive()
            raw, more = raw + event.get("body", b""), event.get("more_body", False)
        if not raw:  # the gateway asks for the list of models
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        given = orjson.loads(raw)
        speaks_messages = scope["path"].endswith("/messages")
        if speaks_messages:
            check_messages_request(given)
        chat = translate_request(given) if speaks_messages else given
        pieces = list_messages_pieces(iterate_cacheable(given)) if speaks_messages else list_chat_pieces(given)
        stop = chat.get("stop")
        place = orjson.loads(stop if isinstance(stop, str) else stop[0]) if stop else None
        message = self._script.build_reply({MARK: place}) if place else {"content": ordinary(chat)}
        text, calls = message.get("content"), tuple(message.get("tool_calls") or ())
        output = count_tokens(f"{text or ''}{calls or ''}")
        prompt_tokens = by_length(chat)
        use = self._meter.bill(pieces, prompt_tokens, output, is_summary=place is None)
        finish = "tool_calls" if calls else "stop"
        answer = SimulatedAnswer(
            prompt_tokens, text, calls, finish, output, cached_tokens=use.read, written_tokens=use.written
        )
        body = _encode(answer, given, use if speaks_messages else None)
        await _send(send, body, is_stream=bool(given.get("stream")))


def count_tokens(text: str) -> int:
    return (len(text.encode()) + BYTES_PER_TOKEN - 1) // BYTES_PER_TOKEN


def _encode(answer: SimulatedAnswer, given: Mapping[str, Any], messages_cache_use: CacheUse | None) -> bytes:
    model = given["model"]
    if messages_cache_use is not None:
        message = build_message(answer, message_id="msg_1", model=model, cache_use=messages_cache_use)
        return b"".join(encode_message_events(message)) if given.get("stream") else orjson.dumps(message)
    envelope = {"id": "chatcmpl-1", "created": 1_800_000_000, "model": model}
    if given.get("stream"):
        return b"".join(encode_stream_events(answer, envelope, include_usage=True))
    return encode_completion(answer, envelope)


async def _send(send: Any, body: bytes, *, is_stream: bool) -> None:
    kind = b"text/event-stream" if is_stream else b"application/json"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind)]})
    await send({"type": "http.response.body", "body": body})


@dataclass(slots=True)
class Held:
    """A conversation as it was billed, and as the gateway's books have it."""

    meter: Meter
    costs: list[Mapping[str, Any]] = field(default_factory=list)
    """`context.cost` of each answer."""

    @property
    def bills(self) -> list[float]:
        """The bill after each call."""
        return list(accumulate(call.usd for call in self.meter.calls))


Ask = Callable[[Sequence[Mapping[str, Any]], tuple[int, int]], Any]


@asynccontextmanager
async def asking(
    model: BilledModel, rule: CacheRule, marks: Marks, costs: list[Mapping[str, Any]]
) -> AsyncIterator[Ask]:
    """Gives a function that sends a history through a gateway, and returns the answer's message."""
    name = TARIFFS[rule].model
    async with serving(model, lifespan="off") as upstream:
        protocol = "anthropic" if rule == "anthropic" else "openai"
        provider = {"base_url": f"{upstream}/v1", "api_key": "sk-upstream", "protocol": protocol}
        cache = rule if marks == "marks" else "none"
        entry = {"provider": "upstream", "context_window": WINDOW, "cache": cache}
        async with (
            gateway(
                upstream, providers={"upstream": provider}, models={name: entry}, **ADDITIVE.sections()
            ) as base_url,
            httpx.AsyncClient(base_url=base_url, timeout=TIMEOUT_SECONDS) as http,
        ):
            client = Client(http)

            async def ask(history: Sequence[Mapping[str, Any]], place: tuple[int, int]) -> Mapping[str, Any]:
                body = {"model": name, "messages": history, "tools": TOOLS, "stop": [orjson.dumps(place).decode()]}
                answer = await http.post("/chat/completions", json=body, headers={"authorization": "Bearer bench"})
                answer.raise_for_status()
                costs.append(answer.json()["context"]["cost"])
                await client.wait_for_background_tasks()
                message: Mapping[str, Any] = answer.json()["choices"][0]["message"]
                return message

            yield ask


async def hold(
    rule: CacheRule, marks: Marks, *, kind: str = "office", turns: int = TURNS, seed: int = OFFICE_SEED
) -> Held:
    """Holds a conversation."""
    script = build_script(kind, seed, turns)
    held = Held(Meter(rule, marks_end_only=rule == "anthropic" and marks in ("end only", "no gateway, end marked")))
    if marks in ("no gateway", "no gateway, end marked"):

        async def ask_directly(history: Sequence[Mapping[str, Any]], place: tuple[int, int]) -> Mapping[str, Any]:
            message = script.build_reply({MARK: place})
            body = {"messages": history, "tools": TOOLS}
            output = count_tokens(f"{message.get('content') or ''}{message.get('tool_calls') or ''}")
            pieces = list_chat_pieces(body)
            # A chat client marks nothing for Anthropic.
            given = [piece._replace(seconds=None) for piece in pieces] if rule == "anthropic" else pieces
            held.meter.bill(given, by_length(body), output, is_summary=False)
            return message

        await _talk(script, ask_directly)
        return held
    async with asking(BilledModel(script, held.meter), rule, marks, held.costs) as ask:
        await _talk(script, ask)
    return held


async def _talk(script: Script, ask: Ask) -> None:
    history: list[Mapping[str, Any]] = [dict(SYSTEM)]
    for turn in range(len(script.turns)):
        history.append({"role": "user", "content": script.turns[turn].question})
        for step in range(script.count_requests(turn)):
            if step:
                call_id = history[-1]["tool_calls"][0]["id"]
                history.append({**script.build_result(turn, step - 1), "tool_call_id": call_id})
            history.append(dict(await ask(history, (turn, step))))


def facts_of(held: Held) -> dict[str, Any]:
    """The figures of a conversation; dollars are the provider's bill."""
    calls, answers = held.meter.calls, [call for call in held.meter.calls if not call.is_summary]
    grown = [after for before, after in pairwise(answers) if after.pieces[: len(before.pieces)] == before.pieces]
    warm = [call for call in grown if call.prompt_tokens >= LEAST_CACHED_PROMPT]
    billed = sum(call.usd for call in calls)
    books = sum(cost["usd"] for cost in held.costs)
    return {
        "usd": billed,
        "usd_of_summaries": sum(call.usd for call in calls if call.is_summary),
        "prompt_tokens": sum(call.prompt_tokens for call in calls),
        "read_tokens": sum(call.use.read for call in calls),
        "written_tokens": sum(call.use.written for call in calls),
        "summary_calls": len(calls) - len(answers),
        "cuts": len(answers) - 1 - len(grown),
        "read_between_cuts": sum(call.use.read for call in warm) / max(1, sum(call.prompt_tokens for call in warm)),
        "books_off": abs(books - billed) / billed if held.costs else None,
        "bills": held.bills,
    }


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--rules", nargs="+", choices=list(TARIFFS), default=list(TARIFFS))
    parser.add_argument(
        "--marks", nargs="+", choices=get_args(Marks), default=get_args(Marks), help="where a rule has it"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=["office"], help="of talk")
    parser.add_argument("--turns", type=int, default=TURNS)
    parser.add_argument("--first-seed", type=int, default=OFFICE_SEED)
    parser.add_argument("--picture", type=Path, help="an SVG file of the first kind")


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for kind in options.kinds:
        for rule in options.rules:
            for marks in [one for one in VARIANTS[rule] if one in options.marks]:
                held = await hold(rule, marks, kind=kind, turns=options.turns, seed=options.first_seed)
                results.setdefault(kind, {}).setdefault(rule, {})[marks] = facts_of(held)
        console.print(_build_table(kind, results[kind]))
    if options.picture:
        bills = results[options.kinds[0]]
        options.picture.write_text(
            draw_bills({rule: {m: f["bills"] for m, f in bills[rule].items()} for rule in bills})
        )
    return results


def _build_table(kind: str, results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> Table:
    titles = ("bill", "summaries", "prompt tokens", "read", "written", "calls", "cuts")
    read, books = f"read between\ncuts ≥ {LEAST_READ}", f"books off\n≤ {MOST_OFF:.0%}"
    columns = [Column(title, justify="right") for title in (*titles, read, books)]
    table = Table("rule", "", *columns, title=kind, title_justify="left")
    for rule, rows in results.items():
        for marks, facts in rows.items():
            off = facts["books_off"]
            numbers = [f"{facts[name]:,}" for name in ("prompt_tokens", "read_tokens", "written_tokens")]
            dollars = [f"${facts['usd']:.3f}", f"${facts['usd_of_summaries']:.3f}"]
            counts = [str(facts["summary_calls"]), str(facts["cuts"]), f"{facts['read_between_cuts']:.3f}"]
            table.add_row(rule, marks, *dollars, *numbers, *counts, "" if off is None else f"{off:.2%}")
    return table
