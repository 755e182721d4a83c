"""A cloud that hangs holds up the jobs that wait for it, and nothing else (F24)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import OperationalError

from scavenger.schemas.jobs import JobPhase
from service import ledger
from service.background import PgListener
from service.clouds import inventory as lookouts
from service.clouds.clouds import Clouds
from service.clouds.executor import CloudExecutors
from service.clouds.inventory import Inventories
from service.clouds.labels import ResourceLabels
from service.db import controllers, jobs, vms
from service.db.jobs import StoredJob
from service.db.vms import Vm
from service.garbage_collection.collector import CollectorLoop, GarbageCollector
from service.reconciler.fleet import Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT, document, spec
from tests.controller_double import until
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.hanging import HangingProvider
from tests.fakecloud.server import CloudServer
from tests.fakecloud.settings import Settings

WISH = document(limits={"max_cost": "100 USD", "workers": "2..2", "batch": [120]})


class House:
    """A controller with threads of its own, and what it wrote down."""

    def __init__(self, engine: Engine, provider: HangingProvider) -> None:
        self.engine, self.provider = engine, provider
        with engine.begin() as connection:
            self.ownership = ResourceLabels(controllers.installation_id(connection), b"our secret")
        clouds, executors = Clouds([provider]), CloudExecutors(2)
        fleet = Fleet(engine, clouds, CONTACT, self.ownership, executors=executors)
        acting = Reconciler(fleet, datetime.now(UTC))
        self.loop = ReconcilerLoop(acting, Inventories.of(engine, clouds, threads=1))

    def submit(self, job: str, **changes: object) -> None:
        with self.engine.begin() as connection:
            jobs.create(connection, job, spec(**{**WISH, **changes}), datetime.now(UTC))

    def cancel(self, job: str) -> None:
        with self.engine.begin() as connection:
            jobs.request_cancel(connection, job, datetime.now(UTC))

    def job(self, job: str) -> StoredJob:
        with self.engine.connect() as connection:
            found = jobs.find(connection, job)
        assert found is not None
        return found

    def machines(self, job: str) -> tuple[Vm, ...]:
        with self.engine.connect() as connection:
            return vms.of_job(connection, job)

    def states(self, job: str) -> set[str]:
        return {vm.state for vm in self.machines(job)}

    def said(self, job: str) -> list[str]:
        with self.engine.connect() as connection:
            return [event.kind for event in jobs.events_after(connection, job, 0, 100)]


@pytest.fixture
def cloud() -> FakeCloud:
    return FakeCloud(VirtualClock(), Settings(boot=0.0, ending=0.0))


@pytest.fixture
def house(engine: Engine, cloud: FakeCloud) -> Iterator[House]:
    with CloudServer(cloud) as server:
        provider = HangingProvider(server.url)
        found = House(engine, provider)
        listener = PgListener(engine.url, found.loop.nudge, found.loop.nudge_all)
        listener.start()
        found.loop.start()
        try:
            yield found
        finally:
            provider.release()
            listener.stop()
            found.loop.stop()
            found.loop.executors.close(10.0)
            provider.close()


def test_a_launch_that_hangs_delays_no_other_job(house: House, cloud: FakeCloud) -> None:
    gate = house.provider.hang("launch job_1")
    house.submit("job_1")
    until(lambda: "launch job_1" in house.provider.asked)
    house.submit("job_2")
    until(lambda: house.states("job_2") == {"launched"})
    house.cancel("job_2")
    until(lambda: house.states("job_2") == {"gone"})
    assert house.job("job_2").phase is JobPhase.CANCELLED
    assert [vm.provider_id for vm in house.machines("job_1")] == [None, None]
    gate.set()
    until(lambda: house.states("job_1") == {"launched"})
    assert house.provider.asked.count("launch job_1") == 2, "each machine was asked for once"
    assert len(cloud.machines()) == 4


def test_a_list_that_hangs_delays_no_job_for_a_while(house: House) -> None:
    house.submit("job_1")
    until(lambda: house.states("job_1") == {"launched"})
    seen = house.provider.asked.count("list")
    until(lambda: house.provider.asked.count("list") > seen)
    house.provider.hang("list")
    house.submit("job_2")
    until(lambda: house.states("job_2") == {"launched"})
    house.cancel("job_1")
    until(lambda: house.job("job_1").phase is JobPhase.CANCELLED)


def test_while_the_cloud_shows_nothing_only_jobs_that_ended_change_machines(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lookouts, "LIST_TIMEOUT", timedelta(seconds=0.1))
    house.submit("job_1")
    house.submit("job_2")
    until(lambda: house.states("job_1") == house.states("job_2") == {"launched"})
    gate = house.provider.hang("list")
    until(lambda: "no answer within 0:00:00.1" in caplog.text)
    with house.engine.begin() as connection:  # one worker's command went away: it is replaced
        vms.record_exit(connection, house.machines("job_1")[0].id, -9, "", datetime.now(UTC))
        jobs.notify_job_changed(connection, "job_1")
    until(lambda: house.job("job_1").waiting is not None)
    assert "does not show its machines" in str(house.job("job_1").waiting)
    house.cancel("job_2")
    until(lambda: house.states("job_2") == {"ending"})
    assert len(house.machines("job_1")) == 2
    house.submit("job_3")
    until(lambda: house.job("job_3").waiting is not None)
    assert not house.machines("job_3")
    gate.set()
    until(lambda: house.states("job_2") == {"gone"})
    until(lambda: len(house.machines("job_1")) == 3)
    until(lambda: house.states("job_3") == {"launched"})
    assert house.said("job_1").count("waiting") == house.said("job_3").count("waiting") == 1


def test_a_cap_that_pays_for_less_than_a_slice_pays_for_that(house: House) -> None:
    limits = {"max_cost": "0.05 USD", "workers": "2..2", "batch": [120]}
    house.submit("job_1", limits=limits, price="0.36 USD/h")
    until(lambda: house.states("job_1") == {"launched"})
    assert ledger.committed(house.machines("job_1")) <= Decimal("0.05")
    assert len(house.machines("job_1")) == 2


def test_who_is_cancelled_while_a_launch_hangs_gets_no_further_machine(
    house: House, cloud: FakeCloud
) -> None:
    gate = house.provider.hang("launch job_1")
    house.submit("job_1")
    until(lambda: "launch job_1" in house.provider.asked)
    house.cancel("job_1")
    gate.set()
    until(lambda: house.states("job_1") == {"gone"})
    assert house.provider.asked.count("launch job_1") == len(cloud.machines()) == 1
    asked, never = house.machines("job_1")
    assert (never.attempted_at, ledger.committed([never])) == (None, 0)
    assert asked.attempted_at is not None


def test_what_could_not_be_written_down_ends_no_pass(house: House) -> None:
    def fail() -> None:
        raise OperationalError("", {}, Exception("the database was away"))

    # The clock stands still, so that no pass is long enough to leave a job to the next one.
    loop = ReconcilerLoop(house.loop.reconciler, seconds=lambda: 0.0)
    house.loop.stop()
    executors = loop.executors = CloudExecutors(1)
    for number in (1, 2):
        house.submit(f"job_{number}")
        executors.submit(f"job_{number}", "fake", [fail])
    executor = executors._executors["fake"]
    until(lambda: all(executor._sent[f"job_{number}"].end.done() for number in (1, 2)))
    loop._pass()
    assert {job for job in ("job_1", "job_2") if house.machines(job)} == {"job_1", "job_2"}


def test_the_sweeper_ends_though_its_cloud_hangs(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.garbage_collection.collector.SWEEP_STOP_TIMEOUT", 0.1)
    house.provider.hang("list")
    rounds = CollectorLoop(GarbageCollector(house.engine, house.provider, house.ownership))
    asked = house.provider.asked.count("list")
    rounds.periodic.start()
    until(lambda: house.provider.asked.count("list") > asked)
    rounds.periodic.stop()
    assert rounds.periodic.thread.daemon
    house.provider.release()
    rounds.periodic.thread.join()
    assert not rounds.periodic.thread.is_alive()


def test_a_controller_ends_though_its_cloud_hangs(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.reconciler.loop.LOOP_STOP_TIMEOUT", 0.1)
    gate = house.provider.hang("launch job_1")
    house.submit("job_1")
    until(lambda: "launch job_1" in house.provider.asked)
    house.loop.stop()
    assert not house.loop.periodic.thread.is_alive()
    assert not gate.is_set()


def test_a_cloud_that_hangs_delays_no_job_of_another(engine: Engine, cloud: FakeCloud) -> None:
    other = FakeCloud(VirtualClock(), Settings(boot=0.0, ending=0.0))
    with CloudServer(cloud) as slow_server, CloudServer(other) as server:
        slow, quick = HangingProvider(slow_server.url), HangingProvider(server.url)
        slow.name, quick.name = "slow", "quick"
        clouds, executors = Clouds([slow, quick]), CloudExecutors(2)
        with engine.begin() as connection:
            labels = ResourceLabels(controllers.installation_id(connection), b"our secret")
            for job, name in (("job_1", "slow"), ("job_2", "slow"), ("job_3", "slow")):
                wish = spec(**{**WISH, "machine": {"cloud": name}})
                jobs.create(connection, job, wish, datetime.now(UTC))
        gates = [slow.hang(f"launch job_{number}") for number in (1, 2, 3)]
        fleet = Fleet(engine, clouds, CONTACT, labels, executors=executors)
        loop = ReconcilerLoop(
            Reconciler(fleet, datetime.now(UTC)), Inventories.of(engine, clouds, threads=1)
        )
        loop.start()
        try:
            # As many as the executor has threads hang, whichever of the three come first.
            until(lambda: len({call for call in slow.asked if call.startswith("launch")}) == 2)
            slow.hang("list")
            with engine.begin() as connection:
                wish = spec(**{**WISH, "machine": {"cloud": "quick"}})
                jobs.create(connection, "job_4", wish, datetime.now(UTC))
            until(lambda: len(other.machines()) == 2)
            assert cloud.machines() == ()
        finally:
            for gate in gates:
                gate.set()
            slow.release()
            loop.stop()
            executors.close(10.0)
            slow.close()
            quick.close()
