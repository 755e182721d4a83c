"""Launch and terminate machines as planned, and compare them with what the cloud lists.

Every call to the cloud is preceded by the row that announces it, and no cloud is called inside a
database session. The calls of one job form a batch; the job's next tick waits for its end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial

from sqlalchemy import Engine

from scavenger.schemas.jobs import JobPhase
from service import ledger
from service.clouds.clouds import Clouds
from service.clouds.executor import CloudCall, CloudExecutors
from service.clouds.inventory import Inventories
from service.clouds.labels import ResourceLabels
from service.clouds.provider import Boot, LaunchRequest
from service.db import jobs, vms
from service.db.controllers import JobLease, under_lease
from service.db.jobs import StoredJob, record_event
from service.db.vms import LaunchCounter, Vm
from service.errors import (
    CloudError,
    CredentialsRefused,
    LaunchRefused,
    OutOfCapacity,
    QuotaReached,
    Throttled,
)
from service.reconciler.actions import Launch, Terminate
from service.reconciler.diff import ALARM_ORDERS, VmChange, diff_machine, proven_overrun
from service.reconciler.launches import (
    roles_of,
    shortage_at,
    store_change,
    store_launch,
    store_refusal,
)
from service.state.job_state import JobState
from service.state.loader import OrderedJob, load_ordered_job

log = logging.getLogger(__name__)

CurrentTime = Callable[[], datetime]
PendingChange = tuple[Vm, VmChange]
ENDS = (VmChange.RETRY_END, VmChange.END_STOPPED)
CLOUD_CALLS = (*ENDS, VmChange.RETRY_LAUNCH)


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
        executors: Run the cloud calls.
    """

    engine: Engine
    clouds: Clouds
    contact: ControllerContact
    resource_labels: ResourceLabels
    launch_counter: LaunchCounter = field(default_factory=LaunchCounter)
    stopwatch: Callable[[], float] = time.monotonic
    executors: CloudExecutors = field(default_factory=CloudExecutors)

    def clock_from(self, now: datetime) -> CurrentTime:
        """Return a clock that shows `now` at this moment and goes on from there."""
        began = self.stopwatch()
        return lambda: now + timedelta(seconds=self.stopwatch() - began)

    def compare_with_cloud(
        self, lease: JobLease, state: JobState, present: CurrentTime, inventories: Inventories
    ) -> DiffResult | None:
        """Compare the job's machines with the lists of their clouds, and store what has changed.

        Returns:
            What is left to do; None before the first answer of a cloud.

        Raises:
            CloudError: A cloud does not answer; the state of its machines is unknown.
        """
        alive = [vm for vm in state.vms if vm.is_alive]
        # Also the cloud it would launch in: no machine is launched where none can be seen.
        clouds = {vm.cloud for vm in alive} | {offer.cloud for offer in state.places}
        listings = {cloud: inventories.listing(cloud, present()) for cloud in sorted(clouds)}
        pending: list[PendingChange] = []
        is_news, covered = False, 0
        is_job_over = state.job.is_ended_or_ending or state.standing.is_paused
        if None in listings.values():
            return None
        for vm in alive:
            listing = listings[vm.cloud]
            if listing is None or not listing.covers(vm):
                continue
            covered += 1
            traits = self.clouds[vm.cloud].traits
            lag = timedelta(seconds=traits.max_list_lag_seconds)
            boot = timedelta(seconds=traits.max_boot_seconds)
            instance = listing.instances.get(vm.launch_key)
            found = diff_machine(
                vm, instance, listing.requested_at, lag, boot, is_job_over=is_job_over
            )
            if found in CLOUD_CALLS:
                pending.append((vm, found))
            is_late = found is VmChange.RETRY_END
            proven = proven_overrun(vm, instance, listing.requested_at, lag) if is_late else None
            if proven is not None:
                with under_lease(self.engine, lease) as connection:
                    vms.extend_prepaid(connection, vm.id, proven)
            if found in ENDS and vm.missed_at is not None:
                found = VmChange.MARK_LISTED
            if found not in (*CLOUD_CALLS, VmChange.NONE):
                with under_lease(self.engine, lease) as connection:
                    store_change(connection, vm, listing, found, present())
                is_news = True
        return DiffResult(tuple(pending), is_news, is_unlisted=covered < len(alive))

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
        calls: dict[str, list[CloudCall]] = {vm.cloud: [] for vm, _ in pending}
        for vm, change in (each for each in pending if each[1] in ENDS):
            why = "its paid time is over and it still runs"
            if change is VmChange.END_STOPPED:
                why = str(change.value)
            calls[vm.cloud] += self._order_end(lease, vm, present(), "" if vm.ordered_at else why)
        for vm, _ in (each for each in pending if each[1] is VmChange.RETRY_LAUNCH):
            calls[vm.cloud].append(partial(self._launch_machine, lease, job, vm, present))
        self._submit(job.id, calls)

    def _submit(self, job: str, calls: Mapping[str, Sequence[CloudCall]]) -> None:
        for cloud, own in calls.items():
            self.executors.submit(job, cloud, own)

    def launch(
        self, lease: JobLease, state: JobState, action: Launch, present: CurrentTime
    ) -> None:
        """Write the intents, reserve their money, and only then call the provider."""
        now = state.now
        boot = timedelta(seconds=self.clouds[action.offer.cloud].traits.max_boot_seconds)
        with under_lease(self.engine, lease) as connection:
            vms.lock_job(connection, state.job.id)
            current = load_ordered_job(connection, state.job.id)
            if current is None or current.standing.newest != state.standing.newest:
                return  # an order has come since the plan was made
            spec, machines = current.job.spec, vms.of_job(connection, state.job.id)
            terms = action.offer.terms
            span = ledger.affordable_span(
                machines, spec, terms, action.workers, action.servers, boot
            )
            if span is None:
                # Since the plan was made, another machine has reserved more time and used the
                # money up; the next tick sees that.
                log.info("%s: max_cost no longer pays for %s", state.job.id, action.why)
                return
            whole = ledger.terms_together(terms, spec, action.workers, action.servers)
            for number, role in enumerate(roles_of(action), len(machines) + 1):
                offer = replace(action.offer, terms=ledger.terms_for_role(terms, spec, role))
                vms.record_intent(
                    connection, state.job.id, number, offer, now, span, boot=boot, role=role
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
                "cloud": action.offer.cloud,
                "zone": action.offer.zone,
                "machine_type": action.offer.machine_type,
                "market": action.offer.market,
            }
            if state.job.waiting is None:  # else the job waits for a place, which is asked again
                why = f"launching {action.why}"
                record_event(connection, state.job.id, now, "launch", why, facts)
            known = {vm.id for vm in machines}
            fresh = [vm for vm in vms.of_job(connection, state.job.id) if vm.id not in known]
        calls = [partial(self._launch_machine, lease, state.job, vm, present) for vm in fresh]
        self.executors.submit(lease.job, action.offer.cloud, calls)

    def _launch_machine(
        self, lease: JobLease, job: StoredJob, vm: Vm, present: CurrentTime
    ) -> None:
        """Launch one intended machine; the key makes doing it twice harmless."""
        now, provider = present(), self.clouds[vm.cloud]
        boot = timedelta(seconds=provider.traits.max_boot_seconds)
        with under_lease(self.engine, lease) as connection:
            # An order that is just stored may lower the cap. One that found no lease, as this one
            # was not taken yet, holds only the job.
            vms.lock_job(connection, job.id)
            current = load_ordered_job(connection, job.id)
            if current is None or current.is_held:
                return None  # this call may have waited for long
            if vm.attempted_at is None and (short := shortage_at(connection, vm, now)) is not None:
                return vms.record_refusal(connection, vm.id, short.why, now, short.kind)
            stamp = self.launch_counter.count_launch(connection)
            cap = current.job.spec.limits.max_cost
            if not ledger.reserve_attempt(connection, vm, cap, now, boot, stamp):
                vms.record_end_order(connection, vm.id, now)
                why = f"{vm.id}: max_cost does not pay for asking again"
                record_event(
                    connection, vm.job, now, "launch_refused", why, {"vm": vm.id, "reason": "cap"}
                )
                return None
            labels = self.resource_labels.labels(vm.launch_key, vm.stamp or stamp)
        try:
            instance = provider.launch(self._launch_request(current, vm, labels))
        except (OutOfCapacity, QuotaReached, CredentialsRefused, LaunchRefused) as error:
            with under_lease(self.engine, lease) as connection:
                store_refusal(connection, job, vm, now, error)
        except CloudError as error:
            log.info("%s is not there yet, it will be asked for again: %s", vm.id, error)
            with under_lease(self.engine, lease) as connection:
                if isinstance(error, Throttled):
                    vms.record_certain_answer(connection, vm.id)
                if vm.attempted_at is None:
                    facts = {"vm": vm.id, "reason": error.label}
                    why = f"{vm.id}: {error}; trying again"
                    record_event(connection, vm.job, now, "launch_delayed", why, facts)
        else:
            with under_lease(self.engine, lease) as connection:
                store_launch(connection, vm, instance, now)
        return None

    def _launch_request(self, job: OrderedJob, vm: Vm, labels: Mapping[str, str]) -> LaunchRequest:
        """Compose the launch of a machine; a repetition with the same key composes the same.

        So the cap is that of the moment of the intent, however it was changed since.
        """
        money = job.cap_at(vm.intended_at)
        return LaunchRequest(
            launch_key=vm.launch_key,
            offer=vm.offer,
            boot=self.contact.boot_of(vm),
            max_run_seconds=ledger.max_run_seconds(vm.terms, money),
            labels=labels,
        )

    def terminate(self, lease: JobLease, state: JobState, action: Terminate) -> None:
        """Order the end of machines; they are gone only once that is proven."""
        with under_lease(self.engine, lease) as connection:
            facts = {"vms": list(action.vms)}
            record_event(
                connection, lease.job, state.now, "terminate", f"ending {action.why}", facts
            )
        ended = [vm for vm in state.vms if vm.id in action.vms]
        calls: dict[str, list[CloudCall]] = {vm.cloud: [] for vm in ended}
        for vm in ended:
            calls[vm.cloud] += self._order_end(lease, vm, state.now)
        self._submit(lease.job, calls)

    def _order_end(
        self, lease: JobLease, vm: Vm, now: datetime, reason: str = ""
    ) -> list[CloudCall]:
        """Store the order to end a machine; return the cloud call, if the machine has a name.

        A reason is recorded as an event, where no decision has told of the end.
        """
        with under_lease(self.engine, lease) as connection:
            vms.record_end_order(connection, vm.id, now)
            if reason:
                why = f"ending {vm.id}: {reason}"
                record_event(connection, vm.job, now, "terminate", why, {"vms": [vm.id]})
            if vm.orders == ALARM_ORDERS:
                why = f"{vm.id} was told {ALARM_ORDERS} times to end and still runs: end it by hand"
                record_event(connection, vm.job, now, "undeletable", why, {"vm": vm.id})
        if vm.provider_id is None:
            return []  # it is told when a list shows it
        return [partial(self._terminate_machine, vm, vm.provider_id)]

    def _terminate_machine(self, vm: Vm, provider_id: str) -> None:
        try:
            self.clouds[vm.cloud].terminate(provider_id)
        except CloudError as error:
            log.warning("%s does not end yet, it will be told again: %s", vm.id, error)
        except Exception:  # the other machines of the batch are to end all the same
            log.exception("%s does not end yet, it will be told again", vm.id)
