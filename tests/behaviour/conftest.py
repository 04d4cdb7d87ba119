"""The steps of all features, and the conversation that each scenario has for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.behaviour.steps.answers import *  # noqa: F403 - steps are fixtures: they are found by where they are named
from tests.behaviour.steps.asking import *  # noqa: F403
from tests.behaviour.steps.complaining import *  # noqa: F403
from tests.behaviour.steps.conversing import *  # noqa: F403
from tests.behaviour.steps.coursing import *  # noqa: F403
from tests.behaviour.steps.entering import *  # noqa: F403
from tests.behaviour.steps.facts import *  # noqa: F403
from tests.behaviour.steps.hiding import *  # noqa: F403
from tests.behaviour.steps.keeping import *  # noqa: F403
from tests.behaviour.steps.pinning import *  # noqa: F403
from tests.behaviour.steps.porting import *  # noqa: F403
from tests.behaviour.steps.preparing import *  # noqa: F403
from tests.behaviour.steps.recalling import *  # noqa: F403
from tests.behaviour.steps.results import *  # noqa: F403
from tests.behaviour.steps.retrying import *  # noqa: F403
from tests.behaviour.steps.rewriting import *  # noqa: F403
from tests.behaviour.steps.searching import *  # noqa: F403
from tests.behaviour.steps.setting import *  # noqa: F403
from tests.behaviour.steps.showing import *  # noqa: F403
from tests.behaviour.steps.storing import *  # noqa: F403
from tests.behaviour.steps.summarizing import *  # noqa: F403
from tests.behaviour.steps.viewing import *  # noqa: F403
from tests.behaviour.steps.working import *  # noqa: F403
from tests.behaviour.talk import Talk


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    with asyncio.Runner() as runner:
        talking = Talk(runner, tmp_path)
        yield talking
        talking.stop()
