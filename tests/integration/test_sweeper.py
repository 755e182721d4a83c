"""The sweeper on a real database and a fake cloud, whose clock only moves when a test moves it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine, create_engine, delete, func, select, text, update
from sqlalchemy.pool import NullPool

from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.machines import SweepView
from service.clouds.clouds import Clouds
from service.clouds.labels import LAUNCH_COUNT_LABEL, OWNER_LABEL, SIGNATURE_LABEL, ResourceLabels
from service.clouds.provider import Instance, InstanceState
from service.db import controllers, jobs, schema, sweeps, vms
from service.db.vms import LaunchCounter
from service.errors import CloudError, ProviderUnavailable
from service.garbage_collection import collector
from service.garbage_collection.collector import (
    FAST_SWEEPS,
    CollectorLoop,
    GarbageCollector,
    sweep_pauses,
)
from service.garbage_collection.judge import SweepVerdict
from service.postgres.server import EmbeddedPostgres
from service.reconciler.fleet import Fleet
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT, NOW, document, spec
from tests.conftest import run
from tests.controller_double import LONG, until
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.faults import Ignored, LostResponse, Omitted, Refused
from tests.fakecloud.machine import Request, State
from tests.fakecloud.provider import INSTALLATION, JOB, KEY, FakeCloudProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings

SECRET = b"our secret"
ALIVE = (State.PENDING, State.RUNNING)
HOUR = timedelta(hours=1)


@dataclass
class World:
    """One controller, the database it has now, and a cloud, in one time."""

    engine: Engine
    cloud: FakeCloud
    provider: FakeCloudProvider

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        """Let a controller begin that finds the database as it is."""
        with self.engine.begin() as connection:
            self.resource_labels = ResourceLabels(controllers.installation_id(connection), SECRET)
        fleet = Fleet(
            engine=self.engine,
            clouds=Clouds([self.provider]),
            contact=CONTACT,
            resource_labels=self.resource_labels,
            stopwatch=self.cloud.clock.now,
        )
        self.reconciler = Reconciler(fleet, NOW)
        self.sweeper = GarbageCollector(self.engine, self.provider, self.resource_labels)

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.cloud.clock.now())

    def submit(self, job: str, workers: int = 1) -> None:
        """Store a job and launch its machines."""
        limits = {"max_cost": "100 USD", "workers": f"{workers}..{workers}", "batch": [120]}
        with self.engine.begin() as connection:
            jobs.create(connection, job, spec(**document(limits=limits)), self.now)
        self.tick(job)

    def tick(self, job: str) -> str:
        with self.engine.begin() as connection:
            lease = controllers.acquire_lease(connection, job, None, timedelta(0))
        assert lease is not None
        return self.reconciler.tick(lease, self.now)[0].why

    def sweep(self, after: float = 0.0) -> SweepVerdict:
        """Sweep so many seconds later."""
        self.cloud.clock.advance(after)
        verdict = self.sweeper.sweep(self.now, timedelta(0))
        assert verdict is not None
        return verdict

    def alive(self) -> set[str]:
        """The machines that truly run."""
        found = (truth.description for truth in self.cloud.machines())
        return {machine.id for machine in found if machine.state in ALIVE}

    def stored(self) -> list[SweepView]:
        with self.engine.connect() as connection:
            return sweeps.newest(connection, 100)

    def forget(self, job: str) -> None:
        """Lose the rows of a job's machines."""
        with self.engine.begin() as connection:
            connection.execute(delete(schema.vms).where(schema.vms.c.job == job))


@pytest.fixture
def world(engine: Engine) -> Iterator[World]:
    cloud = FakeCloud(VirtualClock(), Settings())
    with CloudServer(cloud) as server:
        provider = FakeCloudProvider(server.url, "account")
        yield World(engine, cloud, provider)
        provider.close()


def fates(verdict: SweepVerdict) -> list[str]:
    return [suspect.fate for suspect in verdict.suspects]


def test_a_job_that_goes_on_is_left_alone(world: World) -> None:
    world.submit("job_1", workers=4)
    for _ in range(8):
        verdict = world.sweep(after=60)
        assert (verdict.shown, verdict.suspects, verdict.tripped) == (4, (), None)
    assert len(world.alive()) == 4


def test_a_list_that_the_reconciler_has_just_asked_for_is_swept_without_another(
    world: World,
) -> None:
    world.submit("job_1", workers=2)
    shown = world.provider.list()
    world.cloud.faults.always("list", Refused("RequestLimitExceeded"))
    with pytest.raises(CloudError):
        world.sweep()
    world.sweeper = replace(world.sweeper, recent=lambda: shown)
    assert world.sweep(after=60).shown == 2


def test_labels_are_written_by_the_launch_itself(world: World) -> None:
    world.submit("job_1", workers=2)
    shown = world.provider.list()
    assert [world.resource_labels.foreign_reason(one) for one in shown] == [None, None]
    stamps = {one.labels[LAUNCH_COUNT_LABEL] for one in shown}
    with world.engine.connect() as connection:
        known = vms.launch_counts(connection, {vms.counter_id_of(stamp) for stamp in stamps})
    assert len(stamps) == 2
    assert all(vms.is_counted(stamp, known) for stamp in stamps)


def test_a_machine_whose_answer_was_lost_and_whose_intent_is_gone_is_swept(world: World) -> None:
    world.cloud.faults.next("launch", LostResponse())
    world.submit("job_1")
    world.forget("job_1")
    (machine,) = world.alive()
    for after in (0, 10, 10, 9):
        assert fates(world.sweep(after)) == ["wait"]
        assert world.alive() == {machine}
    assert fates(world.sweep(after=1)) == ["end"]
    assert world.alive() == set()
    assert [sweep.ended for sweep in world.stored()] == [1, 0, 0, 0, 0]
    with world.engine.connect() as connection:
        said = [
            e.message for e in jobs.events_after(connection, "job_1", 0, 100) if e.kind == "sweep"
        ]
    assert said == [f"{machine} was swept: the database does not know it"]
    assert world.sweep(after=60).suspects == ()
    assert world.cloud.faults.unfired() == ()


def test_an_end_the_cloud_forgets_is_ordered_again(world: World) -> None:
    world.submit("job_1")
    world.forget("job_1")
    world.cloud.faults.next("terminate", Ignored())
    world.cloud.faults.next("terminate", Refused("InternalError"))
    assert [fates(world.sweep(after)) for after in (0, 30, 10, 10)] == [
        ["wait"],
        ["end"],
        ["end"],
        ["end"],
    ]
    assert [sweep.ended for sweep in world.stored()] == [1, 0, 1, 0]
    assert world.alive() == set()
    assert world.cloud.faults.unfired() == ()


def test_a_list_that_leaves_a_machine_out_begins_its_time_anew(world: World) -> None:
    world.submit("job_1")
    world.forget("job_1")
    assert fates(world.sweep()) == ["wait"]
    world.cloud.faults.next("list", Omitted())
    assert fates(world.sweep(after=20)) == []
    assert fates(world.sweep(after=20)) == ["wait"]
    assert fates(world.sweep(after=29)) == ["wait"]
    assert fates(world.sweep(after=1)) == ["end"]


def test_grace_is_longer_where_lists_lag(world: World) -> None:
    world.submit("job_1")
    world.forget("job_1")
    world.provider = replace_lag(world.provider, 60.0)
    world.start()
    assert [fates(world.sweep(after)) for after in (0, 60, 29, 1)] == [
        ["wait"],
        ["wait"],
        ["wait"],
        ["end"],
    ]
    world.provider.close()


def replace_lag(provider: FakeCloudProvider, lag: float) -> FakeCloudProvider:
    url = str(provider._http.base_url).removesuffix("/cloud/")
    provider.close()
    return FakeCloudProvider(url, "account", lag=lag)


def test_what_a_finished_job_leaves_is_swept_two_minutes_later(world: World) -> None:
    world.submit("job_1")
    with world.engine.begin() as connection:
        ended = {"phase": JobPhase.CAPPED, "finished_at": world.now}
        jobs.change_outcome(connection, "job_1", **ended)
    assert fates(world.sweep(after=120)) == []
    assert fates(world.sweep(after=1)) == ["wait"]
    assert fates(world.sweep(after=30)) == ["end"]
    assert world.alive() == set()


def test_what_is_not_provably_ours_is_spared(world: World) -> None:
    world.submit("job_1")
    (ours,) = world.provider.list()
    others = ResourceLabels("another", SECRET)
    pairs = [
        ("k1", {}),
        ("k2", others.labels("k2", "a-1")),
        ("k3", dict(ours.labels)),
        (ours.launch_key, dict(ours.labels)),
    ]
    for number, (key, labels) in enumerate(pairs):
        account = {INSTALLATION: "account", JOB: "job_9", KEY: key}
        world.cloud.launch(f"token-{number}", Request("small", "a", labels={**labels, **account}))
    before = world.alive()
    world.forget("job_1")
    for _ in range(4):
        verdict = world.sweep(after=60)
        assert not verdict.ended
    assert {one.reason for one in verdict.suspects} == {
        "it carries no label of ours",
        "it belongs to another installation",
        "its signature is not of its launch key",
        "another machine carries its launch key, too",
    }
    assert world.alive() == before


class Strange(FakeCloudProvider):
    """Shows a stranger's machine, too, whose every word is odd."""

    owner = ""

    def list(self) -> tuple[Instance, ...]:
        odd = "a\0b\ud800" + 5000 * "c"
        labels = {OWNER_LABEL: self.owner, LAUNCH_COUNT_LABEL: f"{odd}-1", SIGNATURE_LABEL: odd}
        one = Instance(odd, odd, odd, InstanceState.RUNNING, "", labels)
        ours = [
            replace(found, labels={**found.labels, LAUNCH_COUNT_LABEL: odd})
            for found in super().list()
        ]
        return (one, replace(one, provider_id="i-x", labels={}), *ours)


def test_odd_words_of_strangers_stop_no_sweep(world: World) -> None:
    world.submit("job_1")
    strange = Strange(str(world.provider._http.base_url).removesuffix("/cloud/"), "account")
    strange.owner = world.resource_labels.installation
    sweeper = replace(world.sweeper, provider=strange)
    verdict = sweeper.sweep(world.now, timedelta(0))
    assert verdict is not None
    assert sorted(fates(verdict)) == ["keep", "spare", "spare"]
    assert world.stored()[0].suspects == list(verdict.suspects)
    strange.close()


def test_a_restored_backup_ends_nothing_until_a_person_confirms(
    world: World, postgres: EmbeddedPostgres
) -> None:
    """Three launches after the backup: as few as would be ended without a second thought."""
    world.submit("job_1", workers=2)
    with restored(world, postgres) as forget_since:
        world.submit("job_2", workers=3)
        forget_since()
        world.start()
        assert len(world.alive()) == 5
        for _ in range(5):
            verdict = world.sweep(after=60)
            assert fates(verdict) == ["hold"] * 3
            assert verdict.tripped is not None
            assert "3 of 5 machines were launched after this database was saved" in verdict.tripped
        assert len(world.alive()) == 5
        # New launches count anew, which must not make the old ones look known.
        world.submit("job_3", workers=4)
        assert fates(world.sweep(after=60)) == ["hold"] * 3
        with world.engine.begin() as connection:
            sweeps.confirm(connection, world.stored()[0].number, world.now)
        assert fates(world.sweep(after=60)) == ["end"] * 3
        assert len(world.alive()) == 6
        assert world.sweep(after=60).suspects == ()


def test_a_database_that_is_restored_under_a_running_controller_is_found_out_too(
    world: World, postgres: EmbeddedPostgres
) -> None:
    world.submit("job_1")
    with restored(world, postgres) as forget_since:
        world.submit("job_2", workers=3)
        epoch = world.reconciler.fleet.launch_counter
        forget_since()
        world.start()
        fleet = replace(world.reconciler.fleet, launch_counter=epoch)
        world.reconciler = replace(world.reconciler, fleet=fleet)
        world.submit("job_3", workers=4)
        for _ in range(3):
            assert fates(world.sweep(after=60)) == ["hold"] * 3
        assert len(world.alive()) == 8


class restored:  # noqa: N801
    """Save the database of a world; the call it gives puts the copy in its place."""

    def __init__(self, world: World, postgres: EmbeddedPostgres) -> None:
        self.world, self.postgres = world, postgres
        self.original = world.engine

    def __enter__(self) -> restored:
        self.original.dispose()
        run(self.postgres, f"CREATE DATABASE backup TEMPLATE {self.original.url.database}")
        return self

    def __call__(self) -> None:
        self.world.engine = create_engine(self.postgres.url("backup"), poolclass=NullPool)

    def __exit__(self, *_: object) -> None:
        run(self.postgres, "DROP DATABASE backup WITH (FORCE)")


def test_many_orphans_at_once_trip_the_breaker(world: World) -> None:
    world.submit("job_1", workers=4)
    world.submit("job_2", workers=4)
    world.forget("job_2")
    for _ in range(3):
        verdict = world.sweep(after=60)
        why = "so many that the database is more likely to be wrong"
        assert verdict.tripped == f"4 of 8 machines would be ended: {why}"
    assert len(world.alive()) == 8
    held = world.stored()[0].number
    with world.engine.begin() as connection:
        sweeps.confirm(connection, held, world.now)
    world.submit("job_3", workers=2)
    world.forget("job_3")
    assert sorted(fates(world.sweep(after=60))) == ["end"] * 4 + ["wait"] * 2
    assert len(world.alive()) == 6


def test_of_two_controllers_that_sweep_at_once_one_does(world: World) -> None:
    world.submit("job_1")
    with ThreadPoolExecutor(8) as pool:
        tries = [pool.submit(world.sweeper.sweep, world.now, HOUR) for _ in range(16)]
        done = [one.result() for one in tries]
    assert sum(verdict is not None for verdict in done) == 1
    assert len(world.stored()) == 1
    assert world.sweeper.sweep(world.now + HOUR, HOUR) is not None
    # The clock was set back; the sweep does not wait until it is where it was.
    assert world.sweeper.sweep(world.now - HOUR, HOUR) is not None


def test_who_announces_a_sweep_waits_for_who_is_about_to(world: World) -> None:
    def announce() -> int | None:
        with world.engine.begin() as connection:
            return sweeps.begin(connection, "local", NOW, HOUR)

    def is_waiting() -> bool:
        query = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")
        with world.engine.connect() as connection:
            return bool(connection.execute(query).scalar_one())

    with ThreadPoolExecutor(1) as pool:
        with world.engine.begin() as connection:
            assert sweeps.begin(connection, "local", NOW, HOUR) is not None
            other = pool.submit(announce)
            until(lambda: other.done() or is_waiting())
        assert other.result() is None


class Held(FakeCloudProvider):
    """Shows its machines, and is heard only when a test lets it."""

    def __init__(self, url: str) -> None:
        super().__init__(url, "account")
        self.has_seen, self.may_go_on = threading.Event(), threading.Event()

    def list(self) -> tuple[Instance, ...]:
        shown = super().list()
        self.has_seen.set()
        assert self.may_go_on.wait(LONG)
        return shown


def test_who_was_slow_ends_nothing(world: World) -> None:
    world.submit("job_1")
    world.forget("job_1")
    assert fates(world.sweep()) == ["wait"]
    world.cloud.clock.advance(60)
    slow = Held(str(world.provider._http.base_url).removesuffix("/cloud/"))
    with ThreadPoolExecutor(1) as pool:
        sweeper = replace(world.sweeper, provider=slow)
        late = pool.submit(sweeper.sweep, world.now, timedelta(0))
        assert slow.has_seen.wait(LONG)
        world.cloud.faults.next("list", Omitted())
        assert fates(world.sweep(after=1)) == []
        slow.may_go_on.set()
        assert late.result() is None
    assert len(world.alive()) == 1
    slow.close()


class Busy(FakeCloudProvider):
    """Something happens between the question and the list."""

    meanwhile: Callable[[], None]

    def list(self) -> tuple[Instance, ...]:
        self.meanwhile()
        return super().list()


def test_a_machine_launched_during_a_sweep_is_no_orphan(world: World) -> None:
    """The database is read after the cloud, so it knows every machine that was shown."""
    busy = Busy(str(world.provider._http.base_url).removesuffix("/cloud/"), "account")
    busy.meanwhile = lambda: world.submit("job_1", workers=4)
    verdict = replace(world.sweeper, provider=busy).sweep(world.now, timedelta(0))
    assert verdict is not None
    assert (verdict.shown, verdict.suspects, verdict.tripped) == (4, (), None)
    busy.close()


def test_a_cloud_that_does_not_answer_ends_nothing(world: World) -> None:
    world.submit("job_1")
    world.forget("job_1")
    world.sweep()
    world.cloud.faults.always("list", Refused("Unavailable"))
    with pytest.raises(ProviderUnavailable):
        world.sweep(after=60)
    world.cloud.faults.calm()
    assert len(world.alive()) == 1
    assert [sweep.number for sweep in world.stored()] == [1]
    assert fates(world.sweep(after=60)) == ["end"]


def test_the_newest_thousand_and_all_that_were_confirmed_are_kept(world: World) -> None:
    world.sweep()
    with world.engine.begin() as connection:
        connection.execute(update(schema.sweeps).values(confirmed_at=NOW))
        for number in range(sweeps.SWEEPS_KEPT + 5):
            assert sweeps.begin(connection, "local", NOW + number * HOUR, timedelta(0))
        count = select(func.count()).select_from(schema.sweeps)
        assert connection.execute(count).scalar_one() == sweeps.SWEEPS_KEPT + 1
        assert connection.execute(select(func.min(schema.sweeps.c.number))).scalar_one() == 1


def test_there_is_one_installation_for_all_controllers(world: World) -> None:
    def identify(_: int) -> str:
        with world.engine.begin() as connection:
            return controllers.installation_id(connection)

    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(identify, range(8))) == {world.resource_labels.installation}


def test_launches_at_once_are_counted_in_one_epoch(world: World) -> None:
    epoch, engine = LaunchCounter(), world.engine

    def stamp() -> str:
        with engine.begin() as connection:
            return epoch.count_launch(connection)

    def is_waiting() -> bool:
        query = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
        with engine.connect() as connection:
            return bool(connection.execute(query).scalar())

    first = stamp()
    with ThreadPoolExecutor(1) as pool:
        with engine.begin() as connection:
            second = epoch.count_launch(connection)
            other = pool.submit(stamp)
            until(lambda: is_waiting() or other.done())
        stamps = (first, second, other.result())
    assert {vms.counter_id_of(one) for one in stamps} == {vms.counter_id_of(first)}
    assert [one.rpartition("-")[2] for one in stamps] == ["1", "2", "3"]


def test_a_count_that_was_rolled_back_is_not_taken_for_known(world: World) -> None:
    epoch = LaunchCounter()
    with world.engine.begin() as connection:
        first = epoch.count_launch(connection)
    with world.engine.connect() as connection:
        lost = epoch.count_launch(connection)
    with world.engine.begin() as connection:
        second = epoch.count_launch(connection)
    assert len({first, lost, second}) == 3
    with world.engine.connect() as connection:
        tokens = [vms.counter_id_of(stamp) for stamp in (first, lost, second)]
        known = vms.launch_counts(connection, tokens)
    told = [vms.is_counted(stamp, known) for stamp in (first, lost, second)]
    assert told == [True, False, True]


def test_rounds_are_quick_at_first_and_then_slow() -> None:
    told = [pause for pause, _ in zip(sweep_pauses(), range(FAST_SWEEPS + 2), strict=False)]
    assert told == [10.0] * 20 + [30.0, 30.0]


def test_rounds_go_on_after_a_cloud_that_did_not_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collector, "FAST_SWEEP_PAUSE", 0.01)
    world.submit("job_1")
    world.cloud.faults.next("list", Refused("Unavailable"))
    making = CollectorLoop(world.sweeper)
    making.periodic.start()
    until(lambda: world.stored())
    making.periodic.stop()
    assert world.cloud.faults.unfired() == ()
    assert len(world.alive()) == 1
