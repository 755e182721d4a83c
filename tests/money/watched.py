"""WatchedProvider: a provider whose lists are watched, and which dies with its controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime

from service.clouds.provider import CloudTraits, Instance, LaunchRequest, Provider
from service.offers import SeenPrice
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.emulator import Emulator, Tap
from tests.fakecloud.faults import Omitted
from tests.money.clock import PassingClock
from tests.money.sightings import Sightings


class WatchedProvider:
    """Passes every call on to the provider of an emulated cloud.

    Args:
        step: Called before and after each request.

    Attributes:
        omitted: The launch key whose machine the next list leaves out, if any.
    """

    def __init__(
        self,
        emulator: Emulator,
        cloud: FakeCloud,
        step: Callable[[], None],
        sightings: Sightings,
        clock: PassingClock,
    ) -> None:
        self.omitted: str | None = None
        self._omitting: str | None = None
        self._emulator, self._cloud = emulator, cloud
        self._sightings, self._clock = sightings, clock
        emulator.tap = Tap(
            before=lambda _: step(),
            after=step,
            during=self._omission,
            wait=clock.advance,
            stopwatch=clock.now,
        )
        emulator.play(cloud)
        self.restart()

    def restart(self) -> None:
        """Forget what a provider remembers, as a controller that starts does."""
        self._provider: Provider = self._emulator.open()

    @property
    def name(self) -> str:
        return self._provider.name

    @property
    def account(self) -> str:
        return self._provider.account

    @property
    def traits(self) -> CloudTraits:
        return self._provider.traits

    def launch(self, request: LaunchRequest) -> Instance:
        return self._provider.launch(request)

    def list(self) -> tuple[Instance, ...]:
        """List, and note which of the machines there are it shows."""
        before, self._omitting, self.omitted = self._omitting, self.omitted, None
        try:
            found = self._provider.list()
        finally:
            self._omitting = before
        key_of = self._emulator.habits.launch_key
        there = {
            key_of(one.description.token) for one in self._cloud.machines() if one.gone_at is None
        }
        self._sightings.hear(there, {instance.launch_key for instance in found})
        return found

    def spot_prices(self, zone: str, machine_type: str, since: datetime) -> tuple[SeenPrice, ...]:
        return self._provider.spot_prices(zone, machine_type, since)

    def terminate(self, provider_id: str) -> None:
        self._provider.terminate(provider_id)

    def forget(self, provider_id: str) -> None:
        self._provider.forget(provider_id)

    @contextmanager
    def _omission(self) -> Iterator[None]:
        """Let a list leave a machine out, if it may."""
        omitted, now = self._omitting, self._clock.moment()
        if omitted is not None and self._sightings.may_miss(omitted, now):
            token = self._emulator.habits.token(omitted)
            for truth in self._cloud.machines():
                if truth.description.token == token and truth.gone_at is None:
                    with self._cloud.faults.meanwhile("list", Omitted(truth.description.id)):
                        yield
                    return
        yield
