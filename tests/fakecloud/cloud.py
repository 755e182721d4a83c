"""FakeCloud: launch, list, describe and terminate, as true clouds do them, in one plain object.

It does no I/O and starts no threads: what happens is decided by what it is asked, by the clock and
by the seed. What goes wrong on the way of a request is an exception here, and a broken connection
where a server stands between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import itemgetter
from random import Random
from typing import TypeVar

from tests.fakecloud.bill import Bill, bill
from tests.fakecloud.bucket import Bucket
from tests.fakecloud.clock import Clock
from tests.fakecloud.faults import (
    Duplicate,
    Faults,
    Garbage,
    Ignored,
    Interrupted,
    LateRequest,
    LostRequest,
    LostResponse,
    Omitted,
    OnTheWay,
    Operation,
    Partial,
    Refused,
    Slow,
)
from tests.fakecloud.fleet import Fleet
from tests.fakecloud.hooks import Hooks
from tests.fakecloud.machine import Description, Machine, Reason, Request, Stop
from tests.fakecloud.refusal import ConnectionLost, Gibberish, Refusal
from tests.fakecloud.settings import Settings

T = TypeVar("T")
Do = Callable[[float], T]


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list.

    Attributes:
        after: What to ask for next; None at the end.
    """

    machines: tuple[Description, ...]
    after: int | None


@dataclass(frozen=True, slots=True)
class Truth:
    """What only a test can know of a machine.

    Attributes:
        notice_at: When it will be taken back, as far as it knows itself.
        gone_at: When it ceased to exist; None while it does.
    """

    description: Description
    created_at: float
    notice_at: float | None
    gone_at: float | None


@dataclass(eq=False)
class FakeCloud:
    """One account in one cloud.

    Attributes:
        faults: What is to go wrong, and what did.
        hooks: Called when a machine begins and when its run ends.
    """

    clock: Clock
    settings: Settings = field(default_factory=Settings)
    hooks: Hooks | None = None

    def __post_init__(self) -> None:
        self.faults = Faults(Random(self.settings.seed))
        self._fleet = Fleet(self.settings, dict(self.settings.capacity))
        self._bucket = Bucket(self.settings.requests_per_second, self.settings.burst)
        self._straying: list[tuple[float, Do[object]]] = []
        self._turn = threading.Lock()

    # What a controller may ask; every call may raise ConnectionLost, Gibberish or Refusal.

    def launch(self, token: str, request: Request) -> tuple[Description, ...]:
        """Start machines, or return those this token started."""
        return self.call("launch", token, lambda now: self.launch_at(now, token, request))

    def list(
        self, after: int = 0, labels: Mapping[str, str] | None = None, zone: str | None = None
    ) -> Page:
        """Return a page of the machines that carry these labels, as far as the cloud has heard.

        Without a zone those of all zones are returned, also of zones that are down.
        """
        return self.call("list", None, lambda now: self.list_at(now, after, labels or {}, zone))

    def describe(self, machine: str) -> Description:
        """Return one machine, as far as the cloud has heard."""
        return self.call("describe", machine, lambda now: self.describe_at(now, machine))

    def terminate(self, machine: str) -> None:
        """Order the end of a machine."""
        return self.call("terminate", machine, lambda now: self.terminate_at(now, machine))

    # What only a test may do.

    def machines(self) -> tuple[Truth, ...]:
        """Return every machine there ever was, as it truly is."""
        with self._moment() as now:
            return tuple(
                Truth(
                    description=machine.describe(now),
                    created_at=machine.created_at,
                    notice_at=machine.notice_at(now),
                    gone_at=machine.gone_at if machine.gone_at <= now else None,
                )
                for machine in self._fleet
            )

    def find(self, machine: str) -> Machine:
        """Return a machine that was made, as it truly is."""
        with self._moment():
            return self._fleet.find(machine)

    def bill(self, until: float | None = None) -> Bill:
        """Return what all machines cost up to a moment, now if none is given."""
        with self._moment() as now:
            end = now if until is None else until
            return bill(self._fleet, self.settings.tariffs, end, self.settings.spot)

    def interrupt(
        self, machine: str, notice: float = 0.0, reason: Reason = Reason.INTERRUPTED
    ) -> None:
        """Take a machine back after so many seconds, of which it knows."""
        with self._moment() as now:
            stop = Stop(now + notice, reason, now)
            self._fleet.find(machine).stops.append(stop)

    def power_off(self, machine: str) -> None:
        """Let a machine power itself off."""
        with self._moment() as now:
            self._fleet.find(machine).stops.append(Stop(now, Reason.POWERED_OFF, now))

    def settle(self) -> None:
        """Let all happen that is due by now, and the hooks hear of it."""
        with self._moment():
            pass

    def renew(self, machine: str, lease: float) -> None:
        """Let a machine's agent hear of a lease that begins now."""
        with self._moment() as now:
            self._fleet.renew(now, self._fleet.find(machine), lease)

    def stock(self, place: str, machines: int) -> None:
        """Change how many machines there are at ``type@zone``; those that run stay."""
        with self._turn:
            self._fleet.capacity[place] = machines

    def break_zone(self, zone: str) -> None:
        """Let every call about a zone fail; its machines run on."""
        with self._turn:
            self._fleet.down.add(zone)

    def repair_zone(self, zone: str) -> None:
        """Let calls about a zone succeed again."""
        with self._turn:
            self._fleet.down.discard(zone)

    # What a door in the words of a true cloud is made of.

    def machine_at(self, now: float, token: str, zone: str) -> Machine | None:
        """Return the machine that has this token, if one has."""
        return self._fleet.newest(now, token, zone)

    def require_up(self, zone: str) -> None:
        """Refuse a call about a zone that is down."""
        self._fleet.require_up(zone)

    def call(self, operation: Operation, about: str | None, do: Do[T]) -> T:
        """Do what was asked at this moment, or what happens instead.

        A door passes all that it decides here: a request that strays is decided when it arrives.
        """
        fault: OnTheWay | None = None
        try:
            with self._moment() as now:
                self._admit(now)
                fault = self.faults.on_the_way(operation, about)
                self._stray(now, fault, do)
                answer = self._obey(now, do)
                if isinstance(fault, Duplicate):
                    self._straying.append((now + fault.after, do))
                return answer
        finally:
            self._hold_back(fault)  # a no is lost as a yes is, and no other request waits

    @contextmanager
    def _moment(self) -> Iterator[float]:
        """Have the cloud to oneself, after everything that came before."""
        try:
            with self._turn:
                now = self.clock.now()
                due = [one for one in self._straying if one[0] <= now]
                self._straying = [one for one in self._straying if one[0] > now]
                for at, do in sorted(due, key=itemgetter(0)):
                    with suppress(Refusal):
                        self._obey(at, do)
                try:
                    yield now
                finally:
                    if self.hooks is not None:
                        self.hooks.note(self._fleet, now)
        finally:
            if self.hooks is not None:
                self.hooks.tell()

    def _admit(self, now: float) -> None:
        if not self._bucket.take(now):
            self.faults.count("RequestLimitExceeded")
            raise Refusal("RequestLimitExceeded", "slow down")

    def _stray(self, now: float, fault: OnTheWay | None, do: Do[T]) -> None:
        """Let a request not arrive, or not now."""
        match fault:
            case LostRequest():
                raise ConnectionLost
            case LateRequest(after):
                self._straying.append((now + after, do))
                raise ConnectionLost
            case _:
                pass

    def _obey(self, now: float, do: Do[T]) -> T:
        try:
            return do(now)
        except Refusal as refusal:
            self.faults.count(refusal.code)
            raise

    def _hold_back(self, fault: OnTheWay | None) -> None:
        """Let an answer not arrive, or not now."""
        match fault:
            case LostResponse():
                raise ConnectionLost
            case Garbage():
                raise Gibberish
            case Slow(seconds):
                self.clock.wait(seconds)
            case _:
                pass

    def launch_at(self, now: float, token: str, request: Request) -> tuple[Description, ...]:
        fault = self.faults.in_the_cloud("launch", token)
        _refuse(fault)
        at_most = fault.count if isinstance(fault, Partial) else request.count
        machines = self._fleet.launch(now, token, request, at_most)
        if isinstance(fault, Interrupted):
            told_at = now + fault.after
            stop = Stop(told_at + fault.notice, fault.reason, told_at)
            for machine in machines:
                machine.stops.append(stop)
        return tuple(machine.describe(now) for machine in machines)

    def list_at(self, now: float, after: int, labels: Mapping[str, str], zone: str | None) -> Page:
        fault = self.faults.in_the_cloud("list", None)
        _refuse(fault)
        self._fleet.require_up(zone)
        shown = [
            machine
            for machine in self._fleet
            if machine.number > after
            and zone in (None, machine.request.zone)
            and machine.is_shown(now, self.settings.memory)
            and labels.items() <= machine.request.labels.items()
        ]
        if isinstance(fault, Omitted):
            left_out = fault.machine
            shown = [m for m in shown if left_out is not None and m.id != left_out]
        page = shown[: self.settings.page]
        return Page(
            tuple(machine.describe(now - machine.lag) for machine in page),
            page[-1].number if len(page) < len(shown) else None,
        )

    def describe_at(self, now: float, machine: str) -> Description:
        _refuse(self.faults.in_the_cloud("describe", machine))
        found = self._shown(now, machine)
        return found.describe(now - self._lag_of(found))

    def terminate_at(self, now: float, machine: str) -> None:
        fault = self.faults.in_the_cloud("terminate", machine)
        _refuse(fault)
        found = self._shown(now, machine)
        if not isinstance(fault, Ignored):
            found.stops.append(Stop(now, Reason.ORDERED, now))

    def _lag_of(self, machine: Machine) -> float:
        """Return how old it is what a call about one machine shows."""
        return 0.0 if self.settings.lags_in_lists_only else machine.lag

    def _shown(self, now: float, machine: str) -> Machine:
        found = self._fleet.find(machine)
        # Without lag a machine is shown now as a late list shows it later.
        if not found.is_shown(now + found.lag - self._lag_of(found), self.settings.memory):
            raise Refusal("InvalidInstanceID.NotFound", f"there is no {machine}")
        self._fleet.require_up(found.request.zone)
        return found


def _refuse(fault: object) -> None:
    if isinstance(fault, Refused):
        raise Refusal(fault.code, "as programmed")
