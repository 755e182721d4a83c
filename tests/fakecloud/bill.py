"""Bill: what machines cost, computed from their own lives; nothing a controller believes is in it.

Clouds differ in whether booting and ending are paid. Here both are, so a ledger that covers this
bill covers theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction

from tests.fakecloud.machine import Machine
from tests.fakecloud.spot import SpotPrices


@dataclass(frozen=True, slots=True)
class Tariff:
    """What one type of machine costs.

    Attributes:
        price_per_hour: Dollars per hour.
        quantum: Seconds that are billed at once; 0 bills exactly.
        minimum: Seconds that are billed at least.
        disk_per_hour: Dollars per hour of its disk, which a stopped machine keeps.
        address_per_hour: Dollars per hour of a public address.
    """

    price_per_hour: float
    quantum: float = 0.0
    minimum: float = 0.0
    disk_per_hour: float = 0.0
    address_per_hour: float = 0.0

    def billed(self, life: float) -> Fraction:
        """Return the seconds that are paid for a life of so many."""
        seconds = max(Fraction(life), Fraction(self.minimum))
        if not self.quantum:
            return seconds
        return math.ceil(seconds / Fraction(self.quantum)) * Fraction(self.quantum)

    def dollars(self, life: float) -> Fraction:
        """Return what a life of so many seconds costs, exactly.

        >>> float(Tariff(6.0, quantum=60).dollars(61))
        0.2
        """
        return _exact(self.price_per_hour) * self.billed(life) / 3600

    def disk_dollars(self, life: float) -> Fraction:
        """Return what the disk of a machine costs that exists for so many seconds, exactly."""
        return _exact(self.disk_per_hour) * Fraction(life) / 3600


@dataclass(frozen=True, slots=True)
class Line:
    """What one machine cost.

    Attributes:
        life: Seconds it existed, up to the moment of the bill.
        stopped_dollars: Part of the dollars that its disk cost once its run had ended.
    """

    machine: str
    token: str
    labels: Mapping[str, str]
    life: float
    dollars: float
    stopped_dollars: float = 0.0


@dataclass(frozen=True, slots=True)
class Bill:
    """What all machines cost up to a moment, one line each, in the order of their launch."""

    until: float
    lines: tuple[Line, ...]

    @property
    def total(self) -> float:
        """Dollars of all lines."""
        return math.fsum(line.dollars for line in self.lines)

    def of(self, **labels: str) -> float:
        """Dollars of the machines that carry these labels."""
        return math.fsum(
            line.dollars for line in self.lines if labels.items() <= line.labels.items()
        )


def bill(
    machines: Iterable[Machine],
    tariffs: Mapping[str, Tariff],
    until: float,
    spot: SpotPrices,
) -> Bill:
    """Return what machines cost up to a moment; time that has begun to be billed counts."""
    return Bill(
        until,
        tuple(
            _line(machine, tariffs[machine.request.machine_type], until, spot)
            for machine in machines
            if machine.created_at < until
        ),
    )


def _line(machine: Machine, tariff: Tariff, until: float, spot: SpotPrices) -> Line:
    # Whole microseconds: a sum of floats may make an hour a trifle longer, and so two.
    life = round(min(until, machine.gone_at) - machine.created_at, 6)
    run = round(min(until, machine.halted_at) - machine.created_at, 6)
    request, seconds = machine.request, tariff.billed(run)
    # A minimum that outlasts the life is billed at the prices of the time it covers.
    full = (
        spot.seconds(request.place, machine.created_at, seconds)
        if request.market == "spot"
        else seconds
    )
    dollars = tariff.disk_dollars(life) + _exact(tariff.price_per_hour) * full / 3600
    if request.has_public_address:
        dollars += _exact(tariff.address_per_hour) * seconds / 3600
    return Line(
        machine=machine.id,
        token=machine.token,
        labels=machine.request.labels,
        life=life,
        dollars=float(dollars),
        stopped_dollars=float(tariff.disk_dollars(life - run)),
    )


def _exact(dollars: float) -> Fraction:
    """Return what was written, without what its floating-point number adds."""
    return Fraction(repr(dollars))
