"""Farewell: why a machine is gone, as far as anybody knows. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from service.db.vms import Vm


class Farewell(StrEnum):
    """Why a machine is gone, in words."""

    NEVER_ASKED = "nobody had asked the cloud for it yet"
    NEVER_SEEN = "the cloud never showed it"
    TOLD = "it was told to end"
    DONE = "its command had ended"
    PAID = "its paid time was over"
    TAKEN = "nobody told it to end: the cloud took it back, or it broke"


def farewell(vm: Vm, now: datetime) -> Farewell:
    """Return why a machine that was there is gone.

    Args:
        vm: The machine, as last written down.
        now: When it was found gone.
    """
    if vm.attempted_at is None:
        return Farewell.NEVER_ASKED
    if vm.ordered_at is not None:
        return Farewell.TOLD
    if vm.exit_code is not None:
        return Farewell.DONE
    if now >= vm.prepaid_until:
        return Farewell.PAID
    return Farewell.NEVER_SEEN if vm.provider_id is None else Farewell.TAKEN
