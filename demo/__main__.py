"""`make demo`: a conversation of sixty turns at a window of 8k, and proof that nothing of it is lost."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

from openai import OpenAI, OpenAIError

from demo.processes import Running, gateway
from demo.screen import Screen, is_right
from demo.script import SYSTEM, Turn, conversation
from demo.stored import read
from demo.talk import Answer, Client

WINDOW = 8_192
THRESHOLD = int(0.7 * WINDOW)
ALL_TURNS, QUICK_TURNS = 60, 24
PACE_SECONDS = 0.3
SUMMARY_SECONDS = 1.2
"""How long the simulated model takes for a summary when somebody watches."""
INTERRUPTED = 130


def main() -> int:
    """Run the demo.

    Returns:
        0 when every turn was answered, every probe was right and every message is stored.
    """
    arguments = _parser().parse_args()
    screen = Screen(WINDOW, THRESHOLD)
    watched = screen.is_live and not arguments.fast
    turns = conversation(QUICK_TURNS if arguments.quick else ALL_TURNS)
    with (
        tempfile.TemporaryDirectory(prefix="concertina-demo-") as folder,
        gateway(Path(folder), summary_seconds=SUMMARY_SECONDS if watched else 0.0) as running,
    ):
        screen.title(running.base_url, len(turns))
        return _run(running, turns, screen, pace_seconds=arguments.pace if watched else 0.0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_TURNS} turns instead of {ALL_TURNS}")
    parser.add_argument("--fast", action="store_true", help="no pauses")
    parser.add_argument("--pace", type=float, default=PACE_SECONDS, help="seconds between turns on a terminal")
    return parser


def _run(running: Running, turns: list[Turn], screen: Screen, *, pace_seconds: float) -> int:
    openai = OpenAI(base_url=running.base_url, api_key="sk-demo-client", max_retries=0)
    client = Client(openai, [{"role": "system", "content": SYSTEM}])
    done: list[tuple[Turn, Answer]] = []
    try:
        for turn in turns:
            _take(turn, client, done, running, screen)
            time.sleep(pace_seconds)
        return _conclude(running, client, done, screen)
    except OpenAIError as error:
        screen.text(f"turn {len(done) + 1} failed: {error}")
        return 1
    finally:
        openai.close()


def _take(turn: Turn, client: Client, done: list[tuple[Turn, Answer]], running: Running, screen: Screen) -> None:
    """One turn: every other one streamed."""
    streamed = turn.number % 2 == 0
    answer = client.ask(turn.text, stream=streamed, on_event=screen.event)
    screen.turn(turn, answer, streamed=streamed)
    if answer.compacted:
        newest = asyncio.run(read(running.database_url, answer.conversation_id)).chunks[-1]
        screen.compaction(newest, done[-1][1].prompt_tokens if done else 0, answer)
    done.append((turn, answer))


def _conclude(running: Running, client: Client, done: list[tuple[Turn, Answer]], screen: Screen) -> int:
    """The stored history in full, the sums, the verdict."""
    conversation_id = done[-1][1].conversation_id
    kept = asyncio.run(read(running.database_url, conversation_id))
    is_whole = kept.holds(client.messages[1:])
    screen.view(client.show_view(conversation_id))
    instructions = done[0][1].prompt_tokens - kept.log[0].tokens
    full = [instructions + entry.tokens_total for entry in kept.log if entry.message.role == "user"]
    screen.sums(done, full, stored=len(kept.log), is_whole=is_whole)
    return 0 if is_whole and all(is_right(turn, answer) for turn, answer in done) else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
