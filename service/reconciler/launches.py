"""Write down what became of launches and machines, each with its event, and which places refused.

A refusal is certain for the call that it answers. An earlier call without an answer may have made
the machine all the same: then only the lists prove that it is not there.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from sqlalchemy import Connection

from scavenger.protocol import Role
from service import ledger
from service.clouds.inventory import CloudListing
from service.clouds.provider import EndReason, Instance
from service.db import vms
from service.db.jobs import StoredJob, record_event
from service.db.shortages import (
    SHORTAGE_SPAN,
    UNSOLD_SPAN,
    Shortage,
    active_shortages,
    drop_past,
    record_shortage,
)
from service.db.vms import Vm
from service.errors import (
    CloudError,
    CredentialsRefused,
    LaunchKeyUsed,
    MachineTypeUnsold,
    OutOfCapacity,
    QuotaReached,
    SpotRefused,
)
from service.observability import metrics
from service.offers import Offer
from service.reconciler.actions import Launch
from service.reconciler.diff import TerminationReason, VmChange, termination_reason


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
        case VmChange.MARK_REFUSED:
            vms.record_refusal(connection, vm.id, found.value, now)
        case VmChange.MARK_GONE:
            # Machines end themselves when their prepaid time does, seen or unseen.
            ended_at = min(now, vm.prepaid_until + ledger.POWER_OFF_GRACE)
            shown = listing.instances.get(vm.launch_key)
            store_end(connection, vm, now, ended_at, None if shown is None else shown.reason)
        case _:
            raise AssertionError(f"{found} of {vm.id} has nothing to store")


def store_launch(connection: Connection, vm: Vm, instance: Instance, now: datetime) -> None:
    """Store that the cloud has a machine, with an event the first time."""
    vms.record_launch(connection, vm.id, instance.provider_id)
    if vm.provider_id is None:
        facts = {"vm": vm.id, "machine": instance.provider_id, "orders": vm.orders}
        record_event(connection, vm.job, now, "vm_launched", f"{vm.id} was started", facts)


def store_end(
    connection: Connection, vm: Vm, now: datetime, ended_at: datetime, told: EndReason | None
) -> None:
    """Store that a machine is gone, with an event that says why and what it cost.

    A cloud may accept a launch and end the machine at once for want of room: that place is not
    asked for a while, as if it had refused.
    """
    why = termination_reason(vm, now)
    if why in (TerminationReason.TAKEN, TerminationReason.RECLAIMED):
        metrics.PREEMPTIONS.inc()
    vms.record_gone(connection, vm.id, ended_at)
    span = timedelta(0) if vm.attempted_at is None else ended_at - vm.paid_from
    facts = {
        "vm": vm.id,
        "reason": why.name.lower(),
        "seconds": span.total_seconds(),
        "cost": float(vm.cost(ended_at)),
    }
    words = f"{vm.id} is gone: {why}"
    if told is not None:
        facts["cloud_reason"] = told.name.lower()
        words += f"; its cloud says: {told}"
    record_event(connection, vm.job, now, "vm_gone", words, facts)
    if told is EndReason.SOLD_OUT:
        store_shortage(connection, vm.offer, OutOfCapacity(f"{vm.id}: {told}"), now)


def store_refusal(
    connection: Connection, job: StoredJob, vm: Vm, now: datetime, error: CloudError
) -> None:
    """Give up a launch key, and do not ask its place for a while.

    The answer is certain for its own call. An earlier call without an answer may have made the
    machine all the same: only the lists prove that it did not.
    """
    if isinstance(error, LaunchKeyUsed):
        vms.record_end_order(connection, vm.id, now)
    elif vms.record_certain_answer(connection, vm.id) == 0:
        vms.record_refusal(connection, vm.id, str(error), now, error.label)
    else:
        vms.record_end_order(connection, vm.id, now)
    is_shortage = store_shortage(connection, vm.offer, error, now)
    if not is_shortage or job.waiting is None:  # a job that waits has said that no place gives one
        facts = {"vm": vm.id, "reason": error.label, "zone": vm.zone, "market": vm.market}
        record_event(connection, vm.job, now, "launch_refused", f"{vm.id}: {error}", facts)


def store_shortage(connection: Connection, offer: Offer, error: CloudError, now: datetime) -> bool:
    """Store what a refusal says of its place; tell whether it says what concerns other launches."""
    short = shortage_of(offer, error, now)
    if short is None:
        return False
    drop_past(connection, now)
    record_shortage(connection, short)
    return True


def shortage_of(offer: Offer, error: CloudError, now: datetime) -> Shortage | None:
    """Return what a refusal says of its place; None where it concerns the launch only."""
    cloud, until = offer.cloud, now + SHORTAGE_SPAN
    match error:
        case MachineTypeUnsold():
            until = now + UNSOLD_SPAN
            place = (offer.zone, offer.machine_type, offer.market)
            return Shortage(cloud, *place, "capacity", str(error), until)
        case OutOfCapacity():
            place = (offer.zone, offer.machine_type, offer.market)
            return Shortage(cloud, *place, "capacity", str(error), until)
        case QuotaReached():
            # Of a region, but not of all types: clouds count families apart.
            place = ("", offer.machine_type, offer.market)
            return Shortage(cloud, *place, "quota", str(error), until)
        case SpotRefused():
            return Shortage(cloud, "", "", "spot", "credentials", str(error), until)
        case CredentialsRefused():
            return Shortage(cloud, "", "", "", "credentials", str(error), until)
        case _:
            return None


def shortage_at(connection: Connection, vm: Vm, now: datetime) -> Shortage | None:
    """Return why the place of a machine gives none now; None where it may."""
    known = active_shortages(connection, [vm.cloud], now)
    return next((each for each in known if each.is_refusal and each.covers(vm.offer)), None)


def roles_of(action: Launch) -> tuple[Role, ...]:
    """Return the role of each machine of a launch: servers first, since workers wait for them."""
    roles: tuple[tuple[Role, int], ...] = (("server", action.servers), ("worker", action.workers))
    return tuple(role for role, number in roles for _ in range(number))
