"""Door: the way from a provider to a fake cloud in the same process, with all its troubles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from http import HTTPStatus

import httpx
from pydantic_core import from_json

from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import Omitted
from tests.fakecloud.refusal import ConnectionLost
from tests.fakecloud.server import answer, doors_of
from tests.money.clock import PassingClock
from tests.money.sightings import Sightings


class Door(httpx.BaseTransport):
    """Hands requests to a cloud; each is a step before it and a step after it.

    Attributes:
        omitted: The token whose machine the next list leaves out, if any.
    """

    def __init__(
        self, cloud: FakeCloud, step: Callable[[], None], sightings: Sightings, clock: PassingClock
    ) -> None:
        self.omitted: str | None = None
        self._cloud, self._step, self._sightings, self._clock = cloud, step, sightings, clock
        self._doors = doors_of(cloud)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._step()
        path, is_list = request.url.path, request.url.path == "/cloud/list"
        try:
            with self._omission() if is_list else nullcontext():
                status, kind, content = answer(self._doors, path, request.read())
        except ConnectionLost as error:
            raise httpx.ReadError("reset") from error
        finally:
            self._step()
        if is_list and status == HTTPStatus.OK:
            self._hear(content)
        return httpx.Response(status, headers={"Content-Type": kind}, content=content)

    def _omission(self) -> AbstractContextManager[None]:
        """Let this list leave a machine out; if it is refused, no later one that may not."""
        omitted, self.omitted = self.omitted, None
        now = self._clock.moment()
        for truth in self._cloud.machines():
            if truth.description.token == omitted and self._sightings.may_miss(omitted, now):
                return self._cloud.faults.meanwhile("list", Omitted(truth.description.id))
        return nullcontext()

    def _hear(self, content: bytes) -> None:
        there = {one.description.token for one in self._cloud.machines() if one.gone_at is None}
        self._sightings.hear(there, {one["token"] for one in from_json(content)["machines"]})
