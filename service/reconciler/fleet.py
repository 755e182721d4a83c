"""Launch and terminate machines as planned, and compare them with what the cloud lists.

Every call to the cloud is preceded by the row that announces it, and no cloud is called inside a
database session. The calls of one job form a batch; the job's next tick waits for its end.
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
from scavenger.schemas import JobPhase
from service import ledger
from service.clouds.executor import CloudCall, CloudExecutor
from service.clouds.inventory import CloudInventory, CloudListing
from service.clouds.labels import ResourceLabels
from service.clouds.provider import Boot, Instance, LaunchRequest, Provider
from service.db import jobs, vms
from service.db.controllers import JobLease, under_lease
from service.db.jobs import StoredJob, record_event
from service.db.vms import LaunchCounter, Vm
from service.errors import CloudError, LaunchRefused
from service.observability import metrics
from service.reconciler.actions import Launch, Terminate
from service.reconciler.diff import (
    ALARM_ORDERS,
    TerminationReason,
    VmChange,
    diff_machine,
    termination_reason,
)
from service.state.job_state import JobState

log = logging.getLogger(__name__)

CurrentTime = Callable[[], datetime]
PendingChange = tuple[Vm, VmChange]


@dataclass(frozen=True, slots=True)
class DiffResult:
    """What a comparison with the cloud's list came to.

    Attributes:
        pending: What the provider is to be asked again.
        is_news: Whether something was written down.
        is_unlisted: Whether the list says nothing of some machine, as it was asked for too early.
    """

    pending: tuple[PendingChange, ...]
    is_news: bool
    is_unlisted: bool


@dataclass(frozen=True, slots=True)
class ControllerContact:
    """How a machine reaches the controller and proves which machine it is.

    Attributes:
        address: URL of the controller, or of what stands before all controllers.
        token_for: Makes the bootstrap token of a machine from its id, the same at every call.
        agent: SHA-256 of the package that the controller serves; None where none is installed.
        ca: SHA-256 of the certificate authority's file; None for those of the machine's system.
    """

    address: str
    token_for: Callable[[str], str]
    agent: str | None = None
    ca: str | None = None

    def boot_of(self, vm: Vm) -> Boot:
        """Return what a machine is launched with, the same at every attempt."""
        return Boot(
            controller=self.address,
            job=vm.job,
            worker=vm.id,
            token=self.token_for(vm.id),
            prepaid=round(max(vm.prepaid, 1.0), 3),
            agent=self.agent,
            ca=self.ca,
        )


@dataclass(frozen=True, slots=True)
class Fleet:
    """Launches and terminates the machines of jobs.

    Attributes:
        contact: How a machine reaches the controller.
        resource_labels: Makes the labels that prove a machine ours.
        launch_counter: Counts launches, so that a restored database is noticed.
        stopwatch: Returns seconds; a call to a cloud may take many of them.
        executor: Runs the cloud calls.
    """

    engine: Engine
    provider: Provider
    contact: ControllerContact
    resource_labels: ResourceLabels
    launch_counter: LaunchCounter = field(default_factory=LaunchCounter)
    stopwatch: Callable[[], float] = time.monotonic
    executor: CloudExecutor = field(default_factory=CloudExecutor)

    def clock_from(self, now: datetime) -> CurrentTime:
        """Return a clock that shows `now` at this moment and goes on from there."""
        began = self.stopwatch()
        return lambda: now + timedelta(seconds=self.stopwatch() - began)

    def compare_with_cloud(
        self, lease: JobLease, state: JobState, present: CurrentTime, inventory: CloudInventory
    ) -> DiffResult | None:
        """Compare the job's machines with the cloud's list, and store what has changed.

        Returns:
            What is left to do; None before the first answer of the cloud.

        Raises:
            CloudError: The cloud does not answer; the state of its machines is unknown.
        """
        listing = inventory.listing(present())
        if listing is None:
            return None
        lag, boot = (
            timedelta(seconds=s)
            for s in (self.provider.max_list_lag_seconds, self.provider.max_boot_seconds)
        )
        pending: list[PendingChange] = []
        is_news, is_job_over = False, state.job.is_ended_or_ending
        alive = [vm for vm in state.vms if vm.is_alive]
        covered = [vm for vm in alive if listing.covers(vm)]
        for vm in covered:
            instance = listing.instances.get(vm.launch_key)
            found = diff_machine(
                vm, instance, listing.requested_at, lag, boot, is_job_over=is_job_over
            )
            if found in (VmChange.RETRY_END, VmChange.RETRY_LAUNCH):
                pending.append((vm, found))
            if found is VmChange.RETRY_END and vm.missed_at is not None:
                found = VmChange.MARK_LISTED
            if found not in (VmChange.RETRY_END, VmChange.RETRY_LAUNCH, VmChange.NONE):
                with under_lease(self.engine, lease) as connection:
                    store_change(connection, vm, listing, found, present())
                is_news = True
        return DiffResult(tuple(pending), is_news, is_unlisted=len(covered) < len(alive))

    def retry_pending(
        self,
        lease: JobLease,
        job: StoredJob,
        present: CurrentTime,
        pending: Sequence[PendingChange],
    ) -> None:
        """Ask the cloud again for machines that are missing, or to end those that still run.

        Ends come first: they cost.
        """
        calls: list[CloudCall] = []
        for vm, _ in (each for each in pending if each[1] is VmChange.RETRY_END):
            calls += self._order_end(lease, vm, present(), is_overdue=vm.ordered_at is None)
        for vm, _ in (each for each in pending if each[1] is VmChange.RETRY_LAUNCH):
            calls.append(partial(self._launch_machine, lease, job, vm, present))
        self.executor.submit(job.id, calls)

    def launch(
        self, lease: JobLease, state: JobState, action: Launch, present: CurrentTime
    ) -> None:
        """Write the intents, reserve their money, and only then call the provider."""
        spec, now = state.job.spec, state.now
        boot = timedelta(seconds=self.provider.max_boot_seconds)
        with under_lease(self.engine, lease) as connection:
            vms.lock_job(connection, state.job.id)
            machines = vms.of_job(connection, state.job.id)
            span = ledger.affordable_span(machines, spec, action.workers, action.servers, boot)
            if span is None:
                # Since the plan was made, another machine has reserved more time and used the
                # money up; the next tick sees that.
                log.info("%s: max_cost no longer pays for %s", state.job.id, action.why)
                return
            whole = ledger.terms_for(spec, action.workers, action.servers)
            for number, role in enumerate(roles_of(action), len(machines) + 1):
                terms = ledger.terms_for_role(spec, role)
                vms.record_intent(
                    connection, state.job.id, number, terms, now, span, boot=boot, role=role
                )
            if state.job.phase is JobPhase.PENDING:
                jobs.change_outcome(
                    connection, state.job.id, phase=JobPhase.STARTING, reason="machines boot"
                )
            facts = {
                "workers": action.workers,
                "servers": action.servers,
                "prepaid": span.total_seconds(),
                "price_per_hour": float(whole.price_per_hour),
            }
            record_event(connection, state.job.id, now, "launch", f"launching {action.why}", facts)
            known = {vm.id for vm in machines}
            fresh = [vm for vm in vms.of_job(connection, state.job.id) if vm.id not in known]
        calls = [partial(self._launch_machine, lease, state.job, vm, present) for vm in fresh]
        self.executor.submit(lease.job, calls)

    def _launch_machine(
        self, lease: JobLease, job: StoredJob, vm: Vm, present: CurrentTime
    ) -> None:
        """Launch one intended machine; the key makes doing it twice harmless."""
        now = present()
        boot, cap = timedelta(seconds=self.provider.max_boot_seconds), job.spec.limits.max_cost
        with under_lease(self.engine, lease) as connection:
            current = jobs.find(connection, job.id)
            if current is None or current.is_ended_or_ending:
                return  # this call may have waited for long
            if not ledger.reserve_attempt(connection, vm, cap, now, boot):
                vms.record_end_order(connection, vm.id, now)
                why = f"{vm.id}: max_cost does not pay for asking again"
                record_event(
                    connection, vm.job, now, "launch_refused", why, {"vm": vm.id, "reason": "cap"}
                )
                return
            labels = self.resource_labels.labels(
                vm.launch_key, self.launch_counter.count_launch(connection)
            )
        try:
            instance = self.provider.launch(self._launch_request(job, vm, labels))
        except LaunchRefused as error:
            with under_lease(self.engine, lease) as connection:
                store_refusal(connection, vm, now, error)
        except CloudError as error:
            log.info("%s is not there yet, it will be asked for again: %s", vm.id, error)
            if vm.attempted_at is None:
                with under_lease(self.engine, lease) as connection:
                    facts = {"vm": vm.id, "reason": error.label}
                    why = f"{vm.id}: {error}; trying again"
                    record_event(connection, vm.job, now, "launch_delayed", why, facts)
        else:
            with under_lease(self.engine, lease) as connection:
                store_launch(connection, vm, instance, now)

    def _launch_request(self, job: StoredJob, vm: Vm, labels: Mapping[str, str]) -> LaunchRequest:
        """Compose the launch of a machine; a repetition with the same key composes the same."""
        return LaunchRequest(
            launch_key=vm.launch_key,
            boot=self.contact.boot_of(vm),
            price_per_hour=float(vm.price_per_hour),
            max_run_seconds=ledger.max_run_seconds(vm.terms, job.spec.limits.max_cost),
            labels=labels,
        )

    def terminate(self, lease: JobLease, state: JobState, action: Terminate) -> None:
        """Order the end of machines; they are gone only once that is proven."""
        with under_lease(self.engine, lease) as connection:
            facts = {"vms": list(action.vms)}
            record_event(
                connection, lease.job, state.now, "terminate", f"ending {action.why}", facts
            )
        calls: list[CloudCall] = []
        for vm in state.vms:
            if vm.id in action.vms:
                calls += self._order_end(lease, vm, state.now)
        self.executor.submit(lease.job, calls)

    def _order_end(
        self, lease: JobLease, vm: Vm, now: datetime, *, is_overdue: bool = False
    ) -> list[CloudCall]:
        """Store the order to end a machine; return the cloud call, if the machine has a name."""
        with under_lease(self.engine, lease) as connection:
            vms.record_end_order(connection, vm.id, now)
            if is_overdue:
                why = f"ending {vm.id}: its paid time is over and it still runs"
                record_event(connection, vm.job, now, "terminate", why, {"vms": [vm.id]})
            if vm.orders == ALARM_ORDERS:
                why = f"{vm.id} was told {ALARM_ORDERS} times to end and still runs: end it by hand"
                record_event(connection, vm.job, now, "undeletable", why, {"vm": vm.id})
        if vm.provider_id is None:
            return []  # it is told when a list shows it
        return [partial(self._terminate_machine, vm.id, vm.provider_id)]

    def _terminate_machine(self, vm: str, provider_id: str) -> None:
        try:
            self.provider.terminate(provider_id)
        except CloudError as error:
            log.warning("%s does not end yet, it will be told again: %s", vm, error)
        except Exception:  # the other machines of the batch are to end all the same
            log.exception("%s does not end yet, it will be told again", vm)


def store_change(
    connection: Connection, vm: Vm, listing: CloudListing, found: VmChange, now: datetime
) -> None:
    """Store what has become of a machine."""
    match found:
        case VmChange.CONFIRM_LAUNCH:
            store_launch(connection, vm, listing.instances[vm.launch_key], now)
        case VmChange.MARK_MISSING:
            vms.record_missing(connection, vm.id, listing.answered_at)
        case VmChange.MARK_LISTED:
            vms.record_missing(connection, vm.id, None)
        case VmChange.MARK_GONE:
            # Machines end themselves when their prepaid time does, seen or unseen.
            store_end(connection, vm, now, min(now, vm.prepaid_until + ledger.POWER_OFF_GRACE))
        case _:
            raise AssertionError(f"{found} of {vm.id} has nothing to store")


def store_launch(connection: Connection, vm: Vm, instance: Instance, now: datetime) -> None:
    """Store that the cloud has a machine, with an event the first time."""
    vms.record_launch(connection, vm.id, instance.provider_id)
    if vm.provider_id is None:
        facts = {"vm": vm.id, "machine": instance.provider_id, "orders": vm.orders}
        record_event(connection, vm.job, now, "vm_launched", f"{vm.id} was started", facts)


def store_end(connection: Connection, vm: Vm, now: datetime, ended_at: datetime) -> None:
    """Store that a machine is gone, with an event that says why and what it cost."""
    why = termination_reason(vm, now)
    if why is TerminationReason.TAKEN:
        metrics.PREEMPTIONS.inc()
    vms.record_gone(connection, vm.id, ended_at)
    span = timedelta(0) if vm.attempted_at is None else ended_at - vm.paid_from
    facts = {
        "vm": vm.id,
        "reason": why.name.lower(),
        "seconds": span.total_seconds(),
        "cost": float(vm.cost(ended_at)),
    }
    record_event(connection, vm.job, now, "vm_gone", f"{vm.id} is gone: {why}", facts)


def store_refusal(connection: Connection, vm: Vm, now: datetime, error: LaunchRefused) -> None:
    """Give up a launch key; a call without an answer may have made its machine all the same."""
    facts = {"vm": vm.id, "reason": error.label}
    record_event(connection, vm.job, now, "launch_refused", f"{vm.id}: {error}", facts)
    if vm.attempted_at is None:
        vms.record_gone(connection, vm.id, now)
    else:
        vms.record_end_order(connection, vm.id, now)


def roles_of(action: Launch) -> tuple[Role, ...]:
    """Return the role of each machine of a launch: servers first, since workers wait for them."""
    roles: tuple[tuple[Role, int], ...] = (("server", action.servers), ("worker", action.workers))
    return tuple(role for role, number in roles for _ in range(number))
