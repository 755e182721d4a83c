"""Schemas of machines: those of jobs, and those that a collection found without one."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from scavenger.schemas.base import MoneyView, View
from scavenger.schemas.prices import PriceMarket


class OrphanView(View):
    """A machine in the cloud that no running job accounts for, or that needs an explanation.

    Attributes:
        machine: The cloud's name of the machine.
        fate: ``end``, ``wait`` for a second sweep, ``hold`` until a user confirms, ``keep`` a
            machine that works for a job, ``spare`` one that is not provably of this installation.
        reason: Why it is orphaned, or why it is spared.
        since: Since when every sweep found it orphaned; None where it is not.
    """

    machine: str
    launch_key: str
    job: str
    fate: str
    reason: str
    since: datetime | None


class SweepView(View):
    """One sweep for orphaned machines.

    Attributes:
        cloud: Name of the entry in the clouds file.
        shown: Machines of this installation that the cloud listed as alive.
        ended: Machines whose termination the cloud accepted.
        tripped: Why machines are held back, in one sentence; None where none are.
        confirmed_at: When a user confirmed that the machines held back are terminated.
    """

    number: int
    cloud: str
    at: datetime
    shown: int
    suspects: list[OrphanView]
    ended: int
    tripped: str | None
    confirmed_at: datetime | None


class SweepList(View):
    """One page of sweeps, newest first."""

    sweeps: list[SweepView]
    next_cursor: str | None = None


MachineState = Literal["intended", "launched", "ending", "gone"]


class MachineView(View):
    """One machine of a job.

    Attributes:
        role: ``worker`` or ``server``.
        state: ``intended`` until its cloud confirmed it, ``launched``, ``ending`` once its end was
            ordered, and ``gone``.
        cloud: Name of the entry in the clouds file.
        price_per_hour: The most it costs; a spot machine is reserved at its price on demand.
        prepaid_until: It powers itself off at that moment unless its lease is renewed.
        lease_age: Seconds since its worker was last heard; None before the first time.
        launched_at: When its cloud was first asked for it; None before.
        gone_at: When it was gone; None while it may exist.
        why: What is known of it, in one sentence.
    """

    id: str
    job: str
    project: str
    role: Literal["worker", "server"]
    state: MachineState
    cloud: str
    zone: str
    machine_type: str
    market: PriceMarket
    price_per_hour: MoneyView
    prepaid_until: datetime
    lease_age: float | None
    launched_at: datetime | None
    gone_at: datetime | None
    why: str


class MachineList(View):
    """One page of machines, newest first."""

    machines: list[MachineView]
    next_cursor: str | None = None
