"""Compare one expected machine with the cloud's list, and say why a machine is gone. Pure.

Lists lag: a new machine is missing from them, one that has just ended is still in them. A machine
is gone only when the cloud says so, or when every list has missed it for as long as a list may lag.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum, StrEnum

from service import ledger
from service.clouds.provider import Instance, InstanceState
from service.db.vms import Vm

FIRST_RETRY, MAX_RETRY = timedelta(seconds=2), timedelta(minutes=1)
MAX_LAUNCH_RETRY = timedelta(seconds=30)
ALARM_ORDERS = 15  # orders to end, about ten minutes of them
# A machine that lists prove to run beyond its paid time is booked up to then, less this: it stays
# visible for the alert that it runs beyond it.
PAID_LATE = timedelta(seconds=70)


class VmChange(Enum):
    """What is to be done about one machine now."""

    NONE = "as it should be"
    RETRY_LAUNCH = "never confirmed: launch it, or find what was launched"
    CONFIRM_LAUNCH = "the cloud has it"
    MARK_MISSING = "missing from a list for the first time"
    MARK_LISTED = "back in the list"
    END_STOPPED = "it stopped by itself, and its disk is billed until it is ended"
    RETRY_END = "its end was ordered a while ago, or its prepaid time is over, and it still runs"
    MARK_GONE = "gone"
    MARK_REFUSED = "never started: the cloud certainly refused each ask"


def diff_machine(
    vm: Vm,
    instance: Instance | None,
    now: datetime,
    lag: timedelta,
    boot: timedelta,
    *,
    is_job_over: bool,
) -> VmChange:
    """Return what is to be done about a machine that is not known to be gone.

    Call it for a missing machine only if its launch was not tried again since the list was
    requested.

    Args:
        vm: The machine, as last written down.
        instance: What the newest list shows under its launch key; None when it shows nothing.
        now: Just before the cloud was asked for the list.
        lag: How long a list may lag behind.
        boot: After how long a machine that was asked for is there, or never will be.
        is_job_over: Whether its job has ended, or is to: nothing is launched for it any more.
    """
    if instance is None:
        return diff_unlisted(vm, now, lag, boot, is_job_over=is_job_over)
    if instance.state is InstanceState.GONE:
        return VmChange.MARK_GONE
    # The answer to its launch was lost, as when the controller was killed before it stored it. Or
    # a late ask made another one, where a name is free again: that is the one to be ended.
    is_another = instance.provider_id != vm.provider_id and instance.zone in ("", vm.zone)
    if vm.provider_id is None or is_another:
        return VmChange.CONFIRM_LAUNCH
    if instance.state is InstanceState.STOPPED and vm.ordered_at is None:
        return VmChange.END_STOPPED
    if is_end_due(vm, now):
        return VmChange.RETRY_END
    return VmChange.NONE if vm.missed_at is None else VmChange.MARK_LISTED


def diff_unlisted(
    vm: Vm, now: datetime, lag: timedelta, boot: timedelta, *, is_job_over: bool
) -> VmChange:
    """Return what to do about a machine that a list does not show.

    That counts from when it should have: lists before tell nothing of one that may yet come.
    """
    if vm.state == "intended" and not is_job_over:
        return VmChange.RETRY_LAUNCH if now >= launch_retry_at(vm) else VmChange.NONE
    if vm.attempted_at is None:
        return VmChange.MARK_GONE  # the cloud was never asked for it
    if vm.provider_id is None and vm.open_asks == 0:
        return VmChange.MARK_REFUSED  # each ask was certainly answered with a no
    # Where a name is free again, an ask that is still on its way may make a second machine.
    may_come = vm.provider_id is None or vm.open_asks > 1
    should_be = vm.attempted_at + (boot if may_come else timedelta(0))
    if now < should_be:
        is_news = vm.provider_id is not None and vm.missed_at is None
        return VmChange.MARK_MISSING if is_news else VmChange.NONE
    is_first = vm.missed_at is None or vm.missed_at < should_be
    since = now if vm.missed_at is None or is_first else vm.missed_at
    if now - since >= lag:
        return VmChange.MARK_GONE
    return VmChange.MARK_MISSING if is_first else VmChange.NONE


def launch_retry_at(vm: Vm) -> datetime:
    """Return when to ask for a machine again.

    The delay is the time from the first request to the newest, at least 2 s and at most 30 s.
    """
    if vm.attempted_at is None:
        return vm.intended_at
    return vm.attempted_at + min(max(vm.attempted_at - vm.paid_from, FIRST_RETRY), MAX_LAUNCH_RETRY)


def is_end_due(vm: Vm, now: datetime) -> bool:
    """Whether a machine that the cloud shows should be told, once more, to end."""
    due = termination_retry_at(vm)
    return now > due if vm.ordered_at is None else now >= due


def termination_retry_at(vm: Vm) -> datetime:
    """Return when a machine should be gone, or is told again to end."""
    if vm.ordered_at is None:
        return vm.prepaid_until + ledger.POWER_OFF_GRACE
    pause: timedelta = min(FIRST_RETRY * 2 ** min(vm.orders - 1, 10), MAX_RETRY)
    return vm.ordered_at + pause


def proven_overrun(
    vm: Vm, instance: Instance | None, now: datetime, lag: timedelta
) -> datetime | None:
    """Return until when a list proves that a machine outlived its paid time; None if it did not.

    Call it for a machine whose end is to be told once more. One that stopped by itself is listed
    until it is ended, and has kept to its time.

    Args:
        vm: The machine, as last written down.
        instance: What the newest list shows of it; None when it shows nothing.
        now: Just before the cloud was asked for the list.
        lag: How long a list may lag behind.
    """
    if instance is None or instance.state not in (InstanceState.PENDING, InstanceState.RUNNING):
        return None
    proven = now - lag - PAID_LATE
    return proven if proven > vm.prepaid_until + ledger.POWER_OFF_GRACE else None


def is_overdue(vm: Vm, now: datetime, boot: timedelta) -> bool:
    """Whether the cloud is to be asked again for a machine, or about it, as soon as a list allows.

    A list that was requested before that moment does not allow it yet.
    """
    if not vm.is_alive:
        return False
    asked = vm.attempted_at or vm.intended_at
    moments = [termination_retry_at(vm)]
    if vm.provider_id is None:
        moments.append(asked + boot)
    if vm.state == "intended":
        moments.append(launch_retry_at(vm))
    return min(moments) <= now


class TerminationReason(StrEnum):
    """Why a machine is gone, in words."""

    NEVER_ASKED = "the cloud had not been asked for it yet"
    NEVER_SEEN = "the cloud never showed it"
    TOLD = "it was told to end"
    RECLAIMED = "the cloud took it back, as it had said"
    DONE = "its command had ended"
    PAID = "its paid time was over"
    TAKEN = "it was not told to end: the cloud took it back, or it broke"


def termination_reason(vm: Vm, now: datetime) -> TerminationReason:
    """Return why a machine that was there is gone.

    Args:
        vm: The machine, as last written down.
        now: When it was found gone.
    """
    if vm.attempted_at is None:
        return TerminationReason.NEVER_ASKED
    if vm.ordered_at is not None:  # without the cloud's number of it, nothing was told to end
        is_known = vm.provider_id is not None
        return TerminationReason.TOLD if is_known else TerminationReason.NEVER_SEEN
    if vm.warned_at is not None:
        return TerminationReason.RECLAIMED
    if vm.exit_code is not None:
        return TerminationReason.DONE
    if now >= vm.prepaid_until:
        return TerminationReason.PAID
    return TerminationReason.NEVER_SEEN if vm.provider_id is None else TerminationReason.TAKEN
