"""A provider that times and counts the calls to another provider."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from service.clouds.provider import Instance, LaunchRequest, Provider
from service.errors import CloudError, LaunchRefused
from service.observability import metrics
from service.observability.tracing import span

ProviderOperation = Literal["launch", "list", "terminate", "forget"]


@dataclass(frozen=True, slots=True)
class MeteredProvider:
    """Passes every call on, and notes how long it took and how it ended."""

    provider: Provider

    @property
    def name(self) -> str:
        """Name of the cloud."""
        return self.provider.name

    @property
    def account(self) -> str:
        """Where its machines are."""
        return self.provider.account

    @property
    def pause(self) -> float:
        """Seconds a change of machines usually takes."""
        return self.provider.pause

    @property
    def lag(self) -> float:
        """Seconds for which a list may lag behind what was done."""
        return self.provider.lag

    @property
    def boot(self) -> float:
        """Longest seconds from a launch to the moment the machine's own clock starts."""
        return self.provider.boot

    def launch(self, request: LaunchRequest) -> Instance:
        """Start a machine, and count what the cloud answered."""
        try:
            with _timed("launch"):
                instance = self.provider.launch(request)
        except CloudError as error:
            result = "refused" if isinstance(error, LaunchRefused) else "delayed"
            metrics.LAUNCH_RESULTS.labels(result, error.label).inc()
            raise
        metrics.LAUNCH_RESULTS.labels("started", "").inc()
        return instance

    def list(self) -> tuple[Instance, ...]:
        """Return what the cloud shows."""
        with _timed("list"):
            return self.provider.list()

    def terminate(self, provider_id: str) -> None:
        """Order the end of a machine."""
        with _timed("terminate"):
            self.provider.terminate(provider_id)

    def forget(self, provider_id: str) -> None:
        """Drop what is kept of a machine that is gone."""
        with _timed("forget"):
            self.provider.forget(provider_id)


@contextmanager
def _timed(operation: ProviderOperation) -> Iterator[None]:
    began, result = time.perf_counter(), "error"
    try:
        with span(f"provider {operation}"):
            yield
        result = "ok"
    except CloudError as error:
        result = error.label
        raise
    finally:
        seconds = time.perf_counter() - began
        metrics.PROVIDER_CALL_SECONDS.labels(operation, result).observe(seconds)
