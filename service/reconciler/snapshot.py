"""Snapshot: everything one tick knows, read once and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from scavenger.protocol import Directive, StepColumns
from service import ledger
from service.db.drifts import Drifted
from service.db.jobs import Job
from service.db.observations import Probe
from service.db.vms import Vm
from service.db.workers import Worker
from service.knowledge import Knowledge

SILENCE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One job and everything around it at one moment.

    Attributes:
        now: The moment.
        vms: Every machine the job ever had, oldest first.
        workers: Every worker that said hello, in that order.
        directive: The newest Directive; None before the first.
        published_at: When it was published.
        probes: Settled probes, in order.
        drifted: The newest drift of the noise scale; None while the first plan holds.
        steps: Iterations measured in the newest generation: all while probing, recent ones once a
            plan has stood for long enough to be looked at again.
        knowledge: What is known for a decision, from probes and earlier jobs.
    """

    now: datetime
    job: Job
    vms: tuple[Vm, ...]
    workers: tuple[Worker, ...]
    directive: Directive | None
    published_at: datetime | None
    probes: tuple[Probe, ...]
    drifted: Drifted | None
    steps: StepColumns
    knowledge: Knowledge

    @property
    def alive(self) -> tuple[Vm, ...]:
        """Machines that may exist and whose command has not ended."""
        return tuple(vm for vm in self.vms if vm.is_alive and vm.exit_code is None)

    @property
    def available(self) -> tuple[Vm, ...]:
        """Alive machines whose worker is taking part, waiting or still booting."""
        done = {worker.worker for worker in self.workers if worker.finished is not None}
        return tuple(vm for vm in self.alive if vm.id not in done)

    @property
    def ready(self) -> tuple[Worker, ...]:
        """Workers that can take part: alive, greeted, not done."""
        ids = {vm.id for vm in self.available}
        return tuple(worker for worker in self.workers if worker.worker in ids)

    @property
    def members(self) -> tuple[str, ...]:
        """Workers of the newest Directive, leader first."""
        return () if self.directive is None else tuple(m.worker for m in self.directive.members)

    @property
    def leader(self) -> Worker | None:
        """The leader of the newest Directive, if it ever spoke."""
        return None if not self.members else self.worker(self.members[0])

    @property
    def is_applied(self) -> bool:
        """Whether every member that still lives has confirmed the newest Directive."""
        if self.directive is None:
            return True
        confirmed = [self.worker(member) for member in self.members if member not in self.lost]
        return all(w is not None and w.generation >= self.directive.generation for w in confirmed)

    @property
    def lost(self) -> tuple[str, ...]:
        """Members whose machine is gone, or whose command ended, before training was done."""
        ids = {vm.id for vm in self.alive}
        done = {worker.worker for worker in self.workers if worker.finished is not None}
        return tuple(m for m in self.members if m not in ids and m not in done)

    @property
    def accrued(self) -> Decimal:
        """Dollars spent so far."""
        return ledger.accrued(self.vms, self.now)

    @property
    def elapsed(self) -> float:
        """Seconds since the first machine was intended."""
        if not self.vms:
            return 0.0
        end = self.job.finished_at or self.now
        return max((end - self.vms[0].intended_at).total_seconds(), 0.0)

    def worker(self, worker: str) -> Worker | None:
        """Return a worker by id, if it ever spoke."""
        return next((w for w in self.workers if w.worker == worker), None)

    def is_silent(self, worker: str) -> bool:
        """Whether a worker has not been heard for longer than any report takes."""
        known = self.worker(worker)
        return known is None or self.now - known.seen_at > SILENCE
