"""`/v1/conversations`: OpenAI's Conversations API, and in addition a list of conversations."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Body, Depends, Query, Request
from pydantic import AfterValidator, BaseModel
from starlette.responses import Response

from app.api.conversations.item_schemas import Items
from app.api.edge.auth import Authenticator
from app.api.resource_schemas import (
    MAX_UNIX_SECONDS,
    METADATA_FILTER_SCHEMA,
    After,
    Deleted,
    Described,
    Limit,
    Metadata,
    MetadataChange,
    Name,
    Order,
    Page,
    build_json_response,
    build_list_page,
    build_resource_router,
    describe_errors,
    parse_metadata_filter,
)
from app.conversation.conversation_types import Conversation, HistoryMode
from app.conversation.identity import ID_PATTERN
from app.conversations.api_keys import KeyNames, read_key_names
from app.conversations.history.conversation_history import ConversationHistory, ListField
from app.conversations.history.conversation_records import ALL_TENANTS_HINT, ConversationRecords
from app.conversations.items.item_writer import ItemWriter
from app.pipeline.turn.chat_request import Caller
from app.store.contract.conversations import ConversationQuery
from app.store.contract.keys import KeyStore

BUSY_RESPONSE: Final = describe_errors({409: "Another request is using this conversation; try again."})


class NewConversation(BaseModel):
    """The metadata and the first items of a new conversation."""

    metadata: Metadata | None = None
    items: Items | None = None


class ParentObject(Described):
    """The conversation from which another branched, and the last item that both share."""

    conversation_id: str
    through_item: str | None


class LastAnswerObject(Described):
    """The last answer of a conversation. `model` and `context_status` are null if the gateway did not give it."""

    model: str | None
    context_status: str | None
    incomplete: bool


class ConversationObject(Described):
    """OpenAI's conversation object, with fields of the gateway."""

    id: str
    object: str
    created_at: int
    metadata: dict[str, str]
    updated_at: int
    messages: int
    tokens: int
    external_id: str | None
    mode: str
    summaries: int
    parent: ParentObject | None
    title: str | None = None
    """Only with `include[]=title`."""
    last_answer: LastAnswerObject | None = None
    """Only with `include[]=last_answer`, as `unanswered`."""
    unanswered: int | None = None
    """How many messages follow the last answer: a request runs, or one has failed."""


Include = Annotated[
    list[ListField],
    Query(
        default_factory=list,
        alias="include[]",
        description="`title`: `title` of the metadata, or the beginning of the first user message. `last_answer`: the "
        "model and the context status of the last answer, and how many messages follow it.",
    ),
]
ClientMode = Annotated[HistoryMode | None, Query(description="How the client sends messages.")]
ExternalId = Annotated[
    str | None,
    Query(pattern=f"^{ID_PATTERN}$", description="The client's own id, as in `X-Conversation-Id`."),
]
MinMessages = Annotated[
    int | None, Query(ge=1, le=MAX_UNIX_SECONDS, description="Only conversations with as many messages.")
]
RequestFilter = Annotated[
    Name | None,
    Query(description="Only conversations with such a request among those that `retention.request_hours` keeps."),
]


def _parse_unix_seconds(unix_seconds: int | None) -> datetime | None:
    return None if unix_seconds is None else datetime.fromtimestamp(unix_seconds, UTC)


UnixSecondsQuery = Annotated[
    int | None, Query(ge=0, le=MAX_UNIX_SECONDS, description="Unix seconds."), AfterValidator(_parse_unix_seconds)
]


class ConversationFilters(BaseModel):
    """The query of a list of conversations. Most fields are those of `ConversationQuery`."""

    include: Include
    limit: Limit = 20
    after: After = None
    order: Order = "desc"
    created_after: UnixSecondsQuery = None
    created_before: UnixSecondsQuery = None
    updated_after: UnixSecondsQuery = None
    updated_before: UnixSecondsQuery = None
    mode: ClientMode = None
    external_id: ExternalId = None
    sort: Annotated[Literal["created_at", "updated_at"], Query(description="What `order` is about.")] = "created_at"
    min_messages: MinMessages = None
    model: RequestFilter = None
    context_status: RequestFilter = None
    key_id: RequestFilter = None


def build_conversation_routes(
    records: ConversationRecords,
    item_writer: ItemWriter,
    history: ConversationHistory,
    auth: Authenticator,
    keys: KeyStore,
) -> APIRouter:
    """Builds the endpoints that create, list, read, change and delete conversations."""
    routes = build_resource_router("/v1/conversations", "conversations")
    reads, manages = Depends(auth.require_scope("read")), Depends(auth.require_scope("manage"))

    @routes.post("", response_model=ConversationObject)
    async def create_conversation(
        new: Annotated[NewConversation | None, Body()] = None, caller: Caller = manages
    ) -> Response:
        """Create a conversation."""
        new_conversation = new or NewConversation()
        conversation = await item_writer.create_conversation(
            caller, new_conversation.metadata or {}, new_conversation.items or []
        )
        return build_conversation_response(await records.build_conversation_object(conversation))

    @routes.get("", response_model=Page[ConversationObject], openapi_extra=METADATA_FILTER_SCHEMA)
    async def list_conversations(
        request: Request, filters: Annotated[ConversationFilters, Query()], caller: Caller = reads
    ) -> Response:
        """List conversations."""
        query = ConversationQuery(
            descending=filters.order == "desc",
            order_by=filters.sort,
            metadata=parse_metadata_filter(request),
            has_own_messages=True,
            **filters.model_dump(exclude={"include", "after", "order", "sort"}, warnings=False),  # times are no numbers
        )
        conversations, has_more = await records.list_conversations(caller, query, after=filters.after)
        names = await read_key_names(keys) if caller.sees_all_tenants else None
        page = build_list_page(
            [await _build_listed_object(records, history, one, filters.include, names) for one in conversations],
            has_more=has_more,
        )
        hint = {"hint": ALL_TENANTS_HINT} if not conversations and caller.may_see_all_tenants else {}
        return build_json_response({**page, **hint})

    _add_single_conversation_routes(routes, records, history, auth, keys)
    return routes


def _add_single_conversation_routes(
    routes: APIRouter, records: ConversationRecords, history: ConversationHistory, auth: Authenticator, keys: KeyStore
) -> None:
    reads, manages = Depends(auth.require_scope("read")), Depends(auth.require_scope("manage"))

    @routes.get("/{conversation_id}", response_model=ConversationObject)
    async def get_conversation(conversation_id: str, include: Include, caller: Caller = reads) -> Response:
        """A conversation."""
        conversation = await records.find_conversation(caller, conversation_id)
        names = await read_key_names(keys) if caller.sees_all_tenants else None
        return build_conversation_response(await _build_listed_object(records, history, conversation, include, names))

    @routes.post("/{conversation_id}", response_model=ConversationObject)
    async def update_conversation(conversation_id: str, change: MetadataChange, caller: Caller = manages) -> Response:
        """Replace a conversation's metadata."""
        changed = await records.replace_metadata(caller, conversation_id, change.metadata or {})
        return build_conversation_response(await records.build_conversation_object(changed))

    @routes.delete("/{conversation_id}", response_model=Deleted)
    async def delete_conversation(
        conversation_id: str,
        branches: Annotated[bool, Query(description="Also delete all its branches.")] = False,
        caller: Caller = manages,
    ) -> Response:
        """Delete a conversation and everything stored for it."""
        gone = await records.delete_conversation(caller, conversation_id, with_branches=branches)
        return build_conversation_response({"id": gone.id, "object": "conversation.deleted", "deleted": True})


async def _build_listed_object(
    records: ConversationRecords,
    history: ConversationHistory,
    conversation: Conversation,
    include: Sequence[ListField],
    names: KeyNames | None,
) -> dict[str, Any]:
    """Builds a conversation's object, with the fields that the client asks for, and with its tenant if there are
    `names`."""
    more = await history.read_list_fields(conversation, include) if include else {}
    tenant = {}
    if names is not None:
        tenant = {"tenant": conversation.tenant, "tenant_name": names.find_tenant_name(conversation.tenant)}
    return {**await records.build_conversation_object(conversation), **tenant, **more}


def build_conversation_response(body: dict[str, Any]) -> Response:
    """Builds a response about the conversation `body["id"]`."""
    return build_json_response(body, conversation_id=body["id"])
