"""Where machines are asked for, what a refusal costs, and what follows when no place gives one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import Engine, select

from scavenger.protocol import Directive
from scavenger.schemas.jobs import JobPhase
from service.clouds.clouds import Clouds
from service.clouds.labels import ResourceLabels
from service.db import controllers, jobs, schema, vms
from service.db.shortages import SHORTAGE_SPAN, UNSOLD_SPAN, Shortage
from service.db.vms import Vm
from service.errors import (
    CloudError,
    CredentialsRefused,
    LaunchRefused,
    MachineTypeUnsold,
    OutOfCapacity,
    ProviderUnavailable,
    QuotaReached,
    Throttled,
)
from service.reconciler.actions import Launch, PublishDirective
from service.reconciler.endings import MAX_HOPELESS
from service.reconciler.fleet import Fleet
from service.reconciler.launches import shortage_of
from service.reconciler.places import MAX_REFUSALS, shortage_reason
from service.reconciler.plan import plan
from service.reconciler.target import WantedConfig, choose_wanted_config
from service.reconciler.tick import Reconciler
from service.state.capacity import lacks_capacity
from service.state.loader import load_job_states
from tests.builders import CONTACT, NOW, directive, document, offer, snapshot, spec, vm, worker
from tests.builders import job as stored
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import Interrupted, LateRequest, LostResponse, Refused
from tests.fakecloud.machine import Reason
from tests.fakecloud.provider import FakeCloudProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings

FULL = "InsufficientInstanceCapacity"


class Region:
    """A cloud of three zones, a controller, and jobs of one machine."""

    def __init__(self, engine: Engine, provider: FakeCloudProvider, cloud: FakeCloud) -> None:
        self.engine, self.cloud, self.provider = engine, cloud, provider
        with engine.begin() as connection:
            labels = ResourceLabels(controllers.installation_id(connection), b"our secret")
        watch = cloud.clock.now
        fleet = Fleet(engine, Clouds([provider]), CONTACT, labels, stopwatch=watch)
        self.reconciler = Reconciler(fleet, NOW)

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.cloud.clock.now())

    def submit(
        self,
        job: str = "job_1",
        workers: int = 1,
        market: str = "on_demand",
        max_cost: str = "9 USD",
    ) -> None:
        limits = {"max_cost": max_cost, "workers": f"{workers}..{workers}", "batch": [120]}
        wish = document(limits=limits, machine={"market": market})
        with self.engine.begin() as connection:
            jobs.create(connection, job, spec(**wish), self.now)

    def tick(self, job: str = "job_1", after: float = 0.0) -> str:
        """Act once for a job, so many seconds later."""
        self.cloud.clock.advance(after)
        with self.engine.begin() as connection:
            lease = controllers.acquire_lease(connection, job, None, timedelta(0))
        assert lease is not None
        return self.reconciler.tick(lease, self.now)[0].why

    def rows(self, job: str = "job_1") -> tuple[Vm, ...]:
        with self.engine.connect() as connection:
            return vms.of_job(connection, job)

    def told(self, job: str = "job_1") -> list[tuple[str, str]]:
        with self.engine.connect() as connection:
            found = jobs.events_after(connection, job, 0, 1000)
        return [(event.kind, event.message) for event in found]

    def lacks_capacity(self, job: str = "job_1") -> bool:
        with self.engine.connect() as connection:
            found = jobs.find(connection, job)
            assert found is not None
            (state,) = load_job_states(connection, "small", [found], self.now)
        return lacks_capacity(state)

    def asked(self) -> list[tuple[str, str]]:
        """Zones and markets of the machines there are, oldest first."""
        return [(one.description.zone, one.description.state) for one in self.cloud.machines()]


@pytest.fixture
def cloud() -> FakeCloud:
    return FakeCloud(VirtualClock(), Settings(boot=0.0, ending=0.0))


@pytest.fixture
def region(engine: Engine, cloud: FakeCloud) -> Iterator[Region]:
    with CloudServer(cloud) as server:
        provider = FakeCloudProvider(server.url, "account", zone="abc", boot=30.0)
        yield Region(engine, provider, cloud)
        provider.close()


def test_a_refused_launch_ends_its_key_at_no_cost_and_the_next_zone_is_asked(
    region: Region, cloud: FakeCloud
) -> None:
    cloud.stock("small@a", 0)
    region.submit()
    region.tick()
    (refused,) = region.rows()
    assert (refused.state, refused.zone, refused.refusal is None) == ("gone", "a", False)
    assert refused.cost(region.now + timedelta(hours=9)) == 0
    region.tick()
    _, second = region.rows()
    assert (second.state, second.zone, second.open_asks) == ("launched", "b", 1)
    assert second.launch_key != refused.launch_key
    assert [kind for kind, _ in region.told()].count("launch_refused") == 1


def test_a_machine_that_ends_at_once_for_want_of_room_is_asked_for_in_the_next_zone(
    region: Region, cloud: FakeCloud
) -> None:
    cloud.faults.next("launch", Interrupted(after=0.0, reason=Reason.SOLD_OUT))
    region.submit()
    for _ in range(3):
        region.tick(after=1.0)
    assert [vm.zone for vm in region.rows()] == ["a", "b"]
    assert [told for kind, told in region.told() if kind == "vm_gone"] == [
        "job_1-w1 is gone: it was not told to end: the cloud took it back, or it broke; its cloud "
        "says: the cloud had no room for it"
    ]


def test_machines_are_asked_for_where_the_job_has_some(region: Region, cloud: FakeCloud) -> None:
    cloud.stock("small@a", 0)
    region.submit(workers=2)
    for _ in range(3):
        region.tick()
    cloud.stock("small@a", 9)
    cloud.clock.advance(2 * SHORTAGE_SPAN.total_seconds())
    (first, second) = cloud.machines()
    assert [first.description.zone, second.description.zone] == ["b", "b"]
    cloud.terminate(first.description.id)
    for _ in range(4):
        region.tick()
    assert [vm.zone for vm in region.rows() if vm.is_alive] == ["b", "b"]


def test_of_several_machines_only_the_first_is_refused_by_the_cloud(
    region: Region, cloud: FakeCloud
) -> None:
    cloud.stock("small@a", 0)
    region.submit(workers=4)
    region.tick()
    assert cloud.faults.counts()[FULL] == 1
    rows = region.rows()
    assert [vm.state for vm in rows] == ["gone"] * 4
    assert all(vm.refusal is not None for vm in rows)
    region.tick()
    assert {vm.zone for vm in region.rows() if vm.is_alive} == {"b"}


def test_a_place_that_refused_one_job_is_not_asked_by_another(
    region: Region, cloud: FakeCloud
) -> None:
    cloud.stock("small@a", 0)
    for job in ("job_1", "job_2"):
        region.submit(job)
    region.tick()
    region.tick("job_2")
    assert cloud.faults.counts()[FULL] == 1
    assert [vm.zone for vm in region.rows("job_2")] == ["b"]
    cloud.stock("small@a", 9)
    region.submit("job_3")
    region.tick("job_3", after=SHORTAGE_SPAN.total_seconds() + 1)
    assert [vm.zone for vm in region.rows("job_3")] == ["a"]


def test_a_job_that_no_place_serves_says_so_once_and_asks_at_most_sixty_times_an_hour(
    region: Region, cloud: FakeCloud
) -> None:
    for zone in "abc":
        cloud.stock(f"small@{zone}", 0)
        cloud.stock(f"small@{zone}+spot", 0)
    region.submit(market="any")
    for _ in range(240):
        region.tick(after=15.0)
    told = region.told()
    assert [kind for kind, _ in told].count("waiting") == 1
    assert [kind for kind, _ in told].count("resumed") == 0
    assert [kind for kind, _ in told].count("launch") == 6, "each place once, before it waits"
    assert 3 * 15 <= cloud.faults.counts()[FULL] <= MAX_REFUSALS
    assert not any(vm.is_alive or vm.cost(region.now) for vm in region.rows())
    assert region.lacks_capacity()
    cloud.stock("small@b", 1)
    for _ in range(240):
        region.tick(after=15.0)
        if any(vm.state == "launched" for vm in region.rows()):
            break
    region.tick()
    assert [kind for kind, _ in region.told()].count("resumed") == 1
    assert [vm.zone for vm in region.rows() if vm.is_alive] == ["b"]
    assert not region.lacks_capacity()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("InstanceLimitExceeded", "gives no small in any of its zones"),
        ("UnauthorizedOperation", "does not let the controller launch machines"),
    ],
)
def test_what_concerns_all_zones_is_asked_for_in_one(
    region: Region, cloud: FakeCloud, code: str, words: str
) -> None:
    cloud.faults.always("launch", Refused(code))
    region.submit()
    region.tick()
    assert words in region.tick()
    for _ in range(100):
        region.tick(after=1.0)
    assert cloud.faults.counts()[code] == 1
    assert not any(vm.cost(region.now) for vm in region.rows())
    cloud.faults.calm()
    region.tick(after=SHORTAGE_SPAN.total_seconds())
    assert [vm.state for vm in region.rows() if vm.is_alive] == ["launched"]


def test_after_a_quota_the_other_market_is_asked(region: Region, cloud: FakeCloud) -> None:
    cloud.faults.next("launch", Refused("InstanceLimitExceeded"))
    region.submit(market="any")
    for _ in range(2):
        region.tick()
    assert [(vm.market, vm.state) for vm in region.rows()] == [
        ("spot", "gone"),
        ("on_demand", "launched"),
    ]


def test_a_throttled_launch_is_repeated_with_its_key(region: Region, cloud: FakeCloud) -> None:
    cloud.faults.next("launch", Refused("RequestLimitExceeded"), times=2)
    region.submit()
    for _ in range(5):
        region.tick(after=2.0)
    (vm,) = region.rows()
    assert (vm.state, vm.open_asks) == ("launched", 1)
    assert len(cloud.machines()) == 1


def test_a_refusal_after_a_throttled_ask_is_still_certain(region: Region, cloud: FakeCloud) -> None:
    cloud.faults.next("launch", Refused("RequestLimitExceeded"))
    region.submit()
    region.tick()
    cloud.stock("small@a", 0)
    region.tick(after=3.0)
    (vm,) = region.rows()
    assert (vm.state, vm.cost(region.now)) == ("gone", 0)


def test_a_refusal_after_a_lost_answer_proves_nothing(region: Region, cloud: FakeCloud) -> None:
    cloud.faults.next("launch", LateRequest(after=20.0))
    cloud.faults.next("launch", Refused(FULL))
    region.submit()
    region.tick()
    region.tick(after=3.0)
    first = region.rows()[0]
    assert (first.state, first.refusal, first.open_asks) == ("ending", None, 1)
    region.tick()
    assert [vm.zone for vm in region.rows()] == ["a", "b"]
    for _ in range(60):  # the machine comes late after all, is found, and is ended
        region.tick(after=1.0)
    late, wanted = sorted(cloud.machines(), key=lambda one: one.description.zone)
    assert (late.gone_at is None, wanted.gone_at) == (False, None)
    assert region.rows()[0].state == "gone"
    bills = {line.machine: Decimal(line.dollars) for line in cloud.bill().lines}
    billed = bills[late.description.id]
    assert region.rows()[0].cost(region.now) >= billed > 0


def test_a_repeated_launch_carries_the_stamp_of_its_first_attempt(
    region: Region, cloud: FakeCloud
) -> None:
    cloud.faults.next("launch", LostResponse())
    region.submit()
    region.tick()
    (first,) = region.rows()
    region.tick(after=3.0)
    (vm,) = region.rows()
    assert vm.stamp == first.stamp is not None
    (machine,) = cloud.machines()
    assert vm.stamp in machine.description.labels.values()
    assert cloud.faults.counts().get("IdempotentParameterMismatch", 0) == 0


def test_the_offer_of_a_launch_stands_in_its_row_before_the_cloud_is_asked(
    region: Region, cloud: FakeCloud
) -> None:
    cloud.faults.next("launch", LostResponse())
    region.submit(market="spot")
    region.tick()
    (vm,) = region.rows()
    assert (vm.cloud, vm.zone, vm.machine_type, vm.market) == ("fake", "a", "small", "spot")
    with region.engine.connect() as connection:
        row = connection.execute(select(schema.vms)).one()
    assert row.provider_id is None


@pytest.mark.parametrize(
    ("error", "zone", "machine_type", "market", "span"),
    [
        (OutOfCapacity("no"), "a", "small", "spot", SHORTAGE_SPAN),
        (MachineTypeUnsold("no"), "a", "small", "spot", UNSOLD_SPAN),
        (QuotaReached("no"), "", "small", "spot", SHORTAGE_SPAN),
        (CredentialsRefused("no"), "", "", "", SHORTAGE_SPAN),
    ],
)
def test_what_a_refusal_says_of_other_places(
    error: CloudError, zone: str, machine_type: str, market: str, span: timedelta
) -> None:
    place = offer(cloud="fake", zone="a", machine_type="small", market="spot")
    short = shortage_of(place, error, NOW)
    assert short is not None
    assert (short.zone, short.machine_type, short.market) == (zone, machine_type, market)
    assert short.until == NOW + span
    assert short.covers(place)


@pytest.mark.parametrize("error", [LaunchRefused("no"), Throttled("no"), ProviderUnavailable("no")])
def test_what_concerns_one_launch_says_nothing_of_its_place(error: CloudError) -> None:
    assert shortage_of(offer(), error, NOW) is None


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"zone": "", "machine_type": "", "market": ""}, True),
        ({"zone": "", "machine_type": ""}, True),
        ({"cloud": "other"}, False),
        ({"zone": "b"}, False),
        ({"machine_type": "large"}, False),
        ({"market": "spot"}, False),
    ],
)
def test_which_offers_a_shortage_covers(changes: dict[str, str], expected: bool) -> None:
    facts = {"cloud": "fake", "zone": "a", "machine_type": "small", "market": "on_demand"}
    short = Shortage(**{**facts, **changes}, kind="capacity", why="", until=NOW)
    assert short.covers(offer(cloud="fake", zone="a", machine_type="small")) is expected


def test_a_launch_that_can_never_succeed_fails_the_job_with_the_clouds_words(
    region: Region, cloud: FakeCloud
) -> None:
    cloud.faults.always("launch", Refused("InvalidParameterValue"))
    region.submit()
    for _ in range(20):
        region.tick(after=1.0)
    with region.engine.connect() as connection:
        job = jobs.find(connection, "job_1")
    assert job is not None
    assert job.phase is JobPhase.FAILED
    assert "the cloud refuses its machines: InvalidParameterValue" in job.reason
    assert cloud.faults.counts()["InvalidParameterValue"] == MAX_HOPELESS


def test_a_launch_that_was_only_throttled_is_over_at_once_and_costs_nothing(
    region: Region, cloud: FakeCloud
) -> None:
    cloud.faults.always("launch", Refused("RequestLimitExceeded"))
    region.submit()
    for _ in range(10):
        region.tick(after=3.0)
    with region.engine.begin() as connection:
        jobs.request_cancel(connection, "job_1", region.now)
    for _ in range(4):
        region.tick(after=1.0)
    (vm,) = region.rows()
    assert (vm.state, vm.cost(region.now + timedelta(hours=1))) == ("gone", 0)


def test_a_job_trains_on_the_machines_there_are_while_no_place_gives_the_others() -> None:
    place = offer(cloud="local")
    short = Shortage("local", "", "", "", "capacity", "sold out", NOW + timedelta(minutes=3))
    few = snapshot(vms=(vm(1),), places=(place,), shortages=(short,))
    wanted = choose_wanted_config(few)
    assert isinstance(wanted, WantedConfig)
    assert (wanted.config.workers, wanted.shortfall_reason) == (1, shortage_reason(few))
    many = choose_wanted_config(replace(few, shortages=()))
    assert isinstance(many, WantedConfig)
    assert many.config.workers == 2


@pytest.mark.parametrize("told", [None, directive(1, 32, purpose="probe")], ids=["new", "probed"])
def test_a_job_that_searches_trains_on_its_machines_while_no_place_gives_the_others(
    told: Directive | None,
) -> None:
    place = offer(cloud="local")
    short = Shortage("local", "", "", "", "capacity", "sold out", NOW + timedelta(minutes=3))
    searching = snapshot(
        job=stored(spec=spec(limits={"max_cost": "1 USD", "workers": "2..2", "batch": [32, 128]})),
        vms=(vm(1),),
        workers=(worker(1, generation=0 if told is None else 1),),
        directive=told,
        places=(place,),
        shortages=(short,),
    )
    action = plan(searching)
    assert isinstance(action, PublishDirective), action
    assert (action.directive.config.workers, action.directive.purpose) == (1, "train")
    assert shortage_reason(searching) in action.why
    assert isinstance(plan(replace(searching, shortages=())), Launch)


def test_the_time_of_a_job_begins_with_its_first_machine_that_no_cloud_refused() -> None:
    refused = vm(1, state="gone", refusal="sold out", intended_at=NOW - timedelta(hours=2))
    assert snapshot(vms=(refused,)).elapsed == 0.0
    assert snapshot(vms=(refused, vm(2))).elapsed == 60.0
