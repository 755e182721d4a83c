"""Door: the way from a provider to a fake cloud in the same process, with all its troubles."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import httpx

from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import Omitted
from tests.fakecloud.refusal import ConnectionLost
from tests.fakecloud.server import answer, doors_of


class Door(httpx.BaseTransport):
    """Hands requests to a cloud; each is a step before it and a step after it.

    Attributes:
        omitted: The token whose machine the next list leaves out, if any.
    """

    def __init__(
        self, cloud: FakeCloud, step: Callable[[], None], may_omit: Callable[[str], bool]
    ) -> None:
        self.omitted: str | None = None
        self._cloud, self._step, self._may_omit = cloud, step, may_omit
        self._doors = doors_of(cloud)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self._step()
        path = request.url.path
        try:
            with self._omission() if path == "/cloud/list" else nullcontext():
                status, kind, content = answer(self._doors, path, request.read())
        except ConnectionLost as error:
            raise httpx.ReadError("reset") from error
        finally:
            self._step()
        return httpx.Response(status, headers={"Content-Type": kind}, content=content)

    def _omission(self) -> AbstractContextManager[None]:
        """Let this list leave a machine out; if it is refused, no later one that may not."""
        omitted, self.omitted = self.omitted, None
        for truth in self._cloud.machines():
            if truth.description.token == omitted and self._may_omit(omitted):
                return self._cloud.faults.meanwhile("list", Omitted(truth.description.id))
        return nullcontext()
