"""Fleet: every machine a fake cloud ever made, as it truly is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random

from tests.fakecloud.machine import Machine, Reason, Request, State, Stop, prepaid_of
from tests.fakecloud.refusal import Refusal
from tests.fakecloud.settings import Settings


@dataclass(slots=True)
class Fleet:
    """Makes machines, ends them, and never has two for one token at once.

    Attributes:
        capacity: Machines there are at once, by ``type@zone``.
        down: Zones about which no call succeeds; their machines run on.
    """

    settings: Settings
    capacity: dict[str, int]
    down: set[str] = field(default_factory=set)
    _machines: dict[str, Machine] = field(default_factory=dict)
    _alive: list[Machine] = field(default_factory=list)
    _launched: dict[str, tuple[Machine, ...]] = field(default_factory=dict)
    _addresses: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Machine]:
        """Every machine there ever was, oldest first."""
        return iter(tuple(self._machines.values()))

    def launch(self, now: float, token: str, request: Request, at_most: int) -> tuple[Machine, ...]:
        """Make machines, or return those this token made; fewer than asked where room is short."""
        self.require_up(request.zone)
        key = self._key(token, request.zone)
        made = self._launched.get(key)
        if made is not None and not (self.settings.are_tokens_free_again and _are_gone(now, made)):
            return _again(now, made, request)
        self._bury(now)
        count = min(request.count, at_most, self._room(request))
        machines = tuple(self._make(now, token, request) for _ in range(count))
        self._launched[key] = machines
        return machines

    def find(self, machine_id: str) -> Machine:
        """Return a machine that once was made."""
        if machine_id not in self._machines:
            raise Refusal("InvalidInstanceID.NotFound", f"there is no {machine_id}")
        return self._machines[machine_id]

    def newest(self, now: float, token: str, zone: str) -> Machine | None:
        """Return the machine that this token made and that still exists."""
        made = self._launched.get(self._key(token, zone), ())
        return next((machine for machine in made if machine.state_at(now) is not State.GONE), None)

    def require_up(self, zone: str | None) -> None:
        """Refuse a call about a zone that is down."""
        if zone in self.down:
            raise Refusal("Unavailable", f"zone {zone} does not answer")

    def renew(self, now: float, machine: Machine, lease: float) -> None:
        """Let a machine's agent begin a new lease, as the agent does when it hears of one."""
        if machine.state_at(now) is not State.RUNNING:
            raise Refusal("IncorrectInstanceState", f"{machine.id} does not run")
        machine.prepaid_until = now + lease

    def _key(self, token: str, zone: str) -> str:
        return f"{token}@{zone}" if self.settings.has_zonal_tokens else token

    def _room(self, request: Request) -> int:
        """Return how many machines may come now."""
        kind, zone = request.machine_type, request.zone
        if kind not in self.settings.tariffs:
            raise Refusal("InvalidParameterValue", f"there is no machine type {kind}")
        if request.flaw is not None:
            raise Refusal("InvalidParameterValue", request.flaw)
        quota = self.settings.quota
        if quota is not None and len(self._alive) + request.count > quota:
            raise Refusal("InstanceLimitExceeded", f"the quota is {quota} machines")
        self._require_quota(request)
        capacity = self.capacity.get(request.place)
        if capacity is None:
            return request.count
        taken = sum(machine.request.place == request.place for machine in self._alive)
        if taken >= capacity:
            raise Refusal("InsufficientInstanceCapacity", f"no more {kind} in {zone}")
        return capacity - taken

    def _require_quota(self, request: Request) -> None:
        """Refuse machines beyond what the account may have of their market."""
        quota = self.settings.quotas.get(request.market)
        held = sum(machine.request.market == request.market for machine in self._alive)
        if quota is not None and held + request.count > quota:
            is_spot = request.market == "spot"
            code = "MaxSpotInstanceCountExceeded" if is_spot else "VcpuLimitExceeded"
            raise Refusal(code, f"the quota of {request.market} is {quota} machines")

    def _make(self, now: float, token: str, request: Request) -> Machine:
        number, settings = len(self._machines) + 1, self.settings
        random = Random(f"{settings.seed} {number}")  # of its own: what others do changes nothing
        machine = Machine(
            number=number,
            token=token,
            request=replace(request, labels=dict(request.labels)),
            address=self._addresses.pop() if self._addresses else _address(number),
            price_per_hour=settings.tariffs[request.machine_type].price_per_hour,
            created_at=now,
            boot=settings.boot,
            ending=settings.ending,
            lag=random.uniform(0, settings.list_lag),
            prepaid_until=now + settings.boot + prepaid_of(request),
        )
        if request.longest_run is not None:
            late = random.uniform(0, settings.lateness)
            end = machine.runs_at + request.longest_run + late
            machine.stops.append(Stop(end, Reason.LONGEST_RUN, end))
        self._machines[machine.id] = machine
        self._alive.append(machine)
        return machine

    def _bury(self, now: float) -> None:
        """Take from machines that run no more what new ones may have, the last address first."""
        gone = [machine for machine in self._alive if machine.halted_at <= now]
        if gone:
            gone.sort(key=lambda machine: machine.halted_at)
            self._addresses += [machine.address for machine in gone]
            self._alive = [machine for machine in self._alive if machine.halted_at > now]


def _again(now: float, made: tuple[Machine, ...], request: Request) -> tuple[Machine, ...]:
    if all(machine.state_at(now) not in (State.PENDING, State.RUNNING) for machine in made):
        token = made[0].token
        raise Refusal("IdempotentInstanceTerminated", f"what {token} started has been ended")
    if made[0].request != request:
        raise Refusal("IdempotentParameterMismatch", f"{made[0].token} was asked otherwise")
    return made


def _are_gone(now: float, made: tuple[Machine, ...]) -> bool:
    return all(machine.state_at(now) is State.GONE for machine in made)


def _address(number: int) -> str:
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
