"""Fleet: the machines of jobs, made and ended as decided, and compared with what the cloud shows.

Every call to the cloud is preceded by the row that announces it, and no cloud is called inside a
database session. A job's calls are one trip: nothing else is done for it before they are over.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Connection, Engine

from scavenger.protocol import Role
from scavenger.view import Phase
from service import ledger, meters
from service.clouds.metered import word_of
from service.clouds.provider import Instance, LaunchRequest, Provider
from service.db import jobs, vms
from service.db.epochs import Epoch
from service.db.events import say
from service.db.jobs import Job
from service.db.leases import Lease, acting
from service.db.vms import Vm
from service.errors import CloudError, LaunchRefused
from service.reconciler.action import Launch, Terminate
from service.reconciler.census import ALARM, Finding, census
from service.reconciler.courier import Call, Courier
from service.reconciler.farewell import Farewell, farewell
from service.reconciler.lookout import Lookout, Sighting
from service.reconciler.ownership import Ownership
from service.reconciler.snapshot import Snapshot
from service.storage import Storage

log = logging.getLogger(__name__)

Present = Callable[[], datetime]
Pending = tuple[Vm, Finding]


@dataclass(frozen=True, slots=True)
class Observed:
    """What a look at the provider's machines came to.

    Attributes:
        pending: What the provider is to be asked again.
        is_news: Whether something was written down.
    """

    pending: tuple[Pending, ...]
    is_news: bool


@dataclass(frozen=True, slots=True)
class Fleet:
    """What making and ending machines needs of the world.

    Attributes:
        environment: Makes what a machine needs to find and trust the controller and its job.
        storage: Where machines keep what outlives them.
        ownership: Writes the labels by which machines are known as ours.
        epoch: Counts launches.
        stopwatch: Seconds since whenever; calls to a cloud may take many of them.
        courier: Makes the calls to the cloud.
    """

    engine: Engine
    provider: Provider
    environment: Callable[[Vm], Mapping[str, str]]
    storage: Storage
    ownership: Ownership
    epoch: Epoch = field(default_factory=Epoch)
    stopwatch: Callable[[], float] = time.monotonic
    courier: Courier = field(default_factory=Courier)

    def follow(self, now: datetime) -> Present:
        """Return what tells the moment as time goes by from now on."""
        began = self.stopwatch()
        return lambda: now + timedelta(seconds=self.stopwatch() - began)

    def observe(
        self, lease: Lease, snapshot: Snapshot, present: Present, lookout: Lookout
    ) -> Observed | None:
        """Compare what should exist with what the provider shows, and write that down.

        Returns:
            What was found; None while the provider has not answered at all.

        Raises:
            CloudError: The provider shows nothing; nothing is known.
        """
        sighting = lookout.sighting(present())
        if sighting is None:
            return None
        lag, boot = (timedelta(seconds=s) for s in (self.provider.lag, self.provider.boot))
        pending: list[Pending] = []
        is_news, is_final = False, is_over(snapshot.job)
        for vm in filter(sighting.tells_of, (vm for vm in snapshot.vms if vm.is_alive)):
            instance = sighting.shown.get(vm.launch_key)
            found = census(vm, instance, sighting.at, lag, boot, is_final=is_final)
            if found in (Finding.END, Finding.LAUNCH):
                pending.append((vm, found))
            if found is Finding.END and vm.missed_at is not None:
                found = Finding.SEE
            if found not in (Finding.END, Finding.LAUNCH, Finding.NOTHING):
                self._note(lease, vm, sighting, found, present())
                is_news = True
        return Observed(tuple(pending), is_news)

    def pursue(self, lease: Lease, job: Job, present: Present, pending: Sequence[Pending]) -> None:
        """Ask the provider again for machines that are not there, or to end those that still are.

        Ends come first: they cost.
        """
        calls: list[Call] = []
        for vm, _ in (each for each in pending if each[1] is Finding.END):
            calls += self._order_end(lease, vm, present(), is_overdue=vm.ordered_at is None)
        for vm, _ in (each for each in pending if each[1] is Finding.LAUNCH):
            calls.append(partial(self._start, lease, job, vm, present))
        self.courier.send(job.id, calls)

    def _note(
        self, lease: Lease, vm: Vm, sighting: Sighting, found: Finding, now: datetime
    ) -> None:
        """Write down what a census found, if nobody else acts for the job."""
        with acting(self.engine, lease) as connection:
            note(connection, vm, sighting, found, now)

    def launch(self, lease: Lease, snapshot: Snapshot, action: Launch, present: Present) -> None:
        """Write the intents, reserve their money, and only then call the provider."""
        spec, now = snapshot.job.spec, snapshot.now
        boot = timedelta(seconds=self.provider.boot)
        with acting(self.engine, lease) as connection:
            vms.lock_job(connection, snapshot.job.id)
            machines = vms.of_job(connection, snapshot.job.id)
            span = ledger.affordable(machines, spec, action.count, action.servers, boot)
            if span is None:
                # A lease that was renewed since the plan took the money; the next tick sees that.
                log.info("%s: max_cost no longer pays for %s", snapshot.job.id, action.why)
                return
            whole = ledger.terms_of_all(spec, action.count, action.servers)
            for number, role in enumerate(roles_of(action), len(machines) + 1):
                terms = ledger.terms_of_role(spec, role)
                vms.intend(
                    connection, snapshot.job.id, number, terms, now, span, boot=boot, role=role
                )
            if snapshot.job.phase is Phase.PENDING:
                jobs.change_outcome(
                    connection, snapshot.job.id, phase=Phase.STARTING, reason="machines boot"
                )
            facts = {
                "workers": action.count,
                "servers": action.servers,
                "prepaid": span.total_seconds(),
                "price_per_hour": float(whole.price_per_hour),
            }
            say(connection, snapshot.job.id, now, "launch", f"launching {action.why}", facts)
            known = {vm.id for vm in machines}
            fresh = [vm for vm in vms.of_job(connection, snapshot.job.id) if vm.id not in known]
        calls = [partial(self._start, lease, snapshot.job, vm, present) for vm in fresh]
        self.courier.send(lease.job, calls)

    def _start(self, lease: Lease, job: Job, vm: Vm, present: Present) -> None:
        """Launch one intended machine; the key makes doing it twice harmless."""
        now = present()
        boot, cap = timedelta(seconds=self.provider.boot), job.spec.limits.max_cost
        with acting(self.engine, lease) as connection:
            if is_over(jobs.find(connection, job.id)):
                return  # this call may have waited for long
            if not ledger.reserve_attempt(connection, vm, cap, now, boot):
                vms.order_end(connection, vm.id, now)
                why = f"{vm.id}: max_cost does not pay for asking again"
                say(connection, vm.job, now, "launch_refused", why, {"vm": vm.id, "reason": "cap"})
                return
            labels = self.ownership.labels(vm.launch_key, self.epoch.stamp(connection))
        try:
            instance = self.provider.launch(self._request(job, vm, labels))
        except LaunchRefused as error:
            with acting(self.engine, lease) as connection:
                refuse(connection, vm, now, error)
        except CloudError as error:
            log.info("%s is not there yet, it will be asked for again: %s", vm.id, error)
            if vm.attempted_at is None:
                with acting(self.engine, lease) as connection:
                    facts = {"vm": vm.id, "reason": word_of(error)}
                    why = f"{vm.id}: {error}; trying again"
                    say(connection, vm.job, now, "launch_delayed", why, facts)
        else:
            with acting(self.engine, lease) as connection:
                confirm(connection, vm, instance, now)

    def _request(self, job: Job, vm: Vm, labels: Mapping[str, str]) -> LaunchRequest:
        """Compose what a machine is launched with, the same whenever that is repeated."""
        run = job.spec.run
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
                "SCAVENGER_PREPAID": f"{max(vm.prepaid, 1.0):.3f}",
                "SCAVENGER_STALL": repr(run.stall),
                "SCAVENGER_DRAIN": repr(run.drain),
            },
            directory=run.directory,
            price_per_hour=float(vm.price_per_hour),
            longest_run=ledger.longest_run(vm.terms, job.spec.limits.max_cost),
            labels=labels,
        )

    def terminate(self, lease: Lease, snapshot: Snapshot, action: Terminate) -> None:
        """Order the end of machines; they are gone only once that is proven."""
        with acting(self.engine, lease) as connection:
            facts = {"vms": list(action.vms)}
            say(connection, lease.job, snapshot.now, "terminate", f"ending {action.why}", facts)
        calls: list[Call] = []
        for vm in snapshot.vms:
            if vm.id in action.vms:
                calls += self._order_end(lease, vm, snapshot.now)
        self.courier.send(lease.job, calls)

    def _order_end(
        self, lease: Lease, vm: Vm, now: datetime, *, is_overdue: bool = False
    ) -> list[Call]:
        """Write down that a machine is to end; return what tells the provider, if it knows it."""
        with acting(self.engine, lease) as connection:
            vms.order_end(connection, vm.id, now)
            if is_overdue:
                why = f"ending {vm.id}: its paid time is over and it still runs"
                say(connection, vm.job, now, "terminate", why, {"vms": [vm.id]})
            if vm.orders == ALARM:
                why = f"{vm.id} was told {ALARM} times to end and still runs: end it by hand"
                say(connection, vm.job, now, "undeletable", why, {"vm": vm.id})
        if vm.provider_id is None:
            return []  # it is told when a list shows it
        return [partial(self._end, vm.id, vm.provider_id)]

    def _end(self, vm: str, provider_id: str) -> None:
        """Tell the provider to end a machine."""
        try:
            self.provider.terminate(provider_id)
        except CloudError as error:
            log.warning("%s does not end yet, it will be told again: %s", vm, error)
        except Exception:  # the others of the same trip are to end all the same
            log.exception("%s does not end yet, it will be told again", vm)


def note(connection: Connection, vm: Vm, sighting: Sighting, found: Finding, now: datetime) -> None:
    """Write down what a census found."""
    match found:
        case Finding.CONFIRM:
            confirm(connection, vm, sighting.shown[vm.launch_key], now)
        case Finding.MISS:
            vms.missed(connection, vm.id, sighting.until)
        case Finding.SEE:
            vms.missed(connection, vm.id, None)
        case Finding.BURY:
            # Machines end themselves when their prepaid time does, whoever is looking.
            bury(connection, vm, now, min(now, vm.prepaid_until + ledger.GRACE))
        case _:
            raise AssertionError(f"a census of {vm.id} found {found} and nothing to write")


def confirm(connection: Connection, vm: Vm, instance: Instance, now: datetime) -> None:
    """Write down that the cloud has a machine, and say so the first time."""
    vms.launched(connection, vm.id, instance.provider_id)
    if vm.provider_id is None:
        facts = {"vm": vm.id, "machine": instance.provider_id, "orders": vm.orders}
        say(connection, vm.job, now, "vm_launched", f"{vm.id} was started", facts)


def bury(connection: Connection, vm: Vm, now: datetime, ended_at: datetime) -> None:
    """Write down that a machine is gone, why, and what it cost."""
    why = farewell(vm, now)
    if why is Farewell.TAKEN:
        meters.PREEMPTIONS.inc()
    vms.gone(connection, vm.id, ended_at)
    span = timedelta(0) if vm.attempted_at is None else ended_at - vm.paid_from
    facts = {
        "vm": vm.id,
        "reason": why.name.lower(),
        "seconds": span.total_seconds(),
        "cost": float(vm.cost(ended_at)),
    }
    say(connection, vm.job, now, "vm_gone", f"{vm.id} is gone: {why}", facts)


def refuse(connection: Connection, vm: Vm, now: datetime, error: LaunchRefused) -> None:
    """Give a launch key up; an answer that was lost may have made its machine all the same."""
    facts = {"vm": vm.id, "reason": word_of(error)}
    say(connection, vm.job, now, "launch_refused", f"{vm.id}: {error}", facts)
    if vm.attempted_at is None:
        vms.gone(connection, vm.id, now)
    else:
        vms.order_end(connection, vm.id, now)


def is_over(job: Job | None) -> bool:
    """Whether a job has ended, or is to: nothing is launched for it any more."""
    return job is None or job.phase.is_final or job.cancel_requested_at is not None


def roles_of(action: Launch) -> tuple[Role, ...]:
    """Return what each machine of a launch is there for."""
    roles: tuple[tuple[Role, int], ...] = (("server", action.servers), ("worker", action.count))
    return tuple(role for role, number in roles for _ in range(number))
