"""One tick: read the world, plan one action, apply it, record one sentence.

Kill the controller anywhere: every effect is preceded by the row that announces it, and the next
tick rereads the world. No cloud is called inside a database session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime

from sqlalchemy import Connection, Engine

from scavenger.decision import ProbeEffort
from scavenger.profiling import PROBE_ITERATIONS, WARM_UP
from scavenger.protocol import Role, StepColumns
from scavenger.view import Phase
from service import ledger
from service.clouds.provider import Instance, InstanceState, LaunchRequest, Provider
from service.db import (
    directives,
    drifts,
    jobs,
    leases,
    models,
    observations,
    readings,
    vms,
    workers,
)
from service.db.epochs import Epoch
from service.db.events import say
from service.db.jobs import Job
from service.db.leases import Lease
from service.db.observations import Probe
from service.db.vms import Vm
from service.errors import CloudError, LaunchRefused
from service.knowledge import Knowledge, signature_of
from service.reconciler.action import (
    Launch,
    Rest,
    Terminate,
)
from service.reconciler.drift import is_due
from service.reconciler.ownership import Ownership
from service.reconciler.plan import plan
from service.reconciler.record import record
from service.reconciler.snapshot import Snapshot
from service.storage import Storage

RECENT_REPORTS = 300
MOST_MODELS = 200


@dataclass(frozen=True, slots=True)
class Reconciler:
    """What a tick needs of the world.

    Attributes:
        environment: Makes what a machine needs to find and trust the controller and its job.
        storage: Where machines keep what outlives them.
        started_at: When this controller began to listen.
        ownership: Writes the labels by which machines are known as ours.
        epoch: Counts its launches.
    """

    engine: Engine
    provider: Provider
    environment: Callable[[Vm], Mapping[str, str]]
    storage: Storage
    started_at: datetime
    ownership: Ownership
    epoch: Epoch = field(default_factory=Epoch)

    def tick(self, lease: Lease, now: datetime) -> str:
        """Do one thing for a job and say what, in one sentence.

        Raises:
            LeaseLost: Another controller acts for this job; nothing more was written.
        """
        job = lease.job
        self._observe(lease, now)
        with self.engine.connect() as connection:
            snapshot = read(connection, self.provider.name, job, now, self.provider.pause)
        snapshot = replace(snapshot, listening_since=self.started_at)
        action = plan(snapshot)
        match action:
            case Launch():
                self._launch(lease, snapshot, action)
            case Terminate():
                self._terminate(lease, snapshot, action)
            case Rest():
                pass
            case _:
                with self._write(lease) as connection:
                    record(connection, self.provider.name, snapshot, action)
        return action.why

    @contextmanager
    def _write(self, lease: Lease) -> Iterator[Connection]:
        """Open a transaction in which nobody else acts for the job."""
        with self.engine.begin() as connection:
            leases.check(connection, lease)
            yield connection

    def _observe(self, lease: Lease, now: datetime) -> None:
        """Compare what should exist with what the provider shows, and finish open intents."""
        job = lease.job
        with self.engine.connect() as connection:
            machines = [vm for vm in vms.of_job(connection, job) if vm.is_alive]
            found = jobs.find(connection, job)
        if not machines or found is None:
            return
        shown = {instance.launch_key: instance for instance in self.provider.list()}
        for vm in machines:
            self._compare(lease, found, vm, shown.get(vm.launch_key), now)

    def _compare(
        self, lease: Lease, job: Job, vm: Vm, instance: Instance | None, now: datetime
    ) -> None:
        is_gone = instance is not None and instance.state is InstanceState.GONE
        if instance is None and vm.state == "intended" and not job.phase.is_final:
            self._start(lease, job, vm, now)
        elif instance is None or is_gone:
            # Machines end themselves when their prepaid time does, whoever is looking.
            ended_at = min(now, vm.prepaid_until + ledger.GRACE)
            with self._write(lease) as connection:
                vms.gone(connection, vm.id, ended_at)
                say(connection, vm.job, now, "vm_gone", f"{vm.id} is gone", {"vm": vm.id})
        elif vm.state == "intended":
            with self._write(lease) as connection:
                vms.launched(connection, vm.id, instance.provider_id)

    def _launch(self, lease: Lease, snapshot: Snapshot, action: Launch) -> None:
        """Write the intents, reserve their money, and only then call the provider."""
        spec, now = snapshot.job.spec, snapshot.now
        with self._write(lease) as connection:
            vms.lock_job(connection, snapshot.job.id)
            machines = vms.of_job(connection, snapshot.job.id)
            terms = ledger.terms_of_all(spec, action.count, action.servers)
            span = ledger.affordable(machines, spec.limits.max_cost, terms, 1)
            if span is None:
                return
            for number, role in enumerate(roles_of(action), len(machines) + 1):
                terms = ledger.terms_of_role(spec, role)
                vms.intend(connection, snapshot.job.id, number, terms, now, span, role=role)
            if snapshot.job.phase is Phase.PENDING:
                jobs.change_outcome(
                    connection, snapshot.job.id, phase=Phase.STARTING, reason="machines boot"
                )
            say(connection, snapshot.job.id, now, "launch", f"launching {action.why}")
            known = {vm.id for vm in machines}
            fresh = [vm for vm in vms.of_job(connection, snapshot.job.id) if vm.id not in known]
        for vm in fresh:
            self._start(lease, snapshot.job, vm, now)

    def _start(self, lease: Lease, job: Job, vm: Vm, now: datetime) -> None:
        """Launch one intended machine; the key makes doing it twice harmless."""
        with self._write(lease) as connection:
            labels = self.ownership.labels(vm.launch_key, self.epoch.stamp(connection))
        try:
            instance = self.provider.launch(self._request(job, vm, labels, now))
        except LaunchRefused as error:
            with self._write(lease) as connection:
                vms.gone(connection, vm.id, now)
                say(connection, vm.job, now, "launch_refused", f"{vm.id}: {error}")
        except CloudError as error:
            with self._write(lease) as connection:
                say(connection, vm.job, now, "launch_delayed", f"{vm.id}: {error}; trying again")
        else:
            with self._write(lease) as connection:
                vms.launched(connection, vm.id, instance.provider_id)

    def _request(self, job: Job, vm: Vm, labels: Mapping[str, str], now: datetime) -> LaunchRequest:
        run = job.spec.run
        prepaid = max((vm.prepaid_until - now).total_seconds(), 1.0)
        return LaunchRequest(
            launch_key=vm.launch_key,
            job=job.id,
            command=tuple(run.command),
            environment={
                **(run.env or {}),
                **self.environment(vm),
                **self.storage.environment(job.id, job.spec),
                "SCAVENGER_JOB": job.id,
                "SCAVENGER_WORKER": vm.id,
                "SCAVENGER_ROLE": vm.role,
                "SCAVENGER_STRATEGY": job.spec.strategy.name,
                "SCAVENGER_PREPAID": f"{prepaid:.3f}",
                "SCAVENGER_STALL": repr(run.stall),
                "SCAVENGER_DRAIN": repr(run.drain),
            },
            directory=run.directory,
            price_per_hour=float(vm.price_per_hour),
            labels=labels,
        )

    def _terminate(self, lease: Lease, snapshot: Snapshot, action: Terminate) -> None:
        """End machines; they count as gone only when the provider shows them gone."""
        job, now = snapshot.job.id, snapshot.now
        said = [f"ending {action.why}"]
        for vm in snapshot.vms:
            if vm.id in action.vms and vm.provider_id is not None:
                try:
                    self.provider.terminate(vm.provider_id)
                except CloudError as error:
                    said.append(f"{vm.id}: {error}; trying again")
        with self._write(lease) as connection:
            say(connection, job, now, "terminate", "; ".join(said))


def roles_of(action: Launch) -> tuple[Role, ...]:
    """Return what each machine of a launch is there for."""
    roles: tuple[tuple[Role, int], ...] = (("server", action.servers), ("worker", action.count))
    return tuple(role for role, number in roles for _ in range(number))


def read(
    connection: Connection, machine: str, job_id: str, now: datetime, pause: float = 0.0
) -> Snapshot:
    """Read everything a tick needs, once; who only shows a job needs no pause."""
    job = jobs.find(connection, job_id)
    assert job is not None
    told = directives.newest(connection, job_id)
    directive, published_at = told if told is not None else (None, None)
    probes = observations.of_job(connection, job_id)
    drifted = drifts.newest(connection, job_id)
    steps = StepColumns()
    if directive is not None and directive.purpose == "probe" and job.chosen is None:
        steps = workers.steps_of(connection, job_id, directive.generation)
    elif directive is not None and is_due(now, published_at, drifted) and not job.phase.is_final:
        steps = workers.steps_of(connection, job_id, directive.generation, RECENT_REPORTS)
    knowledge = recall(connection, machine, job, probes)
    return Snapshot(
        now=now,
        job=job,
        vms=vms.of_job(connection, job_id),
        workers=workers.of_job(connection, job_id),
        directive=directive,
        published_at=published_at,
        probes=probes,
        drifted=drifted,
        steps=steps,
        knowledge=replace(
            knowledge,
            effort=ProbeEffort(PROBE_ITERATIONS + WARM_UP, pause),
            noise_scale=None if drifted is None else drifted.noise_scale,
        ),
    )


def recall(connection: Connection, machine: str, job: Job, probes: tuple[Probe, ...]) -> Knowledge:
    """Return what probes and earlier jobs tell about a job."""
    signature = signature_of(job.spec, machine)
    known = [stored for _, stored, _ in models.newest(connection, MOST_MODELS)]
    return Knowledge(
        spec=job.spec,
        observations=tuple(probe.observation for probe in probes),
        stored=models.find(connection, signature),
        epochs_to_target=job.epochs_to_target,
        models=tuple(stored for stored in known if stored.signature != signature),
        machine=machine,
        history=readings.of_job(connection, job.id),
    )
