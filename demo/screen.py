"""What is seen: a bar for each turn, a panel for each compaction, probes with their verdict, the sums at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from app.conversation.conversation_types import Summary
from demo.script import Turn
from demo.talk import Answer

BAR_CELLS = 48
PLAIN_WIDTH = 120
STYLES = {"full": "green", "summarized": "yellow", "trimmed": "magenta"}


class Screen:
    """Prints as things happen. Without a terminal the same lines come out plain."""

    def __init__(self, window: int, threshold: int) -> None:
        console = Console(highlight=False)
        self.console = console if console.is_terminal else Console(highlight=False, width=PLAIN_WIDTH)
        self._window = window
        self._threshold = threshold

    @property
    def is_live(self) -> bool:
        return self.console.is_terminal

    def title(self, base_url: str, turns: int) -> None:
        self.console.rule("[bold]Concertina")
        self.console.print(
            f"{turns} turns through {base_url} with a window of {self._window:,} tokens. Each bar is what the model "
            f"was sent. The line │ is the compaction threshold: {self._threshold:,} tokens, then more, because no "
            "compaction frees what the user said and what is quoted.\n"
        )

    def event(self, event: Mapping[str, Any]) -> None:
        """Progress of a compaction, as the stream tells it while the answer waits."""
        if event["type"] == "compaction_started":
            facts = f"{event['input_tokens']:,} tokens would be sent"
        else:
            facts = f"after {event['duration_ms']:,} ms"
        self.console.print(Text(f"     ⋯ {event['type']}: {facts}", style="bright_blue"))

    def turn(self, turn: Turn, answer: Answer, *, streamed: bool) -> None:
        style = STYLES.get(answer.status, "red")
        line = Text(f"{turn.number:4d} ")
        line.append_text(self._bar(answer.prompt_tokens, answer.context["compacts_above"], style))
        line.append(f" {answer.prompt_tokens:6,d} ")
        line.append(f"{answer.status:11s}", style=style)
        line.append("stream " if streamed else "       ", style="dim")
        line.append(turn.topic, style="dim")
        self.console.print(line, no_wrap=True, overflow="ellipsis")
        if turn.expected is not None:
            self._probe(turn.question, turn.expected, answer.text)

    def compaction(self, chunk: Summary, before_tokens: int, answer: Answer) -> None:
        """A summary that has just been made: what it covers, what that gained, and how it begins."""
        title = (
            f"compaction {len(answer.context['summaries'])}: messages {chunk.from_seq}-{chunk.to_seq - 1}, "
            f"{before_tokens:,} → {answer.prompt_tokens:,} tokens, summary of {chunk.tokens}"
        )
        excerpt = "\n".join([*chunk.text.splitlines()[:4], "…"])
        self.console.print(Panel(Text(excerpt, style="dim"), title=title, title_align="left", border_style="yellow"))

    def sums(
        self, turns: Sequence[tuple[Turn, Answer]], full_tokens: Sequence[int], *, stored: int, is_whole: bool
    ) -> None:
        """The summary table.

        Args:
            full_tokens: what each turn would take with the full history.
            stored: messages in the database; `is_whole` says that they are those of the conversation.
        """
        sent = [answer.prompt_tokens for _, answer in turns]
        probes = [(turn, answer) for turn, answer in turns if turn.is_probe]
        right = sum(is_right(turn, answer) for turn, answer in probes)
        beyond = next((at for at, full in enumerate(full_tokens, 1) if full > self._window), None)
        verdict = "every one as it was said" if is_whole else "SOME ARE MISSING"
        table = Table(title="In the end", title_justify="left", show_header=False)
        table.add_row("prompt tokens sent to the model", f"{sum(sent):,}, at most {max(sent):,} in a turn")
        table.add_row("with the full history each turn", f"{sum(full_tokens):,}, {max(full_tokens):,} in the last turn")
        if beyond is not None:
            table.add_row("without a gateway", f"refused from turn {beyond} on: the window is full")
        table.add_row("compactions", str(sum(answer.compacted for _, answer in turns)))
        table.add_row("probes answered right", f"{right} of {len(probes)}")
        table.add_row("messages in the database", f"{stored}, {verdict}")
        self.console.print(table)

    def view(self, view: Mapping[str, Any]) -> None:
        """What would be sent now: what becomes of each message of the log."""
        self.console.print(
            f"\nGET …/conversations/{view['conversation_id']}/context: {view['status']}, "
            f"{view['prompt_tokens']:,} tokens of {view['limit']:,}"
        )
        table = Table(title="The log, every message of it", title_justify="left", expand=True)
        for name, width in (("seq", 4), ("role", 9), ("tokens", 6), ("sent", 6), ("as", 15)):
            table.add_column(name, no_wrap=True, width=width)
        table.add_column("text", no_wrap=True, overflow="ellipsis", ratio=1)
        for message in view["messages"]["data"]:
            numbers = (str(message[name]) for name in ("seq", "role", "tokens", "shown_tokens"))
            sent_as = f"in {message['summary_id'][:12]}" if message["summary_id"] else message["disposition"]
            table.add_row(*numbers, sent_as + (" + quoted" if message["quoted"] else ""), Text(message["text"]))
        self.console.print(table)

    def text(self, text: str) -> None:
        self.console.print(Text(text.rstrip()))

    def _bar(self, tokens: int, threshold: int, style: str) -> Text:
        filled = min(BAR_CELLS, round(BAR_CELLS * tokens / self._window))
        line = min(BAR_CELLS - 1, round(BAR_CELLS * threshold / self._window))
        cells = "█" * filled + "·" * (BAR_CELLS - filled)
        bar = Text(f"{cells[:line]}│{cells[line + 1 :]}", style="dim")
        bar.stylize(f"not dim {style}", 0, filled)
        bar.stylize("not dim bold red", line, line + 1)
        return bar

    def _probe(self, question: str, expected: str, said: str) -> None:
        right = expected in said
        line = Text("     ")
        line.append("✓ " if right else "✗ ", style="bold green" if right else "bold red")
        line.append(question, style="bold")
        line.append(f"  expected {expected!r}, answered: ", style="dim")
        line.append(said)
        self.console.print(line)


def is_right(turn: Turn, answer: Answer) -> bool:
    """Whether the answer to a probe contains the fact that was asked for."""
    return turn.expected is None or turn.expected in answer.text
