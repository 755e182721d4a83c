"""Compute Engine, played by a fake cloud: google-cloud-compute calls it over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

from service.clouds.google import GoogleProvider
from service.clouds.google_compute import ComputeEngine
from service.clouds.google_entry import GoogleEntry
from service.clouds.google_machine import GOOGLE_NAME_PREFIX
from service.clouds.provider import Provider
from service.prices import PricedRegion
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.emulator import MACHINE_TYPE, Tap, rented_habits
from tests.fakecloud.google_door import FIRST_NUMBER, GoogleDoor, GoogleManners
from tests.fakecloud.http_server import Answer, HttpRequest, HttpServer

REGION, DISK_GIB = "europe-west3", 20
IMAGE = "projects/images-1/global/images/worker-7"


class TappedAdapter(HTTPAdapter):
    """Sends requests as ever, with what a suite does around them."""

    def __init__(self, tap: Tap) -> None:
        super().__init__()
        self._tap = tap

    def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
        self._tap.before(request.method != "GET")
        try:
            return super().send(request, *args, **options)
        finally:
            self._tap.after()


class TappedComputeEngine(ComputeEngine):
    """The calls of Compute Engine as they are, over connections that are tapped.

    Attributes:
        tap: What is done around each request.
    """

    tap: Tap

    def _open(self, client: Callable[..., Any]) -> Any:
        opened = super()._open(client)
        opened.transport._session.mount("http://", TappedAdapter(self.tap))
        return opened


class GoogleEmulator(HttpServer):
    """Serves Compute Engine.

    Args:
        zones: Their letters, best first; the region has no others.
        request_memory: Seconds for which a request id is remembered. How long Google does is not
            documented: by default seconds, so that a launch that is late makes a machine.
    """

    habits = rented_habits(
        PricedRegion("google", REGION, "pd-balanced", DISK_GIB),
        "0.12",
        "0.005",
        region=f"{REGION}-",
        prefix=GOOGLE_NAME_PREFIX,
        first_number=FIRST_NUMBER,
        manners={
            "has_zonal_tokens": True,
            "are_tokens_free_again": True,
            "memory": 0.0,
            "lags_in_lists_only": True,
        },
    )

    def __init__(self, zones: str = "ab", request_memory: float = 10.0) -> None:
        super().__init__(self._answer)
        self.tap = Tap()
        names = tuple(self.habits.zone(letter) for letter in zones)
        self._manners = GoogleManners(zones=names, request_memory=request_memory)
        self._entry = GoogleEntry.model_validate(
            {
                "project": self._manners.project,
                "region": REGION,
                "zones": names,
                "subnetwork": "workers",
                "image": IMAGE,
                "disk_gib": DISK_GIB,
                "machine_type": MACHINE_TYPE,
                "public_address": True,
                "endpoint": self.url,
            }
        )
        self._opened: list[GoogleProvider] = []

    def play(self, cloud: FakeCloud) -> None:
        self.disconnect()
        self.door = GoogleDoor(cloud, self._manners)

    def open(self) -> Provider:
        api = TappedComputeEngine("google", self._entry)
        api.tap = self.tap
        provider = GoogleProvider(
            "google", self._entry, wait=self.tap.wait, stopwatch=self.tap.stopwatch, api=api
        )
        self._opened.append(provider)
        return provider

    def disconnect(self) -> None:
        for provider in self._opened:
            provider.close()
        self._opened.clear()

    def memory(self) -> object:
        return self.door.memory()

    def _answer(self, request: HttpRequest) -> Answer:
        with self.tap.during():
            return self.door.answer(request)
