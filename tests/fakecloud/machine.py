"""Machine: one machine of a fake cloud, from which its state at any moment follows.

Nothing happens to it between two looks: every moment of its life is a number that is known, or an
order that was noted. So it can be seen as it was some seconds ago, which is how clouds show it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal

LABEL = re.compile(r"[A-Za-z0-9._-]{1,63}")
PREPAID = "SCAVENGER_PREPAID"
EXPORT = re.compile(r"^export (\w+)='(.*)'$", re.MULTILINE)

Market = Literal["on_demand", "spot"]


class State(StrEnum):
    """Where a machine is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"
    STOPPED = "stopped"
    GONE = "gone"


class Reason(StrEnum):
    """Who ended a machine."""

    ORDERED = "ordered"
    PREPAID = "prepaid"
    LONGEST_RUN = "longest run"
    INTERRUPTED = "interrupted"
    POWERED_OFF = "powered off"
    SOLD_OUT = "sold out"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Request:
    """What machines are asked for; a repeated token must come with the same request.

    Attributes:
        command: What the machine runs.
        environment: Its variables; the agent on it reads its prepaid seconds there.
        labels: Written onto the machine as it is made.
        longest_run: Seconds of running after which the cloud ends it; None for never.
        count: Machines wanted; fewer may come.
        stopped_by: Ends of a run that leave the machine STOPPED: its disk is billed until its end
            is ordered.
    """

    machine_type: str
    zone: str
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    longest_run: float | None = None
    count: int = 1
    stopped_by: frozenset[Reason] = frozenset()
    market: Market = "on_demand"
    has_public_address: bool = False

    @property
    def place(self) -> str:
        """The name under which such machines are counted; each market has machines of its own.

        >>> Request("small", "a", market="spot").place
        'small@a+spot'
        """
        return f"{self.machine_type}@{self.zone}" + ("+spot" if self.market == "spot" else "")

    @property
    def flaw(self) -> str | None:
        """What makes it impossible for ever; None when nothing does."""
        if self.count < 1:
            return f"count is {self.count}"
        if self.longest_run is not None and not self.longest_run > 0:
            return f"longest_run is {self.longest_run}"
        texts = (text for pair in self.labels.items() for text in pair)
        wrong = [text for text in texts if not LABEL.fullmatch(text)]
        return f"no label: {wrong[0]!r}" if wrong else None


@dataclass(frozen=True, slots=True)
class Stop:
    """An end that was decided.

    Attributes:
        at: When the run ends.
        told_at: From when on the machine knows of it.
    """

    at: float
    reason: Reason
    told_at: float


@dataclass(frozen=True, slots=True)
class Description:
    """What the cloud shows of a machine.

    Attributes:
        address: Where it is reached; machines that are gone leave theirs to new ones.
        reason: Who ended it; None while it is not ended.
    """

    id: str
    token: str
    machine_type: str
    zone: str
    state: State
    address: str
    labels: Mapping[str, str]
    price_per_hour: float
    reason: Reason | None


@dataclass(slots=True, eq=False)
class Machine:
    """The truth about one machine.

    Attributes:
        number: Its place among all machines ever made.
        boot: Seconds until it runs.
        ending: Seconds its end takes.
        lag: How old what is shown of it is, in seconds.
        prepaid_until: When its agent powers it off; infinite where none does.
        stops: Ends that were decided otherwise; the first counts, so one too late changes nothing.
    """

    number: int
    token: str
    request: Request
    address: str
    price_per_hour: float
    created_at: float
    boot: float
    ending: float
    lag: float
    prepaid_until: float
    stops: list[Stop] = field(default_factory=list)

    @property
    def id(self) -> str:
        """The cloud's name for it, never used again."""
        return f"i-{self.number:08x}"

    @property
    def runs_at(self) -> float:
        """When it has booted, unless it was ended before."""
        return self.created_at + self.boot

    @property
    def stop(self) -> Stop:
        """The first end of its run."""
        return min(self._ends, key=lambda stop: stop.at)

    @property
    def ends_at(self) -> float:
        """When its run ends, as far as is decided."""
        return self.stop.at

    @property
    def halted_at(self) -> float:
        """When its run has ended, whether it is gone or stopped then."""
        return min(self.ends_at + self.ending, self.gone_at)

    @property
    def gone_at(self) -> float:
        """When it no longer exists."""
        return self._deleted_at + self.ending

    @property
    def _deleted_at(self) -> float:
        """When the end begins after which it does not exist, as far as is decided."""
        stopped_by = self.request.stopped_by
        last = (stop.at for stop in self._ends if stop.reason not in stopped_by)
        return min(last, default=math.inf)

    @property
    def _ends(self) -> tuple[Stop, ...]:
        return (Stop(self.prepaid_until, Reason.PREPAID, self.created_at), *self.stops)

    def state_at(self, moment: float) -> State:
        """Return where in its life it is."""
        if moment >= self.gone_at:
            return State.GONE
        if moment >= self._deleted_at:
            return State.ENDING
        if moment >= self.halted_at:
            return State.STOPPED
        if moment >= self.ends_at:
            return State.ENDING
        return State.RUNNING if moment >= self.runs_at else State.PENDING

    def notice_at(self, moment: float) -> float | None:
        """Return when it will be taken back, if it knows."""
        known = [
            stop.at
            for stop in self.stops
            if stop.reason is Reason.INTERRUPTED and stop.told_at <= moment < stop.at
        ]
        return min(known, default=None)

    def is_shown(self, now: float, memory: float) -> bool:
        """Whether the cloud shows it, having heard of it and not forgotten it."""
        seen = now - self.lag
        return self.created_at <= seen < self.gone_at + memory

    def describe(self, moment: float) -> Description:
        """Return it as it was at a moment."""
        state = self.state_at(moment)
        has_ended = state not in (State.PENDING, State.RUNNING)
        return Description(
            id=self.id,
            token=self.token,
            machine_type=self.request.machine_type,
            zone=self.request.zone,
            state=state,
            address=self.address,
            labels=self.request.labels,
            price_per_hour=self.price_per_hour,
            reason=self.stop.reason if has_ended else None,
        )


def prepaid_of(request: Request) -> float:
    """Return the seconds of running after which the agent powers a machine off."""
    return float(request.environment.get(PREPAID, math.inf))


def exports_of(script: str) -> dict[str, str]:
    """Return what the script of a new machine exports, the time that is paid for among it."""
    return dict(EXPORT.findall(script))
