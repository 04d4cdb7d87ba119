"""Claude Code, as npm installs it, works through a gateway in front of providers of the Messages API and of chat.

A scripted model makes it run commands, each of which prints a file with one planted fact and text around it. What it
sent and got is seen in its exit code, in the requests that the model got, and in the gateway's log.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from app.conversation.conversation_types import Conversation
from app.dialects.item_decoding import decode_item
from tests.integrations.pages import WRITTEN_ADDRESS, Page
from tests.integrations.scripted_agent import (
    ScriptedAgent,
    ScriptedMessagesAgent,
    estimate_tokens,
    find_facts,
    plant_facts,
)
from tests.live import DONE, Reply, ScriptedUpstream, chunk, stream, usage_chunk
from tests.node.packages import node_with_packages
from tests.support.gateway import read_now
from tests.support.messages_world import (
    Block,
    MessagesUpstream,
    MessagesWorld,
    messages_world,
    text,
    thinking,
    tool_use,
)

PAGE: Final = Page("claude-code")
PACKAGE: Final = Path(__file__).parent / "claude_code"
CLAUDE_SECONDS: Final = 100
WINDOW: Final = 32_768
FINAL: Final = "Answer {}: All commands are done, and each of the files has told its fact to you."
QUESTION: Final = "Which facts do you know?"
PROVIDERS: Final = ("native", "chat")


@pytest.fixture(scope="session")
def claude() -> str:
    """The command that starts Claude Code."""
    node_with_packages(PACKAGE)
    return str(PACKAGE / "node_modules" / ".bin" / "claude")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_claude_code_runs_twenty_commands(provider: str, claude: str, tmp_path: Path) -> None:
    facts = plant_facts(tmp_path, count=20, words=20)
    agent, upstream = make_upstream(provider, tmp_path, len(facts))
    async with messages_world(upstream, window=WINDOW) as w:
        await run_claude(claude, tmp_path, w, "Read all files.")
        await run_claude(claude, tmp_path, w, QUESTION, "--continue")
        assert agent.made_calls == 20
        assert find_facts(json.dumps(await read_results(w))) == facts
        assert find_facts(json.dumps(agent.views[-1])) == facts
        if isinstance(upstream, MessagesUpstream):
            assert upstream.refusals == []
            assert len(upstream.signatures) == 20
            assert find_signatures(await w.raw_log()) == upstream.signatures
            assert find_signatures(upstream.bodies[-1:]) == upstream.signatures


@pytest.mark.timeout(240)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_claude_code_outgrows_the_window_three_times(provider: str, claude: str, tmp_path: Path) -> None:
    facts = plant_facts(tmp_path, count=44, words=1100)
    agent, upstream = make_upstream(provider, tmp_path, len(facts))
    async with messages_world(upstream, window=WINDOW) as w:
        await run_claude(claude, tmp_path, w, "Read all files.")
        await run_claude(claude, tmp_path, w, QUESTION, "--continue")
        results = await read_results(w)
        signatures = find_signatures(await w.raw_log())
    if isinstance(upstream, MessagesUpstream):
        assert signatures == upstream.signatures
        assert all("prompt is too long" in refusal for refusal in upstream.refusals)
    assert agent.made_calls == len(facts)
    assert sum(map(estimate_tokens, results)) > 3 * WINDOW
    assert find_facts(json.dumps(results)) == facts
    assert len(agent.summarized) >= 3
    assert QUESTION in json.dumps(agent.views[-1])
    assert sorted(find_facts(json.dumps(agent.views[-1]))) == sorted(facts)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_its_own_compaction_does_not_lose_the_conversation(provider: str, claude: str, tmp_path: Path) -> None:
    facts = plant_facts(tmp_path, count=6, words=200)
    agent, upstream = make_upstream(provider, tmp_path, len(facts))
    async with messages_world(upstream, window=WINDOW) as w:
        await run_claude(claude, tmp_path, w, "Read all files.")
        await run_claude(claude, tmp_path, w, "/compact", "--continue")
        await run_claude(claude, tmp_path, w, QUESTION, "--continue")
        await run_claude(claude, tmp_path, w, "Is that all?", "--continue")
        conversation = find_conversation(w, QUESTION)
        log = await w.log(conversation.id)
        roots = {one.root for one in w.conversations()}
    assert len(agent.checkpoints) == 1
    assert find_facts(json.dumps([message for message in log if message["role"] == "tool"])) == facts
    assert find_facts(json.dumps(agent.views[-1])) == facts
    assert roots == {conversation.root}


@pytest.mark.timeout(240)
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_sub_agents_stay_apart(provider: str, claude: str, tmp_path: Path) -> None:
    facts = plant_facts(tmp_path, count=3, words=20)
    model = Team(tmp_path)
    upstream = model.make_upstream(provider)
    async with messages_world(upstream, window=WINDOW) as w:
        printed = await run_claude(claude, tmp_path, w, "Ask your agents.")
        conversations = w.conversations()
        logs = [await w.log(conversation.id) for conversation in conversations]
    assert printed.strip() == "All is known."
    assert [conversation.lineage for conversation in conversations] == [()] * 4
    results = [[message for message in log if message["role"] == "tool"] for log in logs]
    # The two agents that are sent out at once may come in either order.
    found = sorted(sorted(find_facts(json.dumps(one))) for one in results)
    assert found == sorted([facts, *[[fact] for fact in facts]])


class Team:
    """A model that sends out two agents at once, each of which reads a file, and then a third one, whose task has what
    the first two have said."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def make_upstream(self, provider: str) -> ScriptedUpstream:
        if provider == "native":
            return MessagesUpstream(default=lambda body: [thinking(), *self._choose_blocks(body["messages"])])
        return ScriptedUpstream(default=lambda body: make_reply(self._choose_blocks(body["messages"])))

    def _choose_blocks(self, messages: Sequence[dict[str, Any]]) -> list[Block]:
        asked = json.dumps(messages[0] if messages[0]["role"] == "user" else messages[1])
        told = json.dumps([one for one in messages if one["role"] in ("user", "tool")][1:])
        if found := re.search(r"Read file (\d)", asked):
            if facts := find_facts(told):
                return [text(f"I have read the file, and this is all that it has to say to us: {facts[0]}.")]
            return [tool_use(f"toolu_read_{found[1]}", "Bash", command=f"cat {self._folder}/file-{found[1]}.txt")]
        known = find_facts(told)
        if len(known) == 3:
            return [text("All is known.")]
        tasks = [3] if known else [1, 2]
        suffix = f" The others said: {told}" if known else ""
        return [
            tool_use(
                f"toolu_agent_{number}",
                "Agent",
                description="Read",
                prompt=f"Read file {number}.{suffix}",
                subagent_type="general-purpose",
            )
            for number in tasks
        ]


def make_reply(blocks: Sequence[Block]) -> Reply:
    """A streamed chat answer of a text, or of tool calls."""
    if blocks[0]["type"] == "text":
        return stream(blocks[0]["text"])
    calls = [
        {
            "index": index,
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
        }
        for index, block in enumerate(blocks)
    ]
    delta = {"role": "assistant", "content": None, "tool_calls": calls}
    return Reply(pieces=[chunk(delta), chunk({}, "tool_calls"), usage_chunk(), DONE])


def make_upstream(provider: str, folder: Path, count: int) -> tuple[ScriptedAgent, ScriptedUpstream]:
    commands = [f"cat {folder}/file-{number}.txt" for number in range(1, count + 1)]
    if provider == "chat":
        agent = ScriptedAgent(commands, make_command, FINAL)
        return agent, ScriptedUpstream(default=agent)
    messages_agent = ScriptedMessagesAgent(commands, make_command, FINAL)
    return messages_agent, MessagesUpstream(default=messages_agent, window=WINDOW)


def make_command(command: str) -> tuple[str, dict[str, str]]:
    return "Bash", {"command": command}


async def run_claude(claude: str, folder: Path, gateway: MessagesWorld, prompt: str, *arguments: str) -> str:
    """Runs `claude --print` in `folder` as the page sets it up, with nothing of this machine's configuration. Returns
    what it prints."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    (shown,) = PAGE.blocks("bash")
    written = dict(re.findall(r'^export (\w+)="?(.*?)"?$', shown, re.MULTILINE))
    assert (written["ANTHROPIC_BASE_URL"], written["ANTHROPIC_MODEL"]) == (WRITTEN_ADDRESS, "sim-32k")
    own = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "ANTHROPIC_BASE_URL": gateway.base_url.removesuffix("/v1"),
        "ANTHROPIC_MODEL": "agent",
        "IS_SANDBOX": "1",
    }
    options = ("--print", "--dangerously-skip-permissions", *arguments)
    process = await asyncio.create_subprocess_exec(
        claude,
        *options,
        prompt,
        cwd=folder,
        env={**written, **own},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), CLAUDE_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    printed = output.decode()
    assert process.returncode == 0, printed[-4000:]
    return printed


def find_conversation(gateway: MessagesWorld, words: str) -> Conversation:
    """The only conversation with a message that has these words."""
    (found,) = [one for one in gateway.conversations() if words in str(read_now(gateway.log(one.id)))]
    return found


async def read_results(gateway: MessagesWorld) -> list[str]:
    """The results of calls that the log has, in order. There is one conversation."""
    return [item.text for item in map(decode_item, await gateway.raw_log()) if item.role == "tool"]


def find_signatures(raws: Sequence[bytes]) -> list[str]:
    """The signatures of thinking in JSON texts, in order."""
    return [found.decode() for raw in raws for found in re.findall(rb'"signature":\s*"([^"]*)"', raw)]
