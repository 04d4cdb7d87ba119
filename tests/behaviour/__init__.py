"""What a conversation may expect of each policy, told as features; the steps drive a real gateway over HTTP."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("tests.behaviour.steps", "tests.behaviour.talk")
