"""Every operation asks for its scope before it looks at anything else of a request."""

from __future__ import annotations

import pytest

from app.conversation.api_keys import SCOPES
from tests.api.edge.test_api_keys import locked
from tests.api.edge.test_tenant_isolation import operations

FREE = {"GET /healthz", "GET /readyz", "GET /metrics"}
CHATS = {
    *("GET /v1/models", "GET /v1/models/{model}", "POST /v1/chat/completions", "POST /v1/context/count"),
    *("POST /v1/responses", "POST /v1/responses/input_tokens"),
}


def scope_of(operation: str) -> str:
    if operation in CHATS:
        return "chat"
    if " /v1/admin/" in operation:
        return "admin"
    return "read" if operation.startswith("GET ") else "manage"


@pytest.mark.parametrize("operation", sorted(operations() - FREE))
async def test_each_operation_needs_its_scope(operation: str) -> None:
    method, path = operation.split(" /v1")
    path = path.replace("{", "").replace("}", "")
    needed = scope_of(operation)
    said = [{"role": "user", "content": "Hi"}]
    body = {"model": "m", "messages": said, "input": said} if needed == "chat" else None
    async with locked() as gateway:
        nobody = await gateway.ask(method, path, json=body)
        assert (nobody.status_code, nobody.json()["error"]["code"]) == (401, "invalid_api_key")
        lacking, _ = await gateway.key(scopes=tuple(scope for scope in SCOPES if scope != needed))
        refused = await gateway.ask(method, path, lacking, json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "insufficient_permissions")
        assert f"'{needed}'" in refused.json()["error"]["message"]
        having, _ = await gateway.key(scopes=(needed,))
        assert (await gateway.ask(method, path, having, json=body)).status_code not in (401, 403, 500)
