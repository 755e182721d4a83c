"""A door to Google and providers that call it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from math import inf
from typing import Any

import pytest

from service.clouds.google import GoogleProvider
from service.clouds.google_entry import GoogleEntry
from service.clouds.provider import LaunchRequest
from tests.builders import boot, offer
from tests.conformance.clouds import Eventually
from tests.conformance.google.rental import (
    ENTRY,
    FAMILY,
    GCE_TYPE,
    LABELS,
    ZONE,
    Ask,
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
def request_for() -> Ask:
    def make(
        key: str = "key-1",
        prepaid: float = 86400.0,
        labels: dict[str, str] = LABELS,
        max_run_seconds: float = inf,
        **place: Any,
    ) -> LaunchRequest:
        there = {"cloud": "google", "zone": ZONE, "machine_type": GCE_TYPE, "image": FAMILY}
        return LaunchRequest(
            launch_key=key,
            offer=offer("0.5", **{**there, **place}),
            boot=boot(worker=key, prepaid=prepaid, agent="0" * 64),
            labels=labels,
            max_run_seconds=max_run_seconds,
        )

    return make


@pytest.fixture
def eventually(door: GoogleDoor) -> Eventually:
    def advance_until(is_true: Callable[[], object]) -> None:
        for _ in range(120):
            if is_true():
                return
            door.cloud.clock.advance(1.0)
        assert is_true()

    return advance_until
