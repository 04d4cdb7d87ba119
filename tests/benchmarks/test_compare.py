"""The comparison with other gateways: its provider refuses what a real one refuses, and its page is written whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.benchmarks.compare.charts import SCHEMES, Bar, render_chart
from tests.benchmarks.compare.conversations import CONCERTINA, FACTS_WINDOW, NO_GATEWAY, ask_facts, hold_growth
from tests.benchmarks.compare.model import count_orphans
from tests.benchmarks.compare.page import BEGIN, END, update_page
from tests.benchmarks.peers import PEERS, Place
from tests.benchmarks.quality.monologues import build_talk

TURNS_OVER_THE_WINDOW = 32
ASKED = {"role": "user", "content": "Look it up."}


def call(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"id": one, "type": "function"} for one in ids]}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "found"}


@pytest.mark.parametrize(
    ("messages", "orphans"),
    [
        ([ASKED, call("a"), result("a")], 0),
        ([ASKED, call("a", "b"), result("b"), result("a"), ASKED], 0),
        ([ASKED, call("a", "b"), result("b"), ASKED], 1),
        ([ASKED, call("a")], 1),
        ([result("a"), ASKED], 1),
        ([ASKED, call("a"), result("a"), result("a")], 1),
        ([ASKED, call("a"), ASKED, result("a")], 2),
    ],
)
def test_calls_without_results_and_results_without_calls_are_counted(
    messages: list[dict[str, Any]], orphans: int
) -> None:
    assert count_orphans(messages) == orphans


async def test_without_a_gateway_the_provider_refuses_what_is_over_the_window() -> None:
    figures = await hold_growth(NO_GATEWAY, turns=TURNS_OVER_THE_WINDOW, seed=1)
    assert 0 < figures["failed_requests"] == figures["refused_by_provider"] < figures["requests"]
    assert figures["summary_calls"] == figures["stalled_turns"] == figures["orphans"] == 0
    assert figures["stable_prefix"] == 1.0


async def test_through_concertina_nothing_is_refused_and_summaries_are_counted() -> None:
    figures = await hold_growth(CONCERTINA, turns=TURNS_OVER_THE_WINDOW, seed=1)
    assert figures["failed_requests"] == figures["refused_by_provider"] == figures["orphans"] == 0
    assert figures["summary_calls"] > 0


async def test_facts_are_within_reach_of_concertina_and_out_of_reach_without_a_gateway() -> None:
    talk = build_talk(1, facts=8, manners=(("shop", 4, (200, 480)), ("work", 16, (700, 1_300))))
    assert talk.tokens > FACTS_WINDOW
    ours, none = await ask_facts(CONCERTINA, talk), await ask_facts(NO_GATEWAY, talk)
    assert ours["failed_requests"] == 0
    assert ours["share"] > 0.5 > none["share"]


def test_a_chart_is_xml_in_both_schemes_and_its_longest_bar_takes_the_width() -> None:
    bars = [Bar("one & two", 1, "1 <ms>"), Bar(CONCERTINA, 4, "4 ms", is_ours=True)]
    for scheme in SCHEMES:
        drawn = ET.fromstring(render_chart("Time", "less is better", bars, scheme))
        widths = [float(one.attrib["width"]) for one in drawn.iter("{http://www.w3.org/2000/svg}rect")]
        assert widths[1] == pytest.approx(4 * widths[0], rel=0.01)


def test_the_page_changes_between_its_marks_only(tmp_path: Path) -> None:
    page = tmp_path / "comparison.md"
    page.write_text(f"# Facts\n\n{BEGIN}\nold figures\n{END}\n\n[link]: x\n")
    machine = {"at": "2026-11-24T00:00:00", "processor": "a processor", "cores": 2, "python": "3.11"}
    facts = {
        CONCERTINA: [{"share": 0.9, "prompt_tokens": 3000, "summary_calls": 7, "failed_requests": 0, "requests": 9}]
    }
    overhead = {"gateway sqlite": {"json_us": 800.0}, "pass": {"json_us": 200.0}}
    results = {"machine": machine, "versions": {CONCERTINA: "1"}, "turns": 3, "failures": {"portkey": "no npm"}}
    update_page(page, tmp_path, {**results, "facts": facts, "overhead": overhead})
    text = page.read_text()
    assert text.startswith("# Facts\n")
    assert text.endswith("[link]: x\n")
    assert "old figures" not in text
    assert "| **concertina** | 90% | 0% | 3,000 | 7 | 0 of 9 |" in text
    assert "| **concertina** | 0.80 |" in text
    assert "- portkey: no npm" in text
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == [
        f"compare-{name}-{scheme}.svg" for name in ("cpu", "facts") for scheme in ("dark", "light")
    ]
    page.write_text("# No marks\n")
    with pytest.raises(ValueError, match="measured: begin"):
        update_page(page, tmp_path, results)


@pytest.mark.parametrize("name", PEERS)
def test_each_gateway_is_pinned_and_told_its_port_upstream_and_window(name: str, tmp_path: Path) -> None:
    peer = PEERS[name]
    if peer.registry:
        assert peer.version[0].isdigit()
    command = " ".join(peer.build_command(Place("/bin/program", tmp_path, 7001, 7002, 8192)))
    told = command + "".join(path.read_text() for path in tmp_path.iterdir()) + str(peer.headers("127.0.0.1:7002/v1"))
    assert "7001" in told
    assert "7002" in told
    assert ("8192" in told) == (peer.compacts and name != "headroom")
