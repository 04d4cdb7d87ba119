"""What a provider's `/embeddings` is asked, and which answers are none; and the model in this process."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import orjson
import pytest

from app.errors import UpstreamUnavailable
from app.upstream.embeddings import LocalEmbedder, ProviderEmbedder
from app.upstream.provider_contract import UpstreamRequest


class Reply:
    def __init__(self, status: int, body: bytes) -> None:
        self.status, self.headers, self._body, self.is_closed = status, dict[str, str](), body, False

    async def read(self) -> bytes:
        return self._body

    async def aclose(self) -> None:
        self.is_closed = True


class Vendor:
    name = "vendor"

    def __init__(self, status: int, answer: Any) -> None:
        self.reply = Reply(status, answer if isinstance(answer, bytes) else orjson.dumps(answer))
        self.asked: list[UpstreamRequest] = []

    async def send(self, request: UpstreamRequest) -> Reply:
        self.asked.append(request)
        return self.reply


def listed(*vectors: Sequence[float]) -> dict[str, Any]:
    data = [{"object": "embedding", "index": at, "embedding": one} for at, one in enumerate(vectors)]
    return {"object": "list", "data": data[::-1], "model": "small", "usage": {"prompt_tokens": 4, "total_tokens": 4}}


async def test_texts_are_asked_for_at_once_and_vectors_stand_in_their_order() -> None:
    vendor = Vendor(200, listed([1, 2], [3, 4]))
    embedder = ProviderEmbedder(vendor, "small")  # type: ignore[arg-type]
    assert await embedder.embed_texts(["one", "two"]) == [[1.0, 2.0], [3.0, 4.0]]
    (asked,) = vendor.asked
    assert (asked.path, asked.method) == ("/embeddings", "POST")
    assert orjson.loads(asked.body) == {"model": "small", "input": ["one", "two"], "encoding_format": "float"}
    assert embedder.name == "vendor/small"
    assert vendor.reply.is_closed


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (429, {"error": {"message": "slow down"}}),
        (200, b"<html>"),
        (200, {"data": [{"index": 0, "embedding": "AAAA"}]}),
        (200, listed([1, 2])),
        (200, listed([1, 2], [3])),
        (200, listed([], [])),
    ],
)
async def test_what_is_no_answer_is_told_as_one_of_the_provider(status: int, answer: Any) -> None:
    vendor = Vendor(status, answer)
    with pytest.raises(UpstreamUnavailable, match="vendor"):
        await ProviderEmbedder(vendor, "small").embed_texts(["one", "two"])  # type: ignore[arg-type]
    assert vendor.reply.is_closed


async def test_the_local_model_knows_what_means_the_same() -> None:
    pet, dog, rent = await LocalEmbedder("universal-sentence-encoder").embed_texts(
        ["How is my pet?", "Der Hund ist krank.", "The rent is due on Friday."]
    )
    near, far = (sum(a * b for a, b in zip(pet, other, strict=True)) for other in (dog, rent))
    assert near > far
    assert math.isclose(math.hypot(*pet), 1, abs_tol=0.01)
