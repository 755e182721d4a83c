"""A door to Google and providers that call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from service.clouds.google import GoogleProvider
from service.clouds.google_entry import GoogleEntry
from tests.conformance.clouds import UsualLaunch
from tests.conformance.google.rental import (
    ENTRY,
    USUAL,
    Reach,
    google_cloud,
)
from tests.fakecloud.google_door import GoogleDoor
from tests.fakecloud.http_server import HttpServer


@pytest.fixture
def door() -> GoogleDoor:
    return GoogleDoor(google_cloud(seed=1, list_lag=5.0, page=2))


@pytest.fixture
def reach(door: GoogleDoor) -> Iterator[Reach]:
    with HttpServer(door.answer) as server, ExitStack() as opened:

        def open_provider(
            stopwatch: Callable[[], float] = door.cloud.clock.now, **changes: Any
        ) -> GoogleProvider:
            entry = GoogleEntry.model_validate({**ENTRY, "endpoint": server.url, **changes})
            wait = door.cloud.clock.advance
            provider = GoogleProvider("google", entry, wait=wait, stopwatch=stopwatch)
            opened.callback(provider.close)
            return provider

        yield open_provider


@pytest.fixture
def usual_launch() -> UsualLaunch:
    return USUAL
