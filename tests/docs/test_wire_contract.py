"""The wire contract names every endpoint with its scope, and every code of an error."""

from __future__ import annotations

import re
from pathlib import Path

import app.errors
from app.errors import GatewayError
from tests.api.edge.test_scopes import FREE, scope_of
from tests.api.edge.test_tenant_isolation import operations

PAGE = (Path(__file__).parents[2] / "docs" / "wire-contract.md").read_text()
ROW = re.compile(r"^\| (`[A-Z]+ /.*?) \| `?(\w+)`? \|", re.MULTILINE)
OPERATION = re.compile(r"`([A-Z]+ /[^`]+)`")


def test_every_endpoint_is_listed_with_its_scope() -> None:
    listed = {operation: scope for named, scope in ROW.findall(PAGE) for operation in OPERATION.findall(named)}
    assert listed == {one: "none" if one in FREE else scope_of(one) for one in operations()}


def test_every_code_of_an_error_is_listed() -> None:
    classes = [one for one in vars(app.errors).values() if isinstance(one, type) and issubclass(one, GatewayError)]
    codes = {one.code for one in classes if one.code is not None}
    assert codes <= set(re.findall(r"`(\w+)`", PAGE.partition("## Errors")[2]))
