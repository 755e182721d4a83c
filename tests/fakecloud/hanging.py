"""HangingProvider, whose calls hang where told, before the cloud hears of them."""

from __future__ import annotations

import threading

from service.clouds.provider import Instance, LaunchRequest
from tests.fakecloud.provider import FakeCloudProvider

LONGEST = 300.0


class HangingProvider(FakeCloudProvider):
    """A provider that knows what it was asked, and answers when it may."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "account")
        self.asked: list[str] = []
        self.gates: dict[str, threading.Event] = {}

    def hang(self, operation: str) -> threading.Event:
        """Let ``list``, ``launch``, ``terminate`` or ``launch <job>`` hang until this is set."""
        return self.gates.setdefault(operation, threading.Event())

    def release(self) -> None:
        """Let all calls go on, and hang no more."""
        for gate in self.gates.values():
            gate.set()

    def launch(self, request: LaunchRequest) -> Instance:
        """Launch a machine, some day."""
        self._wait("launch", f"launch {request.job}")
        return super().launch(request)

    def list(self) -> tuple[Instance, ...]:
        """Return what the cloud shows, some day."""
        self._wait("list")
        return super().list()

    def terminate(self, provider_id: str) -> None:
        """Order the end of a machine, some day."""
        self._wait("terminate")
        super().terminate(provider_id)

    def _wait(self, *operations: str) -> None:
        for operation in operations:
            self.asked.append(operation)
            gate = self.gates.get(operation)
            assert gate is None or gate.wait(LONGEST)
