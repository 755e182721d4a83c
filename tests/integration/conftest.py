"""Fixtures of several modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from sqlalchemy import Engine

from tests.integration.house import House


@pytest.fixture
def house(engine: Engine) -> Iterator[House]:
    with ExitStack() as stack:
        yield House(engine, stack)
