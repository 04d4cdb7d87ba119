"""Every operation asks for its scope before it looks at anything else of a request."""

from __future__ import annotations

import httpx
import pytest

from app.conversation.api_keys import SCOPES
from tests.api.edge.test_api_keys import locked
from tests.api.edge.test_tenant_isolation import operations

FREE = {"GET /healthz", "GET /readyz", "GET /metrics"}
CHATS = {
    *("GET /v1/models", "GET /v1/models/{model}", "POST /v1/chat/completions", "POST /v1/context/count"),
    *("POST /v1/responses", "POST /v1/responses/compact", "POST /v1/responses/input_tokens"),
    *("POST /v1/messages", "POST /v1/messages/count_tokens"),
}
CODES = {"authentication_error": "invalid_api_key", "permission_error": "insufficient_permissions"}
"""The code of an error by its type in the Messages API, which has no codes."""


def read_code(answer: httpx.Response) -> str:
    error = answer.json()["error"]
    return str(error["code"] if "code" in error else CODES[error["type"]])


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
    body = {"model": "m", "messages": said, "input": said, "max_tokens": 5} if needed == "chat" else None
    async with locked() as gateway:
        nobody = await gateway.ask(method, path, json=body)
        assert (nobody.status_code, read_code(nobody)) == (401, "invalid_api_key")
        lacking, _ = await gateway.key(scopes=tuple(scope for scope in SCOPES if scope != needed))
        refused = await gateway.ask(method, path, lacking, json=body)
        assert (refused.status_code, read_code(refused)) == (403, "insufficient_permissions")
        assert f"'{needed}'" in refused.json()["error"]["message"]
        having, _ = await gateway.key(scopes=(needed,))
        assert (await gateway.ask(method, path, having, json=body)).status_code not in (401, 403, 500)
