"""Zones of real clouds that do not answer, and that sell nothing, through the clouds' own APIs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from sqlalchemy import Engine

from scavenger.protocol import Hello, Progress, StepReport
from service import ledger
from service.api.telemetry import store_report, validate_rows
from service.clouds.clouds import Clouds
from service.clouds.executor import CloudExecutors
from service.clouds.inventory import Inventories
from service.clouds.labels import ResourceLabels
from service.db import controllers, directives, jobs, vms, workers
from service.db.jobs import StoredJob
from service.db.vms import Vm
from service.reconciler.fleet import Fleet
from service.reconciler.loop import ReconcilerLoop
from service.reconciler.places import MAX_REFUSALS
from service.reconciler.tick import Reconciler
from tests.builders import CONTACT, NOW, document, spec
from tests.controller_double import until
from tests.fakecloud.clock import VirtualClock
from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.emulator import MACHINE_TYPE, Emulator, Tap, open_emulator
from tests.fakecloud.machine import Request, State

NAMES = ("aws", "google")
STEP, OUTAGE = 30.0, 600.0


class Rented:
    """A controller that rents in EC2 and Compute Engine, and the clock of all of them."""

    def __init__(self, engine: Engine, emulators: dict[str, Emulator]) -> None:
        self.engine, self.emulators, self.clock = engine, emulators, VirtualClock()
        self.clouds: dict[str, FakeCloud] = {}
        for name, emulator in emulators.items():
            price = 2 * emulator.habits.beside
            settings = emulator.habits.settings(price, boot=0.0, ending=0.0)
            self.clouds[name] = FakeCloud(self.clock, settings)
            emulator.tap = Tap(wait=self.clock.advance, stopwatch=self.clock.now)
            emulator.play(self.clouds[name])
        self.providers = Clouds([emulator.open() for emulator in emulators.values()])
        with engine.begin() as connection:
            labels = ResourceLabels(controllers.installation_id(connection), b"our secret")
        contact = replace(CONTACT, agent="a" * 64)
        self.fleet = Fleet(engine, self.providers, contact, labels, stopwatch=self.clock.now)
        self.reconciler = Reconciler(self.fleet, NOW)
        self.inventories = self.reconciler.open_inventories()

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.clock.now())

    def submit(self, job: str, cloud: str, market: str = "on_demand") -> None:
        limits = {"max_cost": "9 USD", "workers": "2..2", "batch": [120]}
        machine = {"cloud": cloud, "type": MACHINE_TYPE, "market": market}
        with self.engine.begin() as connection:
            wish = spec(**document(limits=limits, machine=machine))
            jobs.create(connection, job, wish, self.now)

    def tick(self, *names: str) -> None:
        """Act once for each of these jobs."""
        self.inventories.mark_stale()
        for job in names:
            with self.engine.begin() as connection:
                lease = controllers.acquire_lease(connection, job, None, timedelta(0))
            assert lease is not None
            self.reconciler.tick(lease, self.now, self.inventories)

    def run(self, seconds: float, *names: str) -> None:
        """Let time pass, in which these jobs train and the controller acts for them."""
        ends_at = self.clock.now() + seconds
        while self.clock.now() < ends_at:
            self.tick(*names)
            self.clock.advance(STEP)
            for job in names:
                self._train(job)

    def _train(self, job: str) -> None:
        """Let each machine that runs say hello or how far it is, and prolong its lease."""
        rows = {vm.launch_key: vm for vm in self.rows(job) if vm.is_alive}
        with self.engine.begin() as connection:
            told = directives.newest(connection, job)
            for name, cloud in self.clouds.items():
                key_of = self.emulators[name].habits.launch_key
                for truth in cloud.machines():
                    vm = rows.get(key_of(truth.description.token))
                    if vm is None or truth.description.state is not State.RUNNING:
                        continue
                    if workers.address_of(connection, vm.id) is None:
                        hello = Hello(vm.id, f"{truth.description.address}:1", vm.role)
                        workers.record_hello(connection, job, hello, self.now)
                    elif told is not None:
                        place = (told[0].generation, round(self.clock.now()), 0, 1.0)
                        report = StepReport(vm.id, Progress(*place, {"accuracy": 0.1}))
                        store_report(connection, validate_rows(report, {}), self.now)
                    left = ledger.reserve_more_time(connection, job, vm.id, None, self.now)
                    cloud.renew(truth.description.id, left.total_seconds())

    def stock(self, cloud: str, machines: int) -> None:
        """Change how many machines each zone of a cloud has in each market."""
        for letter in "ab":
            for market in ("on_demand", "spot"):
                zone = self.emulators[cloud].habits.zone(letter)
                place = Request(MACHINE_TYPE, zone, market=market).place
                self.clouds[cloud].stock(place, machines)

    def rows(self, job: str) -> tuple[Vm, ...]:
        with self.engine.connect() as connection:
            return vms.of_job(connection, job)

    def job(self, job: str) -> StoredJob:
        with self.engine.connect() as connection:
            found = jobs.find(connection, job)
        assert found is not None
        return found

    def kinds(self, job: str) -> list[str]:
        with self.engine.connect() as connection:
            return [event.kind for event in jobs.events_after(connection, job, 0, 1000)]


@pytest.fixture(scope="module")
def emulators() -> Iterator[dict[str, Emulator]]:
    with ExitStack() as opened:
        found = {name: opened.enter_context(open_emulator(name)) for name in NAMES}
        yield {name: emulator for name, emulator in found.items() if emulator is not None}


@pytest.fixture
def rented(engine: Engine, emulators: dict[str, Emulator]) -> Rented:
    return Rented(engine, emulators)


@pytest.mark.parametrize("silent", NAMES)
def test_nothing_of_a_zone_that_is_silent_for_ten_minutes_is_replaced_or_gone(
    rented: Rented, silent: str
) -> None:
    (other,) = set(NAMES) - {silent}
    rented.stock(silent, 1)  # one machine of the job in each zone
    rented.submit("job_1", silent)
    rented.submit("job_2", other)
    rented.run(120.0, "job_1", "job_2")
    before = rented.rows("job_1")
    down = rented.emulators[silent].habits.zone("a")
    assert {vm.zone for vm in before if vm.state == "launched"} >= {down}
    rented.stock(silent, 100)
    rented.clouds[silent].break_zone(down)
    lost = rented.clouds[other].machines()[0]
    rented.clouds[other].interrupt(lost.description.id)
    for _ in range(10):
        rented.run(OUTAGE / 10, "job_1", "job_2")
        assert [vm.state for vm in rented.rows("job_1")] == [vm.state for vm in before]
    assert "vm_gone" in rented.kinds("job_2"), "the other cloud's job went on"
    assert [vm.state for vm in rented.rows("job_2")].count("launched") == 2
    rented.clouds[silent].repair_zone(down)
    rented.run(60.0, "job_1", "job_2")
    assert len(rented.clouds[silent].machines()) == 2
    assert all(vm.state == "launched" for vm in rented.rows("job_1") if vm.refusal is None)


# The fake cloud refuses all zones in test_offers.py, as often.
@pytest.mark.slow
@pytest.mark.parametrize("cloud", ["aws", "google"])
def test_a_job_that_all_zones_refuse_says_so_once_and_no_launch_counts(
    rented: Rented, cloud: str
) -> None:
    rented.stock(cloud, 0)
    rented.submit("job_1", cloud, market="any")
    rented.run(3600.0, "job_1")
    kinds = rented.kinds("job_1")
    assert kinds.count("waiting") == 1
    assert kinds.count("launch") == 4, "each place once, before it waits"
    rows = rented.rows("job_1")
    asked = [vm for vm in rows if vm.attempted_at is not None]
    assert 40 <= len(asked) <= MAX_REFUSALS
    assert not any(vm.is_alive or vm.cost(rented.now) for vm in rows)
    assert not rented.clouds[cloud].machines()
    rented.stock(cloud, 2)
    rented.clock.advance(3600.0)
    rented.run(60.0, "job_1")
    assert [vm.state for vm in rented.rows("job_1") if vm.is_alive] == ["launched"] * 2
    assert rented.kinds("job_1").count("resumed") == 1


def test_passes_go_on_while_a_zone_lets_its_callers_wait(rented: Rented) -> None:
    passes, gate = 0, threading.Event()
    executors = CloudExecutors(2)
    fleet = replace(rented.fleet, executors=executors)
    clouds = rented.providers
    loop = ReconcilerLoop(
        Reconciler(fleet, rented.now), Inventories.of(rented.engine, clouds, threads=1)
    )
    make_pass = loop._pass

    def count_pass() -> None:
        nonlocal passes
        make_pass()
        passes += 1

    loop._pass = count_pass  # type: ignore[method-assign]
    google = rented.emulators["google"]
    google.tap.during = lambda: Held(gate)
    loop.start()
    try:
        rented.submit("job_1", "google")
        until(lambda: Held.waiting > 0)
        before = passes
        rented.submit("job_2", "aws")
        loop.nudge_all()
        until(lambda: [vm.state for vm in rented.rows("job_2")] == ["launched"] * 2)
        until(lambda: passes > before + 3)
        assert Held.waiting > 0
        assert not rented.rows("job_1")
    finally:
        gate.set()
        loop.stop()
        executors.close(10.0)


class Held:
    """An answer that is held back until a gate opens."""

    waiting = 0

    def __init__(self, gate: threading.Event) -> None:
        self._gate = gate

    def __enter__(self) -> None:
        Held.waiting += 1
        self._gate.wait()
        Held.waiting -= 1

    def __exit__(self, *_: object) -> None:
        pass
