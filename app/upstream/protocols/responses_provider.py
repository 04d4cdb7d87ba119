"""A provider that speaks the Responses API. Its answers are translated into chat completions as they arrive."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Final

from app.dialects.chat.stream_collector import normalize_json
from app.dialects.responses.reply_to_chat import ResponsesStreamTranslator, translate_response
from app.errors import UpstreamUnavailable
from app.upstream.protocols.openai_provider import OpenAIProvider
from app.upstream.provider_contract import CALL_PATHS, ProviderProtocol, UpstreamReply, UpstreamRequest

STATUS_OK: Final = 200


class ResponsesProvider(OpenAIProvider):
    """A model server at `base_url` whose models are called by the Responses API. Other calls, such as those that are
    passed through, are not translated.
    """

    protocol: ProviderProtocol = "responses"

    async def send(self, request: UpstreamRequest) -> UpstreamReply:
        reply = await super().send(request)
        is_model_call = request.path == CALL_PATHS[self.protocol] and request.method == "POST"
        # Errors have the same form in both protocols. Any other status is refused by whoever reads the answer.
        if not is_model_call or reply.status != STATUS_OK:
            return reply
        return TranslatedReply(reply, self.name, keeps_original=request.keeps_original)


class TranslatedReply:
    """A successful answer in the form of Chat Completions. Implements `upstream.provider_contract.UpstreamReply`.

    Args:
        reply: the provider's answer.
        provider_name: for error messages.
        keeps_original: see `UpstreamRequest`.
    """

    def __init__(self, reply: UpstreamReply, provider_name: str, *, keeps_original: bool) -> None:
        self._reply = reply
        self._provider_name = provider_name
        self._keeps_original = keeps_original
        self.status = reply.status
        self.headers: Mapping[str, str] = reply.headers
        self.original_body: bytes | None = None

    async def read(self) -> bytes:
        """Returns the whole body as a chat completion or an error body.

        Raises:
            UpstreamUnavailable: the body broke off, took too long, or is neither a response nor an error.
        """
        body = await self._reply.read()
        try:
            completion = translate_response(body)
        except UpstreamUnavailable as error:
            # Mostly another kind of server answers at that address.
            raise UpstreamUnavailable(
                f"{self._provider_name!r} answered with something that is not a response of the Responses API.",
                hint=f"Check providers.{self._provider_name}.base_url and providers.{self._provider_name}.protocol.",
            ) from error
        if self._keeps_original:
            self.original_body = normalize_json(body)
        return completion

    async def iter_bytes(self) -> AsyncIterator[bytes]:
        """Yields the frames of chat chunks as they arrive.

        Raises:
            UpstreamUnavailable: while iterating, if the stream breaks off, stays silent too long, or has an event that
                is too long.
        """
        translator = ResponsesStreamTranslator(self._provider_name, keeps_original=self._keeps_original)
        async for piece in self._reply.iter_bytes():
            if frames := translator.feed(piece):
                yield frames
        if frames := translator.flush():
            yield frames

    async def aclose(self) -> None:
        await self._reply.aclose()
