"""One list of the cloud serves many jobs, and is never older than what it is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Set
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from scavenger.schemas.jobs import JobPhase
from service import ledger
from service.clouds.clouds import Clouds
from service.clouds.inventory import LIST_WAIT, Inventories
from service.clouds.labels import ResourceLabels
from service.clouds.provider import Instance, LaunchRequest
from service.db import controllers, jobs, vms
from service.db.vms import Vm
from service.errors import CloudsFileRefused, ProviderUnavailable
from service.reconciler.fleet import Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT, NOW, document, spec
from tests.controller_double import until
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import LostResponse, Omitted, Refused
from tests.fakecloud.hanging import HangingProvider
from tests.fakecloud.machine import State
from tests.fakecloud.provider import FakeCloudProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings

WISH = document(limits={"max_cost": "100 USD", "workers": "2..2", "batch": [120]})


class Counted(FakeCloudProvider):
    """A provider that counts what it is asked, and is slow to launch if so told."""

    lists, takes, lasts = 0, 0.0, 0.0
    wait: Callable[[float], None]

    def launch(self, request: LaunchRequest) -> Instance:
        """Launch a machine, and answer later."""
        made = super().launch(request)
        self.wait(self.takes)
        return made

    def list(self) -> tuple[Instance, ...]:
        """Return what the cloud shows."""
        self.lists += 1
        shown = super().list()
        self.wait(self.lasts)
        return shown


class Broken(FakeCloudProvider):
    """A provider that does not understand what its cloud says."""

    def list(self) -> tuple[Instance, ...]:
        """Fail."""
        raise ValueError("not what was agreed")


class Misdirected(FakeCloudProvider):
    """A provider whose entry names a subnet of another zone."""

    @property
    def account(self) -> str:
        """Refuse the entry."""
        raise CloudsFileRefused("subnet-1 is in zone b: correct its entry in the clouds file")


class Sky:
    """Jobs, a cloud whose lists do not lag unless told so, and a controller."""

    def __init__(self, engine: Engine, url: str, cloud: FakeCloud, lag: float = 0.0) -> None:
        self.engine, self.cloud = engine, cloud
        self.provider = Counted(url, "account", lag=lag)
        self.provider.wait = cloud.clock.advance
        with engine.begin() as connection:
            ownership = ResourceLabels(controllers.installation_id(connection), b"our secret")
        watch = cloud.clock.now
        fleet = Fleet(engine, Clouds([self.provider]), CONTACT, ownership, stopwatch=watch)
        self.reconciler = Reconciler(fleet, NOW)

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.cloud.clock.now())

    def submit(self, job: str, **changes: object) -> None:
        with self.engine.begin() as connection:
            jobs.create(connection, job, spec(**{**WISH, **changes}), self.now)

    def tick(self, inventory: Inventories, job: str = "job_1") -> str:
        with self.engine.begin() as connection:
            lease = controllers.acquire_lease(connection, job, None, timedelta(0))
        assert lease is not None
        return self.reconciler.tick(lease, self.now, inventory)[0].why

    def shown(self, inventory: Inventories) -> Set[str]:
        listing = inventory.listing("fake", self.now)
        assert listing is not None
        return listing.instances.keys()

    def rows(self, job: str = "job_1") -> tuple[Vm, ...]:
        with self.engine.connect() as connection:
            return vms.of_job(connection, job)


@pytest.fixture
def cloud() -> FakeCloud:
    return FakeCloud(VirtualClock(), Settings(boot=0.0, ending=0.0))


@pytest.fixture
def url(cloud: FakeCloud) -> Iterator[str]:
    with CloudServer(cloud) as server:
        yield server.url


@pytest.fixture
def sky(engine: Engine, cloud: FakeCloud, url: str) -> Iterator[Sky]:
    found = Sky(engine, url, cloud)
    found.submit("job_1")
    yield found
    found.provider.close()


def test_one_list_serves_all_jobs_of_a_pass(sky: Sky) -> None:
    for number in range(2, 6):
        sky.submit(f"job_{number}")
    loop = ReconcilerLoop(sky.reconciler)
    loop._pass()
    before = sky.provider.lists
    loop.nudge_all()
    loop._pass()
    assert sky.provider.lists == before + 1
    assert len(sky.cloud.machines()) == 10


def test_a_machine_launched_after_the_list_is_not_judged_by_it(sky: Sky) -> None:
    inventory = sky.reconciler.open_inventories()
    assert not sky.shown(inventory)
    for _ in range(3):
        sky.tick(inventory)
    assert [vm.state for vm in sky.rows()] == ["launched", "launched"]
    assert len(sky.cloud.machines()) == 2


class Mistaken(Inventories):
    """A inventory that fails before any job is looked at."""

    def mark_stale(self) -> None:
        raise ValueError("a mistake")


def test_a_mistake_in_one_pass_does_not_end_the_others(
    sky: Sky, caplog: pytest.LogCaptureFixture
) -> None:
    loop = ReconcilerLoop(sky.reconciler, Mistaken.of(sky.engine, sky.reconciler.fleet.clouds))
    loop.start()
    until(lambda: "a mistake" in caplog.text)
    loop.inventories = sky.reconciler.open_inventories()
    until(lambda: len(sky.cloud.machines()) == 2)
    loop.stop()


def test_time_is_reserved_from_the_moment_that_a_machine_is_asked_for(sky: Sky) -> None:
    """Else the last of many, launched by a slow cloud, may run for longer than was paid for."""
    sky.provider.takes = 60.0
    sky.tick(sky.reconciler.open_inventories())
    asked = [NOW, NOW + timedelta(seconds=60)]
    assert [vm.attempted_at for vm in sky.rows()] == asked
    for vm in sky.rows():
        assert vm.attempted_at is not None
        assert vm.prepaid_until >= vm.attempted_at + timedelta(seconds=vm.prepaid)


def test_a_launch_whose_answer_was_lost_is_not_repeated_before_the_next_list(sky: Sky) -> None:
    sky.cloud.faults.next("launch", LostResponse())
    inventory = sky.reconciler.open_inventories()
    inventory.listing("fake", sky.now)
    sky.tick(inventory)
    asked = [vm.attempted_at for vm in sky.rows()]
    sky.cloud.clock.advance(1.0)
    sky.tick(inventory)
    assert [vm.attempted_at for vm in sky.rows()] == asked
    sky.tick(sky.reconciler.open_inventories())
    assert [vm.state for vm in sky.rows()] == ["launched", "launched"]
    assert len(sky.cloud.machines()) == 2


def test_a_launch_confirmed_by_another_after_the_list_counts(sky: Sky) -> None:
    """It was asked for before the list and made after it, so only its name tells that."""
    sky.cloud.faults.next("launch", Refused("InternalError"), times=2)
    sky.tick(sky.reconciler.open_inventories())
    sky.cloud.clock.advance(2.0)
    inventory = sky.reconciler.open_inventories()
    assert not sky.shown(inventory)
    (one, other) = sky.rows()
    with sky.engine.begin() as connection:
        vms.record_launch(connection, one.id, "made-a-moment-ago")
    sky.tick(inventory)
    states = {vm.id: vm.state for vm in sky.rows()}
    assert states == {one.id: "launched", other.id: "launched"}


@pytest.fixture
def overcast(engine: Engine, cloud: FakeCloud, url: str) -> Iterator[Sky]:
    """A cloud whose lists may lag by ten seconds, and show none of the machines there are."""
    found = Sky(engine, url, cloud, lag=10.0)
    found.submit("job_1")
    found.tick(found.reconciler.open_inventories())
    cloud.faults.always("list", Omitted())
    yield found
    found.provider.close()


def test_a_machine_is_missed_since_the_list_not_since_it_was_read(overcast: Sky) -> None:
    sky, cloud = overcast, overcast.cloud
    inventory = sky.reconciler.open_inventories()
    looked_at = sky.now
    inventory.listing("fake", looked_at)
    cloud.clock.advance(3.0)
    sky.tick(inventory)
    assert {vm.missed_at for vm in sky.rows()} == {looked_at}
    cloud.clock.advance(6.9)
    sky.tick(late := sky.reconciler.open_inventories())
    cloud.clock.advance(1.0)
    sky.tick(late)
    assert all(vm.is_alive for vm in sky.rows())
    sky.tick(sky.reconciler.open_inventories())
    assert not any(vm.is_alive for vm in sky.rows()[:2])


def test_a_machine_is_missed_since_the_list_was_answered(overcast: Sky) -> None:
    """Else a list that took long, and a quick one, would show less than how lists lag."""
    sky, cloud = overcast, overcast.cloud
    sky.provider.lasts = 9.0
    sky.tick(sky.reconciler.open_inventories())
    sky.provider.lasts = 0.0
    assert {vm.missed_at for vm in sky.rows()} == {sky.now}
    cloud.clock.advance(9.9)
    sky.tick(sky.reconciler.open_inventories())
    assert all(vm.is_alive for vm in sky.rows())
    cloud.clock.advance(0.2)
    sky.tick(sky.reconciler.open_inventories())
    assert not any(vm.is_alive for vm in sky.rows()[:2])


def test_a_list_that_cannot_be_read_hides_the_cloud_from_all(
    sky: Sky, caplog: pytest.LogCaptureFixture
) -> None:
    broken = Broken("http://cloud", "account")
    inventory = Inventories.of(sky.engine, Clouds([broken]))
    for _ in range(3):
        with pytest.raises(ProviderUnavailable, match="fake does not show its machines"):
            inventory.listing("fake", sky.now)
        inventory.mark_stale()
    assert caplog.text.count("Traceback") == 1


def test_an_entry_that_cannot_be_used_hides_its_cloud_and_is_told_once(
    sky: Sky, caplog: pytest.LogCaptureFixture
) -> None:
    inventory = Inventories.of(sky.engine, Clouds([Misdirected("http://cloud", "unused")]))
    for seconds in range(0, 120, 5):
        with pytest.raises(ProviderUnavailable, match="fake does not show its machines"):
            inventory.listing("fake", sky.now + timedelta(seconds=seconds))
        inventory.mark_stale()
    assert caplog.text.count("correct its entry in the clouds file") == 1
    assert "Traceback" not in caplog.text


def test_clouds_that_are_slow_are_waited_for_together(engine: Engine) -> None:
    slow = []
    for number in range(8):
        cloud = HangingProvider("http://cloud")
        cloud.name = f"slow-{number}"
        cloud.hang("list")
        slow.append(cloud)
    inventories = Inventories.of(engine, Clouds(slow), threads=1)

    def is_hidden(name: str) -> bool:
        inventories.mark_stale()
        with suppress(ProviderUnavailable):
            inventories.listing(name, NOW)
            return False
        return True

    began = time.monotonic()
    inventories.request(NOW)
    assert [inventories.listing(cloud.name, NOW) for cloud in slow] == [None] * len(slow)
    assert time.monotonic() - began < len(slow) * LIST_WAIT / 2
    until(lambda: all(cloud.asked for cloud in slow))
    for cloud in slow:
        cloud.release()
        until(partial(is_hidden, cloud.name))
        cloud.close()
    inventories.close()


def test_what_a_paced_cloud_showed_a_moment_ago_serves_others_too(sky: Sky) -> None:
    watch, provider = sky.cloud.clock.now, sky.provider
    provider.traits = replace(provider.traits, list_interval_seconds=5.0)
    inventories = Inventories.of(sky.engine, Clouds([provider]), stopwatch=watch)
    assert inventories.recent("fake") is None
    sky.cloud.clock.advance(20.0)
    assert inventories.recent("fake") is None
    inventories.listing("fake", sky.now)
    assert inventories.recent("fake") == provider.list()
    sky.cloud.clock.advance(10.0)
    assert inventories.recent("fake") is None, "it is old"
    provider.traits = replace(provider.traits, list_interval_seconds=0.0)
    inventories.mark_stale()
    inventories.listing("fake", sky.now)
    assert inventories.recent("fake") is None, "this cloud may be asked again at once"


def test_what_waited_for_a_slow_cloud_costs_nothing(
    engine: Engine, cloud: FakeCloud, url: str
) -> None:
    """The cap pays for both machines for as long as it can, and the second is asked for later."""
    sky = Sky(engine, url, cloud)
    cap = {"max_cost": "0.05 USD", "workers": "2..2", "batch": [120]}
    sky.submit("job_1", limits=cap, price="0.36 USD/h")
    sky.provider.takes = 60.0
    sky.tick(sky.reconciler.open_inventories())
    first, second = sky.rows()
    assert [vm.attempted_at for vm in (first, second)] == [NOW, NOW + timedelta(seconds=60)]
    assert second.prepaid_until - first.prepaid_until == timedelta(seconds=60)
    assert second.cost(sky.now) == first.cost(NOW + timedelta(seconds=60))
    assert ledger.committed((first, second)) <= Decimal("0.05")
    sky.provider.close()


@pytest.mark.parametrize("cap", ["0.0076 USD", "0.02 USD", "0.075 USD"])
def test_a_cap_that_does_not_pay_for_a_boot_ends_the_job(
    engine: Engine, cloud: FakeCloud, url: str, cap: str
) -> None:
    """What plan() thinks it can launch and what a launch can pay for are the same."""
    sky = Sky(engine, url, cloud)
    limits = {"max_cost": cap, "workers": "1..1", "batch": [120]}
    sky.submit("job_1", limits=limits, price="3.60 USD/h")
    for _ in range(4):
        sky.tick(sky.reconciler.open_inventories())
    with engine.connect() as connection:
        found = jobs.find(connection, "job_1")
    assert found is not None
    assert (found.phase, len(sky.rows())) == (JobPhase.CAPPED, 0)
    sky.provider.close()


def test_a_list_is_good_until_the_next_pass(sky: Sky) -> None:
    inventory = sky.reconciler.open_inventories()
    first = inventory.listing("fake", sky.now)
    assert inventory.listing("fake", sky.now + timedelta(seconds=5)) is first
    inventory.mark_stale()
    assert inventory.listing("fake", sky.now + timedelta(seconds=5)) not in (None, first)


def test_a_cloud_that_does_not_answer_is_not_asked_for_each_job(sky: Sky) -> None:
    sky.submit("job_2")
    for job in ("job_1", "job_2"):
        sky.tick(sky.reconciler.open_inventories(), job)
    sky.cloud.faults.next("list", Refused("RequestLimitExceeded"))
    before, inventory = sky.provider.lists, sky.reconciler.open_inventories()
    for job in ("job_1", "job_2"):
        sky.tick(inventory, job)
    with pytest.raises(ProviderUnavailable, match="read the controller's log"):
        inventory.listing("fake", sky.now)
    assert sky.provider.lists == before + 1


def test_a_cloud_that_did_not_answer_is_left_alone_for_a_while(sky: Sky) -> None:
    sky.cloud.faults.next("list", Refused("RequestLimitExceeded"))
    inventory = sky.reconciler.open_inventories()
    for second in range(6):
        inventory.mark_stale()
        with suppress(ProviderUnavailable):
            assert inventory.listing("fake", NOW + timedelta(seconds=second)) is not None
            assert second == 5
    assert sky.provider.lists == 2


STEPS = st.lists(st.sampled_from(["look", "tick", "other", "end", "wait"]), max_size=9)


@given(steps=STEPS)
@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_however_old_a_list_is_no_machine_that_runs_counts_as_gone(
    engine: Engine, url: str, cloud: FakeCloud, steps: list[str]
) -> None:
    """Two controllers in turns; one of them looks seldom."""
    sky = Sky(engine, url, cloud)
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM jobs"))
    job = f"job_{len(cloud.machines())}"
    sky.submit(job)
    inventory = sky.reconciler.open_inventories()
    for step in steps:
        if step == "look":
            (inventory := sky.reconciler.open_inventories()).listing("fake", sky.now)
        elif step == "tick":
            sky.tick(inventory, job)
        elif step == "other":
            sky.tick(sky.reconciler.open_inventories(), job)
        elif step == "end" and (alive := running(cloud)):
            cloud.interrupt(alive[0])
        cloud.clock.advance(0.3)
        gone = {vm.provider_id for vm in sky.rows(job) if not vm.is_alive}
        assert not gone & set(running(cloud))
    with engine.connect() as connection:
        found = jobs.find(connection, job)
    assert found is not None
    assert found.phase in (JobPhase.PENDING, JobPhase.STARTING)
    sky.provider.close()


def running(cloud: FakeCloud) -> list[str]:
    """Return the machines that truly run."""
    found = (truth.description for truth in cloud.machines())
    return [machine.id for machine in found if machine.state is State.RUNNING]
