"""Codex, as npm installs it and as its page sets it up, works through a gateway in front of a chat provider.

A scripted model makes it run commands, each of which prints a file with one planted fact and text around it. What Codex
sent and got is seen in its exit code, in the requests that the model got, and in the gateway's log.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from tests.integrations.pages import WRITTEN_ADDRESS, Page
from tests.integrations.scripted_agent import ScriptedAgent, estimate_tokens, find_facts, plant_facts
from tests.live import DONE, DROP, Reply, ScriptedUpstream, chunk, serving, stream, usage_chunk
from tests.node.packages import node_with_packages
from tests.support.gateway import World, world
from tests.support.responses_upstream import ResponsesUpstream, function_call_item, reasoning_item, respond, text_item

PAGE: Final = Page("codex")
WRITTEN_MODEL: Final = 'model = "sim-8k"'
PACKAGE: Final = Path(__file__).parent / "codex"
CODEX_SECONDS: Final = 100
WINDOW: Final = 32_768
PATCHING_MODEL: Final = "gpt-5.5"
"""A model of which Codex knows that it takes `apply_patch` as a custom tool."""
QUESTION: Final = "Which facts do you know?"


@pytest.fixture(scope="session")
def codex() -> list[str]:
    """The command that starts Codex."""
    node = node_with_packages(PACKAGE)
    return [node, str(PACKAGE / "node_modules" / "@openai" / "codex" / "bin" / "codex.js")]


@pytest.mark.timeout(240)
async def test_codex_runs_thirty_commands(codex: list[str], tmp_path: Path) -> None:
    facts = plant_facts(tmp_path, count=30, words=20)
    agent = make_agent(tmp_path, len(facts))
    async with world(ScriptedUpstream(default=agent), window=WINDOW) as w:
        await run_codex(codex, tmp_path, w, "Read all files.")
        await run_codex(codex, tmp_path, w, QUESTION, "resume", "--last")
        assert agent.made_calls == 30
        assert agent.summarized == []
        assert find_facts(json.dumps(agent.views[-1])) == facts
        assert find_facts(json.dumps(await read_tool_outputs(w))) == facts


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("own_threshold", "is_own_first"),
    [
        pytest.param(16_000, True, id="codex compacts first"),
        pytest.param(900_000, False, id="the gateway compacts first"),
    ],
)
async def test_codex_outgrows_the_window_three_times(
    own_threshold: int, is_own_first: bool, codex: list[str], tmp_path: Path
) -> None:
    facts = plant_facts(tmp_path, count=44, words=1100)
    agent = make_agent(tmp_path, len(facts))
    limits = ["-c", f"model_auto_compact_token_limit={own_threshold}"]
    async with world(ScriptedUpstream(default=agent), window=WINDOW) as w:
        await run_codex(codex, tmp_path, w, "Read all files.", *limits)
        await run_codex(codex, tmp_path, w, QUESTION, "resume", "--last", *limits)
        outputs = await read_tool_outputs(w)
    assert agent.made_calls == len(facts)
    assert sum(map(estimate_tokens, outputs)) > 3 * WINDOW
    assert find_facts(json.dumps(outputs)) == facts
    if is_own_first:
        assert len(agent.checkpoints) >= 3
        assert agent.summarized == []
    else:
        assert agent.checkpoints == []
        assert len(agent.summarized) >= 3
    assert max(estimate_tokens(view) for view in agent.views) < WINDOW
    assert QUESTION in json.dumps(agent.views[-1])
    assert sorted(find_facts(json.dumps(agent.views[-1]))) == sorted(facts)


@pytest.mark.timeout(240)
async def test_codex_leaves_its_compactions_to_a_provider_named_openai(codex: list[str], tmp_path: Path) -> None:
    facts = plant_facts(tmp_path, count=44, words=1100)
    agent = make_agent(tmp_path, len(facts))
    limits = ["-c", "model_auto_compact_token_limit=16000", "-c", 'model_providers.gateway.name="OpenAI"']
    received: list[dict[str, Any]] = []
    async with world(ScriptedUpstream(default=agent), window=WINDOW) as w:
        async with recording(w, received) as address:
            await run_codex(codex, tmp_path, w, "Read all files.", *limits, address=address)
            await run_codex(codex, tmp_path, w, QUESTION, "resume", "--last", *limits, address=address)
        outputs = await read_tool_outputs(w)
    triggers = [body for body in received if {"type": "compaction_trigger"} in body["input"]]
    assert len(triggers) >= 3
    assert agent.checkpoints == [], "Codex does not summarize by itself"
    assert find_facts(json.dumps(outputs)) == facts, "one conversation has it all, each message once"
    for body in received[received.index(triggers[0]) + 1 :]:
        assert sum(item["type"] == "compaction" for item in body["input"]) <= 1
    assert len(agent.summarized) >= 3
    assert max(estimate_tokens(view) for view in agent.views) < WINDOW
    last = json.dumps(agent.views[-1])
    assert QUESTION in last
    assert sorted(find_facts(last)) == sorted(facts)


@pytest.mark.timeout(120)
async def test_equal_threads_stay_two_conversations(codex: list[str], tmp_path: Path) -> None:
    """Two threads have the same words and the same answers. Each continues when it is resumed."""
    async with world(ScriptedUpstream(default=ScriptedAgent([], make_command)), window=WINDOW) as w:
        threads = await asyncio.gather(*[run_codex(codex, tmp_path, w, "Hello.") for _ in range(2)])
        for name, thread in zip("AB", threads, strict=True):
            await run_codex(codex, tmp_path, w, f"Is this {name}?", "resume", thread)
        logs = [str(await w.log(conversation.id)) for conversation in w.conversations()]
    assert len(set(threads)) == len(logs) == 2
    for log in logs:
        assert [log.count(text) for text in ("'Hello.'", ScriptedAgent.FINAL)] == [1, 2]
    assert sorted([("Is this A?" in log, "Is this B?" in log) for log in logs]) == [(False, True), (True, False)]


@pytest.mark.timeout(120)
async def test_codex_uses_parallel_calls_a_custom_tool_and_a_tool_that_fails(codex: list[str], tmp_path: Path) -> None:
    facts = plant_facts(tmp_path, count=2, words=20)
    patch = "*** Begin Patch\n*** Add File: new.txt\n+FACT-9 is new-9\n*** End Patch\n"
    steps = [
        [call_command(f"cat {tmp_path}/file-1.txt", "call_1"), call_command(f"cat {tmp_path}/file-2.txt", "call_2")],
        [call_custom_tool("apply_patch", patch, "call_3")],
        [call_custom_tool("apply_patch", "no patch", "call_4"), call_command("cat missing.txt; exit 3", "call_5")],
        [call_command("cat new.txt", "call_6")],
    ]
    replies = [stream_calls(*calls) for calls in steps]
    upstream = ScriptedUpstream(*replies, stream(ScriptedAgent.FINAL))
    async with world(upstream, window=WINDOW) as w:
        await run_codex(codex, tmp_path, w, "Read and write.", "-m", PATCHING_MODEL)
        outputs = await read_tool_outputs(w)
    assert (tmp_path / "new.txt").read_text() == "FACT-9 is new-9\n"
    assert find_facts(json.dumps(outputs)) == [*facts, "FACT-9 is new-9"]
    assert len(outputs) == 6
    assert "exited with code 3" in json.dumps(outputs)
    assert "verification failed" in json.dumps(outputs)
    shown = [message for message in upstream.requests[-1]["messages"] if message["role"] in ("assistant", "tool")]
    assert [message["role"] for message in shown] == [
        *["assistant", "tool", "tool", "assistant", "tool"],
        *["assistant", "tool", "tool", "assistant", "tool"],
    ]
    assert shown[3]["tool_calls"] == steps[1]


@pytest.mark.timeout(120)
async def test_codex_tries_again_after_streams_that_break_off(codex: list[str], tmp_path: Path) -> None:
    plant_facts(tmp_path, count=2, words=20)
    call = call_command(f"cat {tmp_path}/file-1.txt", "call_1")
    half_call = {**call, "function": {**call["function"], "arguments": '{"cmd": "cat'}}
    patch = call_custom_tool("apply_patch", "*** Begin Patch\n*** Delete File: file-1.txt\n", "call_0")
    upstream = ScriptedUpstream(
        *[break_off(stream_calls(one)) for one in (half_call, patch)],
        stream_calls(call),
        break_off(stream("Almost all", " commands")),
        *[stream(ScriptedAgent.FINAL)] * 2,
    )
    async with world(upstream, window=WINDOW) as w:
        await run_codex(codex, tmp_path, w, "Read all files.", "-m", PATCHING_MODEL, reconnects=True)
        await run_codex(codex, tmp_path, w, QUESTION, "resume", "--last", "-m", PATCHING_MODEL)
        newest = max(w.conversations(), key=lambda conversation: str(conversation.updated_at))
        entries = await w.store.read_log(newest, 0, newest.head_seq + 1)
    # What broke off was neither run nor kept: the log has each message once, and the patch has deleted no file.
    assert (tmp_path / "file-1.txt").exists()
    assert len(upstream.requests) == 6
    assert [entry.message.role for entry in entries] == [
        *["user", "user", "assistant", "tool", "assistant", "user", "assistant"]
    ]
    assert not any(entry.incomplete for entry in entries)
    assert len(w.conversations()) == 4, "each answer that broke off stays in a branch or conversation of its own"


@pytest.mark.timeout(120)
async def test_a_responses_provider_gets_its_items_back(codex: list[str], tmp_path: Path) -> None:
    facts = plant_facts(tmp_path, count=3, words=20)
    commands = [json.dumps({"cmd": f"cat {tmp_path}/file-{number}.txt"}) for number in (1, 2, 3)]
    first, second, third = [function_call_item("exec_command", one, f"call_{i}") for i, one in enumerate(commands)]
    upstream = ResponsesUpstream(
        respond(reasoning_item("Two at once."), first, second),
        respond(reasoning_item("And the last."), text_item("One more."), third),
        respond(ScriptedAgent.FINAL),
        respond(reasoning_item("Easy."), ScriptedAgent.FINAL),
    )
    async with serving(upstream, lifespan="off") as address:
        provider = {"base_url": f"{address}/v1", "api_key": "sk-upstream", "protocol": "responses"}
        async with world(ScriptedUpstream(), window=WINDOW, providers={"upstream": provider}) as w:
            await run_codex(codex, tmp_path, w, "Read all files.")
            await run_codex(codex, tmp_path, w, QUESTION, "resume", "--last")
            outputs = await read_tool_outputs(w)
    assert upstream.refusals == []
    assert find_facts(json.dumps(outputs)) == facts
    last = upstream.requests[-1]
    assert (last["store"], last["include"]) == (False, ["reasoning.encrypted_content"])
    assert [(item["type"], item.get("role")) for item in last["input"][2:]] == [
        *[("message", "user"), ("message", "user"), ("reasoning", None)],
        *[("function_call", None), ("function_call", None)],
        *[("function_call_output", None), ("function_call_output", None)],
        *[("reasoning", None), ("message", "assistant"), ("function_call", None), ("function_call_output", None)],
        *[("message", "assistant"), ("message", "user")],
    ]
    secrets = [item["encrypted_content"] for item in last["input"] if item["type"] == "reasoning"]
    assert len(secrets) == 2
    assert set(secrets) < upstream.issued_secrets
    # The same bytes in each request: what went to the provider once goes there again as it was.
    raw_items = [msgspec.json.decode(body, type=dict[str, msgspec.Raw])["input"] for body in upstream.bodies]
    assert all(bytes(now).startswith(bytes(before)[:-1]) for before, now in itertools.pairwise(raw_items[:3]))


def make_agent(folder: Path, count: int) -> ScriptedAgent:
    commands = [f"cat {folder}/file-{number}.txt" for number in range(1, count + 1)]
    return ScriptedAgent(commands, make_command)


@asynccontextmanager
async def recording(gateway: World, received: list[dict[str, Any]]) -> AsyncIterator[str]:
    """A proxy of the gateway that keeps the bodies of requests for responses. Yields its address."""

    async def pass_on(scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (event := await receive()).get("more_body"):
            body += event["body"]
        body += event.get("body", b"")
        headers = [(name, value) for name, value in scope["headers"] if name not in (b"host", b"content-length")]
        if scope["path"].endswith("/responses") and scope["method"] == "POST":
            received.append(json.loads(body))
        url = gateway.base_url.removesuffix("/v1") + scope["path"]
        async with gateway.client.stream(scope["method"], url, content=body, headers=headers) as answer:
            kept = [one for one in answer.headers.raw if one[0].lower() not in (b"transfer-encoding", b"connection")]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": kept})
            async for piece in answer.aiter_raw():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async with serving(pass_on, lifespan="off") as address:
        yield address


def write_config(folder: Path, gateway: World, address: str | None = None) -> Path:
    """Writes the configuration that the page shows, for this gateway. Returns the home folder that has it."""
    (config,) = PAGE.blocks("toml")
    assert WRITTEN_MODEL in config
    home = folder / "home"
    (home / ".codex").mkdir(parents=True, exist_ok=True)
    address = address or gateway.base_url.removesuffix("/v1")
    config = config.replace(WRITTEN_ADDRESS, address).replace(WRITTEN_MODEL, 'model = "agent"')
    (home / ".codex" / "config.toml").write_text(config)
    return home


async def run_codex(
    codex: Sequence[str],
    folder: Path,
    gateway: World,
    prompt: str,
    *arguments: str,
    reconnects: bool = False,
    address: str | None = None,
) -> str:
    """Runs `codex exec` in `folder`, with nothing of this machine's configuration. Returns the id of its thread.

    Args:
        reconnects: whether Codex must send a request again because its stream broke off.
        address: of what stands before the gateway.
    """
    home = write_config(folder, gateway, address)
    options = ("--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
    command = [*codex, "exec", *arguments, *options, prompt]
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "GATEWAY_KEY": "sk-codex"}
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=environ,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        output, _ = await asyncio.wait_for(process.communicate(), CODEX_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    printed = output.decode()
    assert process.returncode == 0, printed[-4000:]
    # Codex tries again where a request fails, and says so. A tool that fails is no such request.
    errors = [line for line in printed.splitlines() if "ERROR:" in line or "econnect" in line]
    assert all("Reconnecting" in line for line in errors), printed[-4000:]
    assert bool(errors) is reconnects, printed[-4000:]
    assert printed.rstrip().endswith(ScriptedAgent.FINAL), printed[-4000:]
    (thread_id,) = re.findall(r"^session id: (\S+)$", printed, re.MULTILINE)
    return str(thread_id)


async def read_tool_outputs(gateway: World) -> list[str]:
    """The outputs of calls that the log has, in order. There is one conversation."""
    conversations = gateway.conversations()
    assert len(conversations) == 1, [conversation.id for conversation in conversations]
    entries = await gateway.store.read_log(conversations[0], 0, conversations[0].head_seq + 1)
    return [entry.message.text for entry in entries if entry.message.role == "tool"]


def make_command(command: str) -> tuple[str, dict[str, str]]:
    return "exec_command", {"cmd": command}


def call_command(command: str, call_id: str) -> dict[str, Any]:
    name, arguments = make_command(command)
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def call_custom_tool(name: str, text: str, call_id: str) -> dict[str, Any]:
    return {"id": call_id, "type": "custom", "custom": {"name": name, "input": text}}


def stream_calls(*calls: dict[str, Any]) -> Reply:
    delta = {"role": "assistant", "content": None, "tool_calls": [{"index": i, **c} for i, c in enumerate(calls)]}
    return Reply(pieces=[chunk(delta), chunk({}, "tool_calls"), usage_chunk(100), DONE])


def break_off(reply: Reply) -> Reply:
    """Returns a stream that ends without the frames after the answer's last piece."""
    return Reply(pieces=[*list(reply.pieces or ())[:-3], DROP])
