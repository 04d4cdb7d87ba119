"""Whether agents still see what they need late: values of tool arguments that were last seen long before.

Each recorded run is replayed by a client that re-sends its history: before every message of the assistant, everything
up to there is sent, and the answer is left aside. The window of each run is its instructions' own size (system messages
and tools, which alone may exceed 2,000 tokens) and so many tokens more. A value counts as there when it occurs in the
messages, calls included, that reached the model at the request for the message that uses it.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from tests.benchmarks.quality.model import ScriptedModel
from tests.benchmarks.quality.recordings import FOLDER, LateUse, Message, Run, runs
from tests.benchmarks.quality.summaries import COUNTER, SUMMARIES
from tests.benchmarks.quality.talk import Client, NotThere, Variant, at_rest, talking
from tests.benchmarks.quality.texts import all_text

ROOM_TOKENS: Final = 2_000
KEPT_SHARE: Final = 0.95
"""Of the window, what keeping the newest messages may fill."""
HALVES: Final = ("even", "odd")
RESULT_ROLES: Final = ("tool", "function")


@dataclass(frozen=True, slots=True)
class Seen:
    """A value that was needed, and whether it was there."""

    run: str
    use: LateUse
    there: bool


@dataclass(frozen=True, slots=True)
class Result:
    """All late uses of all runs in one configuration."""

    seen: Sequence[Seen]
    errors: Sequence[str] = ()
    summary_calls: int = 0

    @property
    def share(self) -> float:
        return sum(one.there for one in self.seen) / max(1, len(self.seen))

    @property
    def misses(self) -> list[Seen]:
        return [one for one in self.seen if not one.there]


def instructions_tokens(run: Run) -> int:
    """System messages and tool schemas of a run."""
    return COUNTER.count_request(run.instructions, tools=run.tools)


async def measure(variant: Variant, played: Sequence[Run], *, room_tokens: int, summaries: str) -> Result:
    """Replay runs.

    Args:
        room_tokens: of the window, what is left beside the instructions.

    Raises:
        NotThere: the gateway does not know the variant.
    """
    model = ScriptedModel(summaries=SUMMARIES[summaries])
    windows = {run.name: instructions_tokens(run) + room_tokens for run in played}
    models = {name: {"provider": "upstream", "context_window": window} for name, window in windows.items()}
    seen: list[Seen] = []
    errors: list[str] = []
    async with talking(model, variant, models=models) as client:
        for run in played:
            await _replay(client, model, run, seen, errors)
    return Result(seen, errors, len(model.summary_calls))


def keep_newest(played: Sequence[Run], *, room_tokens: int) -> Result:
    """What the newest messages that fit would have held, instructions kept."""
    seen = []
    for run in played:
        limit = (instructions_tokens(run) + room_tokens) * KEPT_SHARE - instructions_tokens(run)
        for use in run.late_uses:
            kept = newest(run.messages[len(run.instructions) : use.used_at], limit)
            seen.append(Seen(run.name, use, use.value in all_text([*run.instructions, *kept])))
    return Result(seen)


def newest(messages: Sequence[Message], limit_tokens: float) -> Sequence[Message]:
    """The last messages within a limit, without results whose calls are left out."""
    first = len(messages)
    for at in reversed(range(len(messages))):
        limit_tokens -= COUNTER.count_message(messages[at])
        if limit_tokens < 0:
            break
        first = at
    while first < len(messages) and messages[first]["role"] in RESULT_ROLES:
        first += 1
    return messages[first:]


def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, default=FOLDER, help="the folder of recordings (default ../shared/eval)")
    parser.add_argument("--room", type=int, nargs="+", default=[ROOM_TOKENS], help="tokens beside the instructions")
    parser.add_argument("--summaries", choices=SUMMARIES, nargs="+", default=list(SUMMARIES))
    parser.add_argument("--policies", nargs="+", default=["additive"])
    parser.add_argument("--recall", choices=("off", "quote", "tool"), help="instead of the policies' own")
    parser.add_argument(
        "--half", choices=HALVES, help="only runs at even or odd places: one half to look at, one to report"
    )
    parser.add_argument("--all", action="store_true", help="replay runs without late uses too, for their errors")
    parser.add_argument("--misses", action="store_true", help="list the values that were not there")


async def run(options: Namespace, console: Console) -> dict[str, Any]:
    recorded = runs(options.data)
    half = recorded[HALVES.index(options.half) :: 2] if options.half else recorded
    played = [one for one in half if one.late_uses or options.all]
    sizes = sorted(instructions_tokens(one) for one in played)
    console.print(f"{len(played)} runs; instructions take {sizes[0]:,} to {sizes[-1]:,} tokens")
    results: dict[str, Any] = {}
    for room in options.room:
        results[f"{room}, keep newest"] = _facts(keep_newest(played, room_tokens=room))
        for policy in options.policies:
            variant = Variant(policy, policy=policy, changes={"recall": options.recall} if options.recall else {})
            for summaries in options.summaries:
                try:
                    result = await measure(variant, played, room_tokens=room, summaries=summaries)
                except NotThere as error:
                    console.print(f"{policy} is not there: {str(error).splitlines()[-1]}", markup=False)
                    break
                results[f"{room}, {policy}, {summaries} summaries"] = _facts(result)
    console.print(_table(results))
    for name, facts in results.items():
        for told in facts["errors"][:3]:
            console.print(f"{name}: {told}"[:300], markup=False)
        for miss in facts["misses"] if options.misses else ():
            console.print(f"{name}: {miss}", markup=False, highlight=False)
    return results


async def _replay(client: Client, model: ScriptedModel, run: Run, seen: list[Seen], errors: list[str]) -> None:
    due = {use.used_at for use in run.late_uses}
    fields: dict[str, Any] = {"tools": run.tools} if run.tools else {}
    for at in run.requests():
        asked = await client.ask(run.messages[:at], place=at, tenant=run.name, model=run.name, **fields)
        if asked.status != 200:
            errors.append(f"{run.name} at {at}: {asked.status} {asked.body}")
        if at in due:
            reached = all_text(model.answers[-1].messages) if asked.status == 200 else ""
            seen += (Seen(run.name, use, use.value in reached) for use in run.late_uses if use.used_at == at)
        await at_rest(model)


def _facts(result: Result) -> dict[str, Any]:
    return {
        "share": result.share,
        "uses": len(result.seen),
        "summary_calls": result.summary_calls,
        "errors": list(result.errors),
        "misses": [f"{one.run} at {one.use.used_at}: {one.use.value}" for one in result.misses],
    }


def _table(results: dict[str, Any]) -> Table:
    table = Table("tokens beside the instructions", "values there", "of", "summary calls", "errors")
    for name, facts in results.items():
        counted = (str(facts["uses"]), str(facts["summary_calls"]), str(len(facts["errors"])))
        table.add_row(name, f"{facts['share']:.3f}", *counted)
    return table
