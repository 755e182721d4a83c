"""The tests that every provider of machines must pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest

from service.clouds.provider import Instance, InstanceState, LaunchRequest, Provider
from service.errors import LaunchRefused, ProviderUnavailable
from tests.fakecloud.cloud import FakeCloud


def state(provider: Provider, instance: Instance) -> InstanceState | None:
    found = {i.provider_id: i.state for i in provider.list()}
    return found.get(instance.provider_id)


def is_up(provider: Provider, instance: Instance) -> bool:
    return state(provider, instance) is InstanceState.RUNNING


def is_gone(provider: Provider, instance: Instance) -> bool:
    return state(provider, instance) is InstanceState.GONE


Request = Callable[..., LaunchRequest]
Eventually = Callable[[Callable[[], object]], None]


@dataclass(frozen=True, slots=True)
class UsualLaunch:
    """What the launches of one cloud's tests have in common.

    Attributes:
        offer: Facts of the offer that differ from those of a fake cloud.
        prepaid: Seconds after which the machine powers itself off.
    """

    offer: Mapping[str, str] = field(default_factory=lambda: {"zone": "a", "machine_type": "small"})
    labels: Mapping[str, str] = field(
        default_factory=lambda: {"purpose": "conformance_test", "owner-1": "none"}
    )
    prepaid: float = 60.0


def advancing(cloud: FakeCloud) -> Eventually:
    """Return what lets the time of a fake cloud pass until something is true."""

    def advance_until(is_true: Callable[[], object]) -> None:
        for _ in range(120):
            if is_true():
                return
            cloud.clock.advance(1.0)
        assert is_true()

    return advance_until


class ProviderConformance:
    """Every implementation inherits this and supplies ``provider``, ``destroy``, ``eventually``.

    ``provider`` makes a new provider object of the same installation whenever it is called;
    ``destroy`` ends a machine behind its provider's back; ``eventually`` lets time pass until
    something is true.

    Attributes:
        shows_gone_machines: Whether the cloud lists machines that are gone for a while.
        remembers_launch_keys: Whether a key whose machine is gone can never make a second one.
    """

    shows_gone_machines = True
    remembers_launch_keys = True

    def is_over(self, provider: Provider, instance: Instance) -> bool:
        """Whether the end of a machine that was listed before has come."""
        return state(provider, instance) is (
            InstanceState.GONE if self.shows_gone_machines else None
        )

    def require_used_up(
        self, provider: Provider, request: LaunchRequest, instance: Instance
    ) -> None:
        """Require that the key of a machine that is gone never returns that machine."""
        if self.remembers_launch_keys:
            with pytest.raises(LaunchRefused, match=request.launch_key):
                provider.launch(request)
            return
        with suppress(LaunchRefused, ProviderUnavailable):
            assert provider.launch(request).provider_id != instance.provider_id

    def test_nothing_exists_at_first(self, provider: Callable[[], Provider]) -> None:
        assert provider().list() == ()

    def test_a_machine_is_known_by_its_launch(
        self, provider: Callable[[], Provider], request_for: Request, eventually: Eventually
    ) -> None:
        request = request_for()
        launched = provider().launch(request)
        eventually(lambda: provider().list())
        (listed,) = provider().list()
        assert (listed.launch_key, listed.job) == ("key-1", "job-1")
        assert listed.labels == request.labels
        assert replace(listed, state=launched.state) == launched
        assert listed.state is not InstanceState.GONE

    def test_a_machine_comes_up(
        self, provider: Callable[[], Provider], request_for: Request, eventually: Eventually
    ) -> None:
        cloud = provider()
        machine = cloud.launch(request_for())
        eventually(lambda: is_up(cloud, machine))

    def test_a_launch_key_never_makes_a_second_machine(
        self, provider: Callable[[], Provider], request_for: Request, eventually: Eventually
    ) -> None:
        with ThreadPoolExecutor(8) as threads:
            launched = list(threads.map(lambda _: provider().launch(request_for()), range(8)))
        assert len({machine.provider_id for machine in launched}) == 1
        eventually(lambda: is_up(provider(), launched[0]))
        assert len(provider().list()) == 1

    def test_a_launch_key_repeated_with_another_environment_returns_its_machine(
        self, provider: Callable[[], Provider], request_for: Request, eventually: Eventually
    ) -> None:
        machine = provider().launch(request_for())
        eventually(lambda: is_up(provider(), machine))
        later = provider().launch(request_for(prepaid=59.0))
        assert later.provider_id == machine.provider_id
        assert len(provider().list()) == 1

    def test_another_key_makes_another_machine(
        self, provider: Callable[[], Provider], request_for: Request, eventually: Eventually
    ) -> None:
        cloud = provider()
        machines = [cloud.launch(request_for(key=key)) for key in ("key-1", "key-2")]
        cloud.terminate(machines[0].provider_id)
        eventually(lambda: len(cloud.list()) == 2)
        cloud.terminate(machines[0].provider_id)
        eventually(lambda: self.is_over(cloud, machines[0]))
        assert not self.is_over(cloud, machines[1])

    def test_a_machine_that_died_is_listed_gone_and_its_key_is_used_up(
        self,
        provider: Callable[[], Provider],
        request_for: Request,
        destroy: Callable[[Instance], None],
        eventually: Eventually,
    ) -> None:
        cloud = provider()
        machine = cloud.launch(request_for())
        eventually(lambda: is_up(cloud, machine))
        destroy(machine)
        eventually(lambda: self.is_over(cloud, machine))
        self.require_used_up(cloud, request_for(), machine)

    def test_an_ordered_end_comes_and_may_be_ordered_again(
        self, provider: Callable[[], Provider], request_for: Request, eventually: Eventually
    ) -> None:
        cloud = provider()
        machine = cloud.launch(request_for())
        eventually(lambda: is_up(cloud, machine))
        cloud.terminate(machine.provider_id)
        cloud.terminate(machine.provider_id)
        eventually(lambda: self.is_over(cloud, machine))
        cloud.terminate(machine.provider_id)
        self.require_used_up(cloud, request_for(), machine)

    def test_terminating_what_never_existed_succeeds(
        self, provider: Callable[[], Provider]
    ) -> None:
        provider().terminate("never-launched")

    def test_machines_outlive_the_provider_object(
        self, provider: Callable[[], Provider], request_for: Request, eventually: Eventually
    ) -> None:
        machine = provider().launch(request_for())
        eventually(lambda: is_up(provider(), machine))
        assert provider().launch(request_for()).provider_id == machine.provider_id
        provider().terminate(machine.provider_id)
        eventually(lambda: self.is_over(provider(), machine))

    def test_only_what_is_gone_can_be_forgotten(
        self, provider: Callable[[], Provider], request_for: Request, eventually: Eventually
    ) -> None:
        cloud = provider()
        machine = cloud.launch(request_for())
        eventually(lambda: is_up(cloud, machine))
        with pytest.raises(ValueError, match="not gone"):
            cloud.forget(machine.provider_id)
        cloud.terminate(machine.provider_id)
        eventually(lambda: self.is_over(cloud, machine))
        cloud.forget(machine.provider_id)
        cloud.forget(machine.provider_id)
