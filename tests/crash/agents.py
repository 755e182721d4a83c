"""Agents: what runs on the machines says hello, trains, renews its lease and ends.

It trains as it is told, and remembers nothing that a real one would not.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta

from sqlalchemy import Connection

from scavenger.cluster import ClusterConfig
from scavenger.measurement.steps import StepColumns
from scavenger.protocol import Directive, Hello, Progress, StepReport
from scavenger.stack import Stack, StackCheck
from service import ledger
from service.api.routes.agent import record_stack_checks
from service.api.telemetry import store_report, validate_rows
from service.db import directives, vms, workers
from service.db.jobs import StoredJob
from service.db.vms import Vm
from service.state.loader import load_ordered_job
from tests.builders import steps
from tests.crash.processes import Processes
from tests.crash.scenario import Scenario
from tests.fakecloud.cloud import FakeCloud, Truth
from tests.fakecloud.emulator import CloudHabits
from tests.fakecloud.machine import State
from tests.fakecloud.refusal import Refusal

ROWS, NOISE_SCALE, ENOUGH = 200, 200.0, 4.0
RENEWS = 10.0


class Agents:
    """All agents of one job."""

    def __init__(self, cloud: FakeCloud, scenario: Scenario, job: str, habits: CloudHabits) -> None:
        self.cloud, self.scenario, self.job, self.habits = cloud, scenario, job, habits
        self.since: datetime | None = None
        self.whole: tuple[str, ...] = ()
        self.has_interrupted = False
        self.iteration = 0
        self.renewed_at: datetime | None = None
        self.measured: set[int] = set()
        self.rows: dict[str, int] = {}
        self.processes: Processes | None = None
        if scenario.profile is not None:
            self.processes = Processes(job, scenario.profile, self.rows, scenario.refused)

    def memory(self) -> object:
        """Return what the agents remember."""
        return (
            *(self.since, self.whole, self.has_interrupted, self.iteration),
            *(self.renewed_at, sorted(self.measured), self.rows),
            None if self.processes is None else self.processes.memory(),
        )

    def trained(self, now: datetime) -> float:
        """Return for how long the job has trained on what was chosen."""
        return 0.0 if self.since is None else (now - self.since).total_seconds()

    def speak(
        self,
        connection: Connection,
        job: StoredJob,
        machines: Sequence[Vm],
        now: datetime,
        *,
        may_end: bool,
    ) -> None:
        """Let every agent that runs say what it has to say now."""
        rows = {vm.launch_key: vm for vm in machines if vm.is_alive}
        known = {self.habits.token(key): vm for key, vm in rows.items()}
        running = [
            (truth, known[truth.description.token])
            for truth in self.cloud.machines()
            if truth.description.state is State.RUNNING and truth.description.token in known
        ]
        told = directives.newest(connection, self.job)
        directive = None if told is None else told[0]
        if self.processes is not None:
            self.processes.forget([vm.id for _, vm in running])
        for place, (truth, vm) in enumerate(running):
            # Never at one moment, or chance decides which is asked first to lead.
            at = now + place * timedelta.resolution
            host = truth.description.address
            if self.processes is None or self.processes.follow(
                connection, job, vm, host, directive, at
            ):
                self._report(connection, truth, vm, directive, at)
        self._renew(connection, running, directive, now)
        self._go_on(connection, job, running, directive, now, may_end=may_end)

    def _report(
        self,
        connection: Connection,
        truth: Truth,
        vm: Vm,
        directive: Directive | None,
        now: datetime,
    ) -> None:
        """Say hello first, then do as one is told, and measure once where one leads."""
        if workers.address_of(connection, vm.id) is None:
            hello = Hello(vm.id, f"{truth.description.address}:1", vm.role)
            workers.record_hello(connection, self.job, hello, now)
            return
        if directive is None or vm.exit_code is not None:
            return
        if vm.id in directive.standby:
            self._stand_by(connection, truth, vm, directive, now)
        rank = directive.rank_of(vm.id)
        if rank is None:
            return
        report = self._where(vm, directive)
        if rank == 0 and directive.generation not in self.measured:
            self.measured.add(directive.generation)
            self.rows[vm.id] = report.sequence + ROWS
            report = replace(report, steps=self._columns(directive.config))
        record_stack_checks(connection, self.job, report, now)
        store_report(connection, validate_rows(report, {}), now)

    def _stand_by(
        self,
        connection: Connection,
        truth: Truth,
        vm: Vm,
        directive: Directive,
        now: datetime,
    ) -> None:
        """Leave the generation, and say hello again at another address, once."""
        address = f"{truth.description.address}:{1 + directive.generation}"
        known = {worker.worker: worker for worker in workers.of_job(connection, self.job)}
        if known[vm.id].generation > 0:
            hello = Hello(vm.id, address, vm.role)
            self.rows[vm.id] = workers.record_hello(connection, self.job, hello, now)
            if self.processes is not None:
                self.processes.move(vm.id, address)

    def _where(self, vm: Vm, directive: Directive) -> StepReport:
        stack, batch = directive.config.stack, int(directive.config.local_batch)
        why = "its gradients are wrong" if stack == self.scenario.refused else ""
        is_rehearsed = Stack.parse(stack).is_rehearsed
        checks = (StackCheck(stack, batch, 1.0, 0.0, why),) if is_rehearsed else ()
        metrics = {"accuracy": 0.98}
        progress = Progress(
            directive.generation, self.iteration, 0, 1.0, metrics, stack_checks=checks
        )
        return StepReport(vm.id, progress, self.rows.get(vm.id, 0))

    def _columns(self, config: ClusterConfig) -> StepColumns:
        sync = self.scenario.sync.get(config.workers, 0.001 if config.workers > 1 else 0.0)
        compute = 1.0 / config.workers / self.scenario.speeds.get(config.stack, 1.0)
        columns = steps(ROWS, NOISE_SCALE, replace(config, workers=max(config.workers, 2)))
        first = self.iteration
        self.iteration += ROWS
        return replace(
            columns,
            iteration=tuple(range(first, first + ROWS)),
            compute_time=(compute,) * ROWS,
            sync_time=(sync,) * ROWS,
            step_time=(compute + sync,) * ROWS,
            mean_compute_time=(compute,) * ROWS,
            fastest_compute_time=(compute,) * ROWS,
        )

    def _renew(
        self,
        connection: Connection,
        running: Sequence[tuple[Truth, Vm]],
        directive: Directive | None,
        now: datetime,
    ) -> None:
        """Ask for more time now and then; the workers of a paused job leave then."""
        if self.renewed_at is not None and (now - self.renewed_at).total_seconds() < RENEWS:
            return
        self.renewed_at = now
        found = load_ordered_job(connection, self.job)
        assert found is not None
        cap, is_over = found.job.spec.limits.max_cost, found.is_held
        for truth, vm in running:
            left = ledger.reserve_more_time(connection, self.job, vm.id, cap, now, is_over=is_over)
            with suppress(Refusal):
                self.cloud.renew(truth.description.id, max(left.total_seconds(), 0.0))
            if found.standing.is_paused and vm.exit_code is None and directive is not None:
                if directive.rank_of(vm.id) is not None:
                    report = replace(self._where(vm, directive), finished="released")
                    store_report(connection, validate_rows(report, {}), now)
                vms.record_exit(connection, vm.id, -15, "", now)
                self.cloud.power_off(truth.description.id)

    def _go_on(
        self,
        connection: Connection,
        job: StoredJob,
        running: Sequence[tuple[Truth, Vm]],
        directive: Directive | None,
        now: datetime,
        *,
        may_end: bool,
    ) -> None:
        """Train for a while on what was chosen, lose a machine if so told, and end alone."""
        if directive is None or (directive.purpose, directive.config) != ("train", job.chosen):
            self.since = None
            return
        members = {member.worker for member in (*directive.members, *directive.servers)}
        alive = {vm.id for _, vm in running}
        trains = {vm.id for _, vm in running if vm.id in members and vm.state != "ending"}
        is_formed = self.processes is None or self.processes.is_formed(directive)
        if trains != members or not is_formed:
            self.since = None
            return
        self.since = self.since or now
        if self.trained(now) < ENOUGH:
            return
        if self.scenario.interrupts and not self.has_interrupted:
            self.has_interrupted = True
            last = (directive.servers or directive.members)[-1].worker
            (machine,) = (truth.description.id for truth, vm in running if vm.id == last)
            self.cloud.interrupt(machine)
        elif may_end and self.scenario.wish == "finish" and alive == members:
            self._end(connection, running, directive, now)

    def _end(
        self,
        connection: Connection,
        running: Sequence[tuple[Truth, Vm]],
        directive: Directive,
        now: datetime,
    ) -> None:
        """Reach the target: the leader says so and its command ends, and its machine with it."""
        leader = directive.members[0].worker
        (found,) = (pair for pair in running if pair[1].id == leader)
        if found[1].exit_code is None:
            report = replace(self._where(found[1], directive), finished="target")
            store_report(connection, validate_rows(report, {}), now)
            vms.record_exit(connection, leader, 0, "", now)
            self.cloud.power_off(found[0].description.id)
