"""census(): what a list of the cloud's tells about one machine that should exist. Pure.

Lists lag: a machine that was just made is missing from them, one that just ended is still in them.
So a machine is gone only when the cloud says so, or when every list has missed it for as long as a
list may lag (RELIABILITY, M5).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import Enum

from service import ledger
from service.clouds.provider import Instance, InstanceState
from service.db.vms import Vm

AGAIN, SELDOM = timedelta(seconds=2), timedelta(minutes=1)
PATIENT = timedelta(seconds=30)
ALARM = 15  # orders to end, about ten minutes of them


class Finding(Enum):
    """What is to be done about one machine now."""

    NOTHING = "as it should be"
    LAUNCH = "never confirmed: launch it, or find what was launched"
    CONFIRM = "the cloud has it"
    MISS = "missing from a list for the first time"
    SEE = "back in the list"
    END = "its end was ordered a while ago, or its prepaid time is over, and it still runs"
    BURY = "gone"


def census(
    vm: Vm,
    instance: Instance | None,
    now: datetime,
    lag: timedelta,
    boot: timedelta,
    *,
    is_final: bool,
) -> Finding:
    """Return what is to be done about a machine that is not known to be gone.

    Nothing may have been asked of the cloud for a machine that is missing since the list was.

    Args:
        vm: The machine, as last written down.
        instance: What the newest list shows under its launch key; None when it shows nothing.
        now: Just before the cloud was asked for the list.
        lag: How long a list may lag behind.
        boot: After how long a machine that was asked for is there, or never will be.
        is_final: Whether its job has ended, or is to: nothing is launched for it any more.
    """
    if instance is None:
        return missing(vm, now, lag, boot, is_final=is_final)
    if instance.state is InstanceState.GONE:
        return Finding.BURY
    if vm.provider_id is None:
        return Finding.CONFIRM
    if is_overdue(vm, now):
        return Finding.END
    return Finding.NOTHING if vm.missed_at is None else Finding.SEE


def missing(vm: Vm, now: datetime, lag: timedelta, boot: timedelta, *, is_final: bool) -> Finding:
    """Return what to do about a machine that a list does not show.

    That counts from when it should have: lists before tell nothing of one that may yet come.
    """
    if vm.state == "intended" and not is_final:
        return Finding.LAUNCH if is_due(vm, now) else Finding.NOTHING
    if vm.attempted_at is None:
        return Finding.BURY  # nobody ever asked for it
    should_be = vm.attempted_at + (boot if vm.provider_id is None else timedelta(0))
    if now < should_be:
        return Finding.NOTHING
    is_first = vm.missed_at is None or vm.missed_at < should_be
    since = now if vm.missed_at is None or is_first else vm.missed_at
    if now - since >= lag:
        return Finding.BURY
    return Finding.MISS if is_first else Finding.NOTHING


def is_due(vm: Vm, now: datetime) -> bool:
    """Whether to ask for a machine again: after as long as it was asked for already."""
    if vm.attempted_at is None:
        return True
    return now - vm.attempted_at >= min(max(vm.attempted_at - vm.paid_from, AGAIN), PATIENT)


def is_overdue(vm: Vm, now: datetime) -> bool:
    """Whether a machine that the cloud shows should be told, once more, to end."""
    if vm.ordered_at is None:
        return now > vm.prepaid_until + ledger.GRACE
    pause: timedelta = min(AGAIN * 2 ** min(vm.orders - 1, 10), SELDOM)
    return now - vm.ordered_at >= pause
