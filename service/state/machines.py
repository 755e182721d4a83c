"""Machines as pages show them."""

from __future__ import annotations

from datetime import datetime

from scavenger.schemas.base import MoneyView
from scavenger.schemas.machines import MachineView
from service.db.machines import ListedMachine
from service.db.vms import Vm


def machine_view(listed: ListedMachine, told: str | None, now: datetime) -> MachineView:
    """Show a machine.

    Args:
        listed: It.
        told: The sentence that told its end; None where there is none.
        now: The moment.
    """
    vm = listed.vm
    silence = None if listed.seen_at is None else (now - listed.seen_at).total_seconds()
    return MachineView(
        id=vm.id,
        job=vm.job,
        project=listed.project,
        role=vm.role,
        state=vm.state,
        cloud=vm.cloud,
        zone=vm.zone,
        machine_type=vm.machine_type,
        market=vm.market,
        price_per_hour=MoneyView(amount=vm.price_per_hour),
        prepaid_until=vm.prepaid_until,
        lease_age=None if silence is None else max(silence, 0.0),
        launched_at=None if vm.attempted_at is None else vm.paid_from,
        gone_at=vm.ended_at,
        why=told or describe_machine(vm, now),
    )


def describe_machine(vm: Vm, now: datetime) -> str:
    """Say what is known of a machine, the gravest first."""
    ended = "" if vm.exit_code is None else f"its command ended with exit code {vm.exit_code}"
    if vm.refusal is not None:
        return f"its cloud never started it: {vm.refusal}"
    match vm.state:
        case "gone":
            return ended or "it is gone"
        case "ending":
            told = f"it was told to end{'' if vm.orders < 2 else f' {vm.orders} times'}"
            return f"{told}; {ended}" if ended else told
        case "intended" if vm.attempted_at is None:
            return "it is about to be asked for"
        case "intended":
            return "its cloud was asked for it and has not confirmed it"
        case "launched":
            return ended or describe_running(vm, now)


def describe_running(vm: Vm, now: datetime) -> str:
    """Say what is known of a machine that was launched and whose command has not ended."""
    if vm.warned_at is not None:
        return "its cloud takes it back, and its worker leaves"
    if vm.missed_at is not None:
        seconds = (now - vm.missed_at).total_seconds()
        return f"its cloud has not shown it for {max(seconds, 0.0):.0f} s"
    return "it runs"
