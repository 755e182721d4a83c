"""A provider that times and counts the calls to another provider."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Literal

from scavenger.schemas.prices import PriceView
from service.clouds.object_store import HasObjectStore, ObjectStore
from service.clouds.provider import Instance, LaunchRequest, PriceSource, Provider
from service.errors import CloudError, LaunchRefused
from service.observability import metrics
from service.observability.tracing import span
from service.offers import SeenPrice

ProviderOperation = Literal["launch", "list", "terminate", "forget", "prices"]


class MeteredProvider:
    """Passes every call on, and notes how long it took and how it ended."""

    def __init__(self, provider: Provider) -> None:
        self.provider = provider
        # None of these changes while a controller runs.
        self.name, self.traits = provider.name, provider.traits
        self.object_store: ObjectStore | None = None
        if isinstance(provider, HasObjectStore):
            self.object_store = provider.object_store

    @property
    def account(self) -> str:
        return self.provider.account

    def launch(self, request: LaunchRequest) -> Instance:
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
        with _timed("list"):
            return self.provider.list()

    def spot_prices(self, zone: str, machine_type: str, since: datetime) -> tuple[SeenPrice, ...]:
        with _timed("prices"):
            return self.provider.spot_prices(zone, machine_type, since)

    def terminate(self, provider_id: str) -> None:
        with _timed("terminate"):
            self.provider.terminate(provider_id)

    def forget(self, provider_id: str) -> None:
        with _timed("forget"):
            self.provider.forget(provider_id)

    def fetch_prices(self, types: Collection[str], now: datetime) -> Iterator[PriceView]:
        """Pass on what the cloud says of prices; nothing of one that says nothing."""
        if isinstance(self.provider, PriceSource):
            with _timed("prices"):
                yield from self.provider.fetch_prices(types, now)


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
