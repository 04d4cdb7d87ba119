"""Endpoints that export a conversation as chat messages, and import conversations."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response, StreamingResponse

from app.api.conversations.conversations import ConversationObject
from app.api.edge.auth import Authenticator
from app.api.edge.request_reader import read_body
from app.api.resource_schemas import Page, build_json_response, build_list_page, build_resource_router
from app.conversations.history.conversation_records import ConversationRecords
from app.conversations.transfer.conversation_import import ConversationImporter
from app.conversations.transfer.import_file_parser import Format
from app.conversations.transfer.message_export import ConversationExporter
from app.pipeline.turn.chat_request import Caller

NDJSON: Final = "application/x-ndjson"
ExportFormat = Annotated[
    Literal["jsonl", "openai"],
    Query(description='One chat message per line, or one line with all messages: `{"messages": […]}`.'),
]
Include = Annotated[Literal["deleted"] | None, Query(description="Also messages that were deleted but not erased.")]
ImportFormat = Annotated[Format, Query(description="The format of the body; `auto` detects it.")]

_HISTORY_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"messages": {"type": "array", "items": {"$ref": "#/components/schemas/ChatMessageSchema"}}},
    "required": ["messages"],
}
_IMPORT_FILE_SCHEMA: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": (
            "A history in OpenAI's form, or an array of them; or, with any content type, one chat message or "
            "history per line."
        ),
        "content": {
            "application/json": {
                "schema": {"anyOf": [_HISTORY_SCHEMA, {"type": "array", "items": _HISTORY_SCHEMA, "minItems": 1}]},
            }
        },
    }
}


class ImportedConversations(Page[ConversationObject]):
    """The imported conversations."""

    warnings: list[str]


def build_transfer_routes(
    exporter: ConversationExporter,
    importer: ConversationImporter,
    records: ConversationRecords,
    auth: Authenticator,
) -> APIRouter:
    """Builds the endpoints for export and import. They must be included before those of `/v1/conversations/{id}`, whose
    paths also match `/v1/conversations/import`."""
    routes = build_resource_router("/v1/conversations", "portability")
    reads, manages = Depends(auth.require_scope("read")), Depends(auth.require_scope("manage"))

    @routes.get(
        "/{conversation_id}/export",
        response_class=StreamingResponse,
        responses={
            200: {"content": {NDJSON: {"schema": {"type": "string"}}}, "description": "One JSON text per line."}
        },
    )
    async def export_conversation(
        conversation_id: str,
        format: ExportFormat = "jsonl",
        include: Include = None,
        caller: Caller = reads,
    ) -> Response:
        """Export a conversation as chat messages."""
        conversation = await records.find_conversation(caller, conversation_id)
        with_hidden = include == "deleted"
        pieces = (
            exporter.stream_message_lines(conversation, with_hidden=with_hidden)
            if format == "jsonl"
            else exporter.stream_json_object(conversation, with_hidden=with_hidden, as_chat=True)
        )
        # The first batch is read before the head is sent: if it fails, the client gets an error response.
        first_piece = await anext(pieces, b"")
        headers = {
            "content-disposition": f'attachment; filename="{conversation.id}.jsonl"',
            "x-conversation-id": conversation.id,
        }
        return StreamingResponse(_prepend_piece(first_piece, pieces), media_type=NDJSON, headers=headers)

    @routes.post("/import", response_model=ImportedConversations, openapi_extra=_IMPORT_FILE_SCHEMA)
    async def import_conversations(
        request: Request,
        format: ImportFormat = "auto",
        caller: Caller = manages,
    ) -> Response:
        """Import conversations."""
        body = await read_body(request.scope, request.receive, caller.tenant)
        result = await importer.import_file(caller.tenant, body, format)
        conversation_objects = [
            await records.build_conversation_object(conversation) for conversation in result.conversations
        ]
        return build_json_response({**build_list_page(conversation_objects), "warnings": list(result.warnings)})

    return routes


async def _prepend_piece(first_piece: bytes, other_pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first_piece
    async for piece in other_pieces:
        yield piece
