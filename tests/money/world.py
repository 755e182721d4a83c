"""World: one job, the controllers that act for it, the cloud they ask, and the machines' agents."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import ROUND_CEILING, Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Connection, Engine, delete, text

from scavenger.job.fields import format_money
from scavenger.job.spec import JobSpec
from scavenger.protocol import Hello, InterruptionNotice, Progress, StepReport, VmLease
from scavenger.schemas.orders import (
    ChangeRequest,
    ChangeWish,
    OrderKind,
    PauseRequest,
    ProbeRequest,
    ResizeRequest,
    ResumeRequest,
)
from scavenger.worker_env import WorkerEnv
from service import ledger
from service.api.problems import ApiProblem as Refused
from service.api.routes import agent
from service.api.routes.orders import OrderBody, OrderRequest, give_order
from service.api.telemetry import store_report, validate_rows
from service.auth.permissions import WorkerPrincipal
from service.background import SpotPriceWatch
from service.clouds.clouds import Clouds
from service.clouds.labels import ResourceLabels
from service.clouds.storage import CheckpointStorage
from service.db import controllers, directives, jobs, orders, schema, vms, workers
from service.db.orders import StoredOrder
from service.db.vms import Vm
from service.errors import LeaseLost, ProviderUnavailable
from service.offers import SeenPrice
from service.reconciler.actions import Action
from service.reconciler.agenda import Agenda
from service.reconciler.fleet import Fleet
from service.reconciler.tick import Reconciler
from service.state.loader import load_ordered_job
from tests.builders import CONTACT, NOW
from tests.crash import virtual_time
from tests.fakecloud.cloud import FakeCloud, Truth
from tests.fakecloud.emulator import MACHINE_TYPE, Emulator, PlainEmulator
from tests.fakecloud.machine import Market, Request, State
from tests.fakecloud.refusal import Refusal
from tests.money.clock import PassingClock
from tests.money.sightings import Sightings
from tests.money.stage import Stage
from tests.money.watched import WatchedProvider
from worker_agent.errors import ControllerUnreachable
from worker_agent.supervisor.lifetime import LeaseKeeper

JOB, FOREVER = "job_1", 1e8
TRIFLE = Decimal("1e-12")  # dollars; the least that a document can say is far below
WISHES = (
    *("pause", "resume", "least cap", "larger cap", "no cap", "auto"),
    *(f"{kind} {workers}" for kind in ("resize", "probe") for workers in (1, 2, 3)),
)
BODIES: Mapping[OrderKind, type[OrderBody]] = {
    "resize": ResizeRequest,
    "probe": ProbeRequest,
    "pause": PauseRequest,
    "resume": ResumeRequest,
    "change": ChangeRequest,
}
EXACTLY = Decimal("1e-9")  # dollars; bills are sums of floats


@dataclass(frozen=True, slots=True)
class Manners:
    """How the cloud of one run behaves, and what its provider promises of it.

    Attributes:
        boot: Seconds a machine takes to boot.
        spare: Seconds by which a launch may reach the cloud late; both are at most the provider's
            ``max_boot_seconds``.
        ending: Seconds a machine takes to power off.
        lag: Seconds for which lists may lag, at most as the provider promises.
        minimum: Seconds that are billed at least.
        zones: Letters of the zones in which machines may be launched.
        price_per_hour: Dollars of a machine with all beside it, where the job names no price.
    """

    boot: float
    spare: float
    ending: float
    lag: float
    seed: int
    minimum: float = 0.0
    zones: str = "a"
    price_per_hour: Decimal = Decimal(0)


@dataclass(frozen=True, slots=True)
class Journey:
    """What befalls the request for a lease.

    Attributes:
        there: Seconds it takes to the controller.
        back: Seconds its answer takes.
        is_lost: Whether the answer never arrives.
        meanwhile: What happens before the controller hears of it, and before the agent does.
    """

    there: float
    back: float
    is_lost: bool
    meanwhile: tuple[Callable[[], None], Callable[[], None]]


class World:
    """Everything that one run of the state machine acts on."""

    def __init__(
        self,
        engine: Engine,
        stage: Stage,
        spec: JobSpec,
        manners: Manners,
        emulator: Emulator | None = None,
    ) -> None:
        self.engine, self.stage, self.manners = engine, stage, manners
        self.clock = PassingClock()
        emulator = emulator or PlainEmulator(
            zone=manners.zones,
            lag=manners.lag,
            minimum=manners.minimum,
            boot=manners.boot + manners.spare,
        )
        self.emulator, self.habits = emulator, emulator.habits
        self.cloud = FakeCloud(
            self.clock,
            self.habits.settings(
                manners.price_per_hour if spec.price is None else spec.price_per_hour,
                quantum=0.0 if spec.price is None else spec.quantum,
                minimum=manners.minimum,
                seed=manners.seed,
                boot=manners.boot,
                ending=manners.ending,
                list_lag=manners.lag,
                lateness=0.0,
            ),
        )
        self.sightings = Sightings(timedelta(0), self.clock.moment())
        self.provider = WatchedProvider(
            emulator, self.cloud, stage.step, self.sightings, self.clock
        )
        traits = self.provider.traits
        self.sightings.lag = timedelta(seconds=traits.max_list_lag_seconds)
        assert manners.lag <= traits.max_list_lag_seconds
        assert manners.boot + manners.spare <= traits.max_boot_seconds
        self.held: dict[int, controllers.JobLease] = {}
        self.holder: int | None = None
        self.agendas = (Agenda(self.clock.now), Agenda(self.clock.now))
        for agenda in self.agendas:
            agenda.keep([JOB])
        self.clouds = Clouds([self.provider])
        if spec.price is None:
            spec = self.clouds.price(spec, self.habits.price_book(manners.price_per_hour))
        self.spec = spec
        self.calendar = virtual_time.connect(engine.url)
        fleet = Fleet(
            engine=engine,
            clouds=self.clouds,
            contact=replace(CONTACT, agent="a" * 64),
            resource_labels=ResourceLabels("ours", b"a secret"),
            stopwatch=self.clock.now,
        )
        fleet.executors.call_when_done(lambda job: self.agendas[self.holder or 0].note(job))
        self.reconciler = Reconciler(fleet, self.clock.moment())
        with engine.begin() as connection:
            jobs.create(connection, JOB, spec, self.clock.moment())
        for controller in (1, 0):
            self.take(controller)

    def close(self) -> None:
        self.calendar.dispose()
        with self.engine.begin() as connection:
            connection.execute(delete(schema.jobs))
            connection.execute(delete(schema.shortages))
            connection.execute(delete(schema.models))

    # What controllers do.

    def take(self, controller: int) -> None:
        """Let a controller take the lease, from any holder."""
        with self.engine.begin() as connection:
            held = self.held.get(controller)
            taken = controllers.acquire_lease(connection, JOB, held, timedelta(0))
        assert taken is not None
        if self.holder != controller:
            self.agendas[controller].note(JOB)  # while another acts, it looks every second
        self.held[controller], self.holder = taken, controller

    def tick(self, controller: int) -> Action | None:
        """Let a controller act under the lease it took last; None where that is no longer good.

        A tick that fails is made again, as the loop does. The loop would not have ticked while the
        job rests: such a tick must change nothing.
        """
        now, inventory = self.clock.moment(), self.reconciler.open_inventories()
        agenda = self.agendas[controller]
        is_due, before = agenda.is_any_due(), self.decided()
        if is_due:
            agenda.begin(JOB)
        self.sightings.begin(now)
        try:
            action, rest = self.reconciler.tick(self.held[controller], now, inventory)
        except LeaseLost:
            return None
        except BaseException:
            agenda.note(JOB)  # a controller that starts looks at all jobs
            raise
        if controller != self.holder:  # another took over meanwhile, or long ago
            return action
        try:  # it has heard no list, or asked for none
            listing = inventory.listing(self.provider.name, now)
        except ProviderUnavailable:
            agenda.note_listing(self.provider.name, None, is_hidden=True)
        else:
            agenda.note_listing(self.provider.name, listing, is_hidden=False)
            self.sightings.end()
        if is_due:
            agenda.rest(JOB, (now - NOW + rest).total_seconds())
            return action
        after = self.decided()
        # Reading is a step, too, in which another controller may take over.
        if controller == self.holder and not agenda.is_any_due():
            assert after == before, f"the job rested, and yet: {action.why}"
        return action

    def announce(self) -> None:
        """Tell all controllers that there is news of the job."""
        for agenda in self.agendas:
            agenda.note(JOB)

    def rows(self) -> tuple[Vm, ...]:
        with self.engine.connect() as connection:
            return vms.of_job(connection, JOB)

    def look_up_prices(self) -> None:
        """Look up what spot machines cost, as the controller does every ten minutes."""
        if not isinstance(self.emulator, PlainEmulator):
            return self._watch_prices()
        for vm in self.rows():
            if vm.market == "spot" and vm.provider_id is not None:
                since = vm.prices[-1].since if vm.prices else vm.paid_from
                with self.engine.begin() as connection:
                    vms.record_prices(connection, vm.id, self.prices_of(vm, since))
        return None

    def _watch_prices(self) -> None:
        """Look them up by the controller's own watch, which reads the database's clock."""
        with self.calendar.begin() as connection:
            virtual_time.set_clock(connection, self.clock.moment())
        SpotPriceWatch(self.calendar, self.clouds).look()

    def prices_of(self, vm: Vm, since: datetime) -> list[SeenPrice]:
        """Return what the cloud tells of a machine's price from a moment until now."""
        now, beside = self.clock.moment(), self.habits.beside
        on_demand = vm.price_per_hour - beside
        start, end = ((moment - NOW).total_seconds() for moment in (since, now))
        place = f"{vm.machine_type}@{vm.zone}+spot"
        changes = self.cloud.settings.spot.changes(place, start, end)
        told = [
            SeenPrice(
                NOW + timedelta(seconds=at),
                beside + on_demand * share.numerator / share.denominator,
            )
            for at, share in changes
        ]
        return [*told, SeenPrice(now, told[-1].price_per_hour)]

    def written(self) -> tuple[tuple[Vm, ...], *tuple[object, ...]]:
        """Return all that a controller may have written."""
        with self.engine.connect() as connection:
            told = connection.execute(text("SELECT max(sequence) FROM events")).scalar()
            return vms.of_job(connection, JOB), jobs.find(connection, JOB), told

    def decided(self) -> tuple[object, ...]:
        """Return what only a controller writes: agents may renew their leases meanwhile."""
        rows, *others = self.written()
        return tuple(replace(vm, prepaid_until=NOW) for vm in rows), *others

    def cancel(self) -> None:
        with self.engine.begin() as connection:
            jobs.request_cancel(connection, JOB, self.clock.moment())
        self.announce()

    # What users order.

    @property
    def cap(self) -> Decimal | None:
        """What the job may cost, as its orders have changed it."""
        with self.engine.connect() as connection:
            return load_ordered_job(connection, JOB).job.spec.limits.max_cost

    def order(self, wish: str) -> bool:
        """Let a user order something; whether it was not refused."""
        with suppress(Refused), self.engine.begin() as connection:
            self._give(connection, wish)
            return True
        return False

    def open_orders(self) -> tuple[StoredOrder, ...]:
        """Return the orders that are still to be obeyed."""
        with self.engine.connect() as connection:
            return load_ordered_job(connection, JOB).standing.open

    def order_and_renew(self, truth: Truth, vm: Vm, wish: str) -> None:
        """Let a lease be renewed while an order is given: one waits for the other."""
        answers: list[VmLease] = []
        other = threading.Thread(target=lambda: answers.append(self._answer(vm.id)))
        with suppress(Refused), self.engine.begin() as connection:
            self._give(connection, wish)
            other.start()
            self._wait_for_lock(other)
        if other.ident is None:
            other.start()
        other.join()
        self._obey(truth, answers[0].remaining)

    def order_beside_a_tick(self, wish: ChangeWish) -> None:
        """Let the holder of the lease tick while an order is stored that holds the job alone."""
        assert self.holder is not None
        tick = threading.Thread(target=self.tick, args=(self.holder,))
        with self.engine.begin() as connection:
            vms.lock_job(connection, JOB)
            now = self.clock.moment()
            orders.give_order(connection, JOB, "change", wish, reason="", by="a token", now=now)
            tick.start()
            self._wait_for_lock(tick)
        tick.join()
        self.announce()

    def _give(self, connection: Connection, wish: str) -> None:
        """Give an order as the API does; its figures are those of the moment."""
        kind, document = self._wish(connection, wish)
        body = BODIES[kind].model_validate(document)
        api: Any = SimpleNamespace(
            engine=self.engine,
            now=self.clock.moment,
            clouds=self.clouds,
            storage=CheckpointStorage(Path("/srv")),
            machine_type=self.provider.traits.machine_type,
        )
        give_order(api, JOB, OrderRequest(kind, body, "a token", None), connection)
        self.announce()

    def _wish(self, connection: Connection, wish: str) -> tuple[OrderKind, dict[str, Any]]:
        match wish:
            case "pause" | "resume":
                return wish, {}
            case "least cap" | "larger cap":
                least = ledger.committed(vms.of_job(connection, JOB)).quantize(
                    TRIFLE, ROUND_CEILING
                )
                amount = max(least, TRIFLE) * (1 if wish == "least cap" else 2)
                return "change", {"limits": {"max_cost": format_money(amount)}}
            case "no cap":
                return "change", {"limits": {"max_cost": None}}
            case "auto":
                return "resize", {"to": "auto"}
            case _:
                kind, _, workers = wish.partition(" ")
                point = {"workers": int(workers), "global_batch": 96}
                return ("probe", point) if kind == "probe" else ("resize", {"to": point})

    def break_zone(self, zone: str) -> None:
        """Let every call about a zone fail, by its letter; its machines run on."""
        self.cloud.break_zone(self.habits.zone(zone))

    def repair_zones(self) -> None:
        """Let all zones answer again."""
        for zone in "ab":
            self.cloud.repair_zone(self.habits.zone(zone))

    def stock(self, zone: str, market: Market, machines: int) -> None:
        """Change how many machines a zone has, by its letter."""
        place = Request(MACHINE_TYPE, self.habits.zone(zone), market=market).place
        self.cloud.stock(place, machines)

    # What machines do.

    def machines(self) -> tuple[Truth, ...]:
        """Return the machines there truly are."""
        return tuple(truth for truth in self.cloud.machines() if truth.gone_at is None)

    def key_of(self, truth: Truth) -> str:
        """Return the launch key of a machine."""
        return self.habits.launch_key(truth.description.token)

    def running(self) -> Iterator[tuple[Truth, Vm]]:
        """Return the machines that run, and their rows."""
        rows = {vm.launch_key: vm for vm in self.rows()}
        for truth in self.machines():
            if truth.description.state is State.RUNNING:
                yield truth, rows[self.key_of(truth)]

    def renew(self, truth: Truth, vm: Vm, journey: Journey) -> None:
        """Let a machine's agent ask for more time, as it does every few seconds."""
        answered: list[VmLease] = []

        def lease(worker: str) -> VmLease:
            answered.append(self._carry(worker, journey))
            return answered[-1]

        drains: list[bool] = []

        me = WorkerEnv(controller="", token="", job=JOB, worker=vm.id, prepaid=vm.prepaid)
        prepaid = LeaseKeeper(
            SimpleNamespace(lease=lease), me, self.clock.now, lambda: drains.append(True)
        )
        prepaid.renew()
        if answered:
            self._obey(truth, prepaid.left())
        if drains:
            self.end_command(truth, vm, -15)

    def renew_both(self, first: tuple[Truth, Vm], second: tuple[Truth, Vm]) -> None:
        """Let two agents be answered at once: one transaction begins before the other has ended."""
        answers: list[VmLease] = []
        other = threading.Thread(target=lambda: answers.append(self._answer(second[1].id)))
        with self.engine.begin() as connection:
            found = load_ordered_job(connection, JOB)
            cap, is_over = found.job.spec.limits.max_cost, found.is_held
            now = self.clock.moment()
            left = ledger.reserve_more_time(connection, JOB, first[1].id, cap, now, is_over=is_over)
            other.start()
            self._wait_for_lock(other)
        other.join()
        self._obey(first[0], left.total_seconds())
        self._obey(second[0], answers[0].remaining)

    def speak(self, truth: Truth, vm: Vm) -> None:
        """Let a machine's agent say hello, or that it does as it was told."""
        with self.engine.begin() as connection:
            now, told = self.clock.moment(), directives.newest(connection, JOB)
            if vms.job_of_existing_vm(connection, vm.id) is None:
                return
            if workers.address_of(connection, vm.id) is None:
                hello = Hello(vm.id, f"{truth.description.address}:1", vm.role)
                workers.record_hello(connection, JOB, hello, now)
                self.announce()
            elif told is not None and vm.role == "worker":
                progress = Progress(told[0].generation, 0, 0, 0.0, {})
                store_report(connection, validate_rows(StepReport(vm.id, progress), {}), now)

    def hear_notice(self, vm: Vm) -> None:
        """Let a machine tell that its cloud takes it back; whether that is true or not."""
        api = SimpleNamespace(engine=self.engine, now=self.clock.moment)
        told = InterruptionNotice(vm.id, "the cloud takes it back")
        with suppress(Refused):
            agent.notice(api, WorkerPrincipal(vm.id, JOB, 1, 0.0), told)
            self.announce()

    def end_command(self, truth: Truth, vm: Vm, code: int) -> None:
        """Let a machine's command end, and the machine with it."""
        self.announce()
        with self.engine.begin() as connection:
            if vms.job_of_existing_vm(connection, vm.id) is not None:
                vms.record_exit(connection, vm.id, code, "", self.clock.moment())
        self.cloud.power_off(truth.description.id)

    def _carry(self, worker: str, journey: Journey) -> VmLease:
        """Bring a request to the controller and its answer back, if that arrives."""
        self.clock.advance(journey.there)
        journey.meanwhile[0]()
        answer = self._answer(worker)
        self.clock.advance(journey.back)
        journey.meanwhile[1]()
        if journey.is_lost:
            raise ControllerUnreachable("lost")
        return answer

    def _answer(self, worker: str) -> VmLease:
        """Answer a request for a lease, as the API does."""
        api = SimpleNamespace(engine=self.engine, now=self.clock.moment)
        try:
            return agent.lease(api, WorkerPrincipal(worker, JOB, 1, 0.0))
        except Refused as error:
            raise ControllerUnreachable(str(error)) from error

    def _obey(self, truth: Truth, left: float) -> None:
        """Let a machine go on for so long, if it still runs."""
        with suppress(Refusal):
            self.cloud.renew(truth.description.id, max(left, 0.0))

    def _wait_for_lock(self, thread: threading.Thread) -> None:
        """Return once a thread waits for a row that another transaction holds, or has ended."""
        query = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
        with self.engine.connect() as connection:
            while thread.is_alive() and not connection.execute(query).scalar():
                connection.rollback()

    # What is true.

    def bill(self, until: float, rows: Sequence[Vm]) -> Decimal:
        """Return what the cloud bills for the machines that are paid, while they are not stopped.

        A machine that powers itself off may only stop, as on Google: its disk costs until a
        controller ends it.
        """
        free = self._free(rows)
        paid = [line for line in self.cloud.bill(until).lines if line.token not in free]
        return sum((Decimal(line.dollars - line.stopped_dollars) for line in paid), Decimal(0))

    def ends(self) -> dict[str, datetime]:
        """Return when each machine runs no more, by its key, if all went silent now."""
        return {
            self.key_of(truth): NOW
            + timedelta(seconds=self.cloud.find(truth.description.id).halted_at)
            for truth in self.cloud.machines()
        }

    def _free(self, rows: Sequence[Vm]) -> set[str]:
        """Return the keys of servers that run on machines the user has anyway."""
        if self.spec.strategy.priced:
            return set()
        return {self.habits.token(vm.launch_key) for vm in rows if vm.role == "server"}
