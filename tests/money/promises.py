"""Promises: what must stay true of a job's money and machines, after anything that happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from service import ledger
from service.db.vms import Vm
from tests.fakecloud.google_rules import FROM_WITHIN
from tests.fakecloud.machine import State
from tests.money.world import EXACTLY, FOREVER, World

LATEST_END = timedelta(seconds=60)  # RELIABILITY, P1


def check(world: World) -> None:
    """Hold the rows, read once, against what is true."""
    rows = world.rows()
    the_bill_is_covered(world, rows)
    machines_end_in_time(world, rows)
    machines_are_known_once(world, rows)
    ends_leave_nothing(world)


def the_bill_is_covered(world: World, rows: Sequence[Vm]) -> None:
    """Neither what is billed nor what would be, if all went silent now, is above its bounds."""
    cap, now = world.cap, world.clock.now()
    billed, silent = world.bill(now, rows), world.bill(FOREVER, rows)
    reserved = ledger.committed(rows)
    if cap is not None:
        assert silent <= cap + EXACTLY, f"${silent} will be billed of ${cap}"
        assert reserved <= cap + EXACTLY, f"${reserved} are reserved of ${cap}"
    assert silent <= reserved + EXACTLY, f"${silent} will be billed, ${reserved} are reserved"
    # Between two looks a spot machine is booked at the price seen last; a look makes it exact.
    looked = [
        replace(vm, prices=tuple(world.prices_of(vm, vm.paid_from)))
        if vm.market == "spot" and vm.attempted_at is not None
        else vm
        for vm in rows
    ]
    shown = ledger.accrued(looked, world.clock.moment())
    assert billed <= shown + EXACTLY, f"${billed} were billed, ${shown} are shown"


def machines_end_in_time(world: World, rows: Sequence[Vm]) -> None:
    """No machine runs much longer than it was paid for."""
    ends = world.ends()
    for vm in rows:
        if vm.is_alive and vm.launch_key in ends:
            late = ends[vm.launch_key] - vm.prepaid_until
            assert late <= LATEST_END, f"{vm.id} runs {late} longer than is prepaid"


def ends_leave_nothing(world: World) -> None:
    """No machine is stopped, and billed for its disk, that did not power itself off."""
    for truth in world.machines():
        is_stopped = truth.description.state is State.STOPPED
        assert not is_stopped or truth.description.reason in FROM_WITHIN, "the cloud stopped one"


def machines_are_known_once(world: World, rows: Sequence[Vm]) -> None:
    """Every machine is one that was intended, and none that there is is said to be gone."""
    known = {vm.launch_key: vm for vm in rows}
    tokens = [truth.description.token for truth in world.machines()]
    assert len(tokens) == len(set(tokens)), "two machines at once for one key"
    ever = [world.key_of(truth) for truth in world.cloud.machines()]
    is_once = len(ever) == len(set(ever))
    assert is_once or world.cloud.settings.are_tokens_free_again, "two machines for one key"
    assert set(ever) <= set(known), "a machine that was not intended"
    for truth in world.machines():
        vm = known[world.key_of(truth)]
        assert vm.is_alive, f"{vm.id} is said to be gone and is {truth.description.state}"
