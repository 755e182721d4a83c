"""Snapshot: everything one tick knows, read once and frozen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from scavenger.protocol import Directive, Member, StepColumns
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
        losses_before: Losses of all iterations before the newest generation, as long as noise has
            to settle.
        knowledge: What is known for a decision, from probes and earlier jobs.
        listening_since: When this controller began to listen; nobody can have spoken to it before.
        fruitless: When the newest Directives were published that bore no iteration, oldest first;
            read only where it matters.
        boot: What a new machine may take of its prepaid time before its own clock starts.
        is_hidden: Whether the cloud does not show its machines, so that nothing new of them is
            known.
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
    losses_before: tuple[float | None, ...] = ()
    listening_since: datetime | None = None
    fruitless: tuple[datetime, ...] = ()
    is_hidden: bool = False
    boot: timedelta = timedelta(0)

    @property
    def alive(self) -> tuple[Vm, ...]:
        """Workers' machines that may exist and whose command has not ended."""
        return tuple(vm for vm in running(self.vms) if vm.role == "worker")

    @property
    def servers(self) -> tuple[Vm, ...]:
        """Parameter servers' machines that may exist and whose process has not ended."""
        return tuple(vm for vm in running(self.vms) if vm.role == "server")

    @property
    def serving(self) -> tuple[Member, ...]:
        """Parameter servers that said hello, with the address they said last."""
        greeted = [self.worker(vm.id) for vm in self.servers]
        return tuple(Member(w.worker, w.address) for w in greeted if w is not None and w.is_up)

    @property
    def lost_servers(self) -> tuple[str, ...]:
        """Servers of the newest Directive that are gone, or were started again and are empty."""
        told = () if self.directive is None else self.directive.servers
        return tuple(member.worker for member in told if member not in self.serving)

    @property
    def available(self) -> tuple[Vm, ...]:
        """Alive machines whose worker is taking part, waiting or still booting."""
        done = {worker.worker for worker in self.workers if worker.finished is not None}
        return tuple(vm for vm in self.alive if vm.id not in done)

    @property
    def ready(self) -> tuple[Worker, ...]:
        """Workers that can take part: alive, greeted, not done, and not about to stand by.

        One that is told to stand by says hello again, at another address, once it does. It never
        does if the Directive that tells it so has lost all its members before they entered it.
        """
        ids = {vm.id for vm in self.available}
        return tuple(
            worker
            for worker in self.workers
            if worker.worker in ids
            and worker.is_up
            and not (worker.worker in self.aside and worker.generation > 0)
        )

    @property
    def aside(self) -> tuple[str, ...]:
        """Workers that are told to stand by, as long as a member lives that lets them."""
        is_followed = len(self.gone) < len(self.members)
        return self.directive.standby if self.directive is not None and is_followed else ()

    @property
    def gone(self) -> tuple[str, ...]:
        """Members of the newest Directive that will not enter it, or have left it."""
        return (*self.lost, *self.released, *self.restarted)

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
        confirmed = [self.worker(member) for member in self.members if member not in self.gone]
        return all(w is not None and w.generation >= self.directive.generation for w in confirmed)

    @property
    def lost(self) -> tuple[str, ...]:
        """Members whose machine is gone, or whose command ended, before training was done."""
        ids = {vm.id for vm in self.alive}
        done = {worker.worker for worker in self.workers if worker.finished is not None}
        return tuple(m for m in self.members if m not in ids and m not in done)

    @property
    def released(self) -> tuple[str, ...]:
        """Members that left before training was done, because their machine was told to end."""
        members = [self.worker(member) for member in self.members]
        return tuple(w.worker for w in members if w is not None and w.finished == "released")

    @property
    def restarted(self) -> tuple[str, ...]:
        """Members whose process died and is started again on the same machine: it holds nothing."""
        told = () if self.directive is None else self.directive.members
        known = [(member, self.worker(member.worker)) for member in told]
        return tuple(
            member.worker
            for member, worker in known
            if worker is not None
            and worker.address != member.address
            and member.worker not in (*self.lost, *self.released)
        )

    @property
    def foremost(self) -> Worker | None:
        """The most advanced worker of those that train now, else of all there ever were.

        After a job went back to a checkpoint, its former workers were further.
        """
        members = [self.worker(member) for member in self.members]
        active = [w for w in members if w is not None and w.generation > 0]
        return max(active or self.workers, key=lambda worker: worker.iteration, default=None)

    @property
    def epochs(self) -> float:
        """Reference epochs of progress so far."""
        return 0.0 if self.foremost is None else self.foremost.epochs

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

    @property
    def boot_seen(self) -> timedelta | None:
        """What the quickest machine took until its worker said hello; None before the first.

        One that said it again, after a restart or standing by, seems slower than it was.
        """
        greeted = [(vm, self.worker(vm.id)) for vm in self.vms if vm.attempted_at is not None]
        took = [worker.hello_at - vm.paid_from for vm, worker in greeted if worker is not None]
        return max(min(took), timedelta(0)) if took else None

    def affords(self, workers: int, servers: int) -> bool:
        """Whether the cap pays for so many more machines until they are of use."""
        spec = self.job.spec
        return ledger.affordable(self.vms, spec, workers, servers, self.boot) is not None

    def worker(self, worker: str) -> Worker | None:
        """Return a worker by id, if it ever spoke."""
        return next((w for w in self.workers if w.worker == worker), None)

    def is_silent(self, worker: str) -> bool:
        """Whether a worker has not been heard for longer than any report takes."""
        return self.silence(worker) > SILENCE

    def silence(self, worker: str) -> timedelta:
        """Return for how long a worker has not been heard by one who listened."""
        known = self.worker(worker)
        return timedelta.max if known is None else self.now - self.audible(known.seen_at)

    def audible(self, moment: datetime) -> datetime:
        """Return a moment, or when this controller began to listen, whichever came later."""
        return moment if self.listening_since is None else max(moment, self.listening_since)


def running(machines: Sequence[Vm]) -> tuple[Vm, ...]:
    """Return the machines that may exist, are not told to end, and whose command runs."""
    return tuple(
        vm for vm in machines if vm.state in ("intended", "launched") and vm.exit_code is None
    )
