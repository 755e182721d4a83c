"""The plane that a picture of a curve is drawn on: axes, places, outlines of marks, SVG elements.

What is drawn on it, and what that means, is said by ``scavenger.drawing``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self
from xml.etree.ElementTree import Element, SubElement

from scavenger.job.fields import format_duration
from scavenger.money import format_dollars
from scavenger.schemas.curves import CurveView, PointView

WIDTH, HEIGHT = 800.0, 520.0
LEFT, TOP, RIGHT, BOTTOM = 74.0, 62.0, 64.0, 112.0  # margins around the plane
LETTER, LINE = 6.1, 13.0  # of a word of 11 pixels, as most fonts have it
# Points this far beyond the feasible ones, in widths of these, are not drawn.
OVERSHOOT, PADDING = 0.3, 0.06


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis: which values it shows, and at which pixels its ends are."""

    low: float
    high: float
    first: float
    last: float

    @classmethod
    def of(cls, wanted: Iterable[float], known: Iterable[float], first: float, last: float) -> Self:
        """Return the axis of values that must be seen, and of others that lie just beyond."""
        seen = list(wanted)
        low, high = min(seen), max(seen)
        far = high + OVERSHOOT * (high - low)
        high = max([high, *(value for value in known if value <= far)])
        margin = PADDING * (high - low) or 0.1 * abs(high) or 1.0
        return cls(max(low - margin, 0.0) if low >= 0 else low - margin, high + margin, first, last)

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (value - self.low) / (self.high - self.low)
        # What lies far outside is cut off, and its pixel has to remain a small number.
        return round(self.first + min(max(share, -9.0), 9.0) * (self.last - self.first), 2)

    def holds(self, value: float) -> bool:
        """Tell whether a value lies on the axis."""
        return self.low <= value <= self.high

    def ticks(self, divisor: float = 1.0) -> list[float]:
        """Return about five round values, in units of the divisor, as values of the axis."""
        step = (self.high - self.low) / divisor / 5
        power = 10.0 ** math.floor(math.log10(step))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= step)
        first = math.ceil(self.low / divisor / step)
        count = math.floor(self.high / divisor / step) - first + 1
        return [(first + number) * step * divisor for number in range(max(count, 0))]


@dataclass(frozen=True, slots=True)
class Plane:
    """Where a picture puts times and costs.

    Attributes:
        time: From left to right.
        cost: From bottom to top.
        basis: In what the curve counts.
    """

    time: Axis
    cost: Axis
    basis: str

    @classmethod
    def around(cls, curve: CurveView) -> Self:
        """Return the plane of the feasible points, or of all where none is feasible."""
        points = curve.points
        feasible = [point for point in points if not point.violations] or points
        front = [point for point in points if point.on_front]
        times = [p.time for p in feasible] + [t for p in front for t in (p.time_low, p.time_high)]
        costs = [float(p.cost) for p in feasible]
        costs += [float(cost) for p in front for cost in (p.cost_low, p.cost_high)]
        return cls(
            Axis.of(times, [p.time for p in points], LEFT, WIDTH - RIGHT),
            Axis.of(costs, [float(p.cost) for p in points], HEIGHT - BOTTOM, TOP),
            curve.basis,
        )

    def place(self, point: PointView) -> tuple[float, float]:
        """Return the pixels of a point."""
        return self.time.at(point.time), self.cost.at(float(point.cost))

    def holds(self, point: PointView) -> bool:
        """Tell whether a point is drawn."""
        return self.time.holds(point.time) and self.cost.holds(float(point.cost))

    def write_time(self, seconds: float) -> str:
        """Write a time of the curve."""
        return f"×{seconds:.3g}" if self.basis == "relative" else format_duration(seconds)

    def write_cost(self, amount: float) -> str:
        """Write a cost of the curve."""
        return f"×{amount:.3g}" if self.basis == "relative" else format_dollars(amount)


def steps_through(corners: Sequence[tuple[float, float]], plane: Plane) -> list[str]:
    """Return the pixels of the steps that go down from each corner to the next cheaper one."""
    best: list[tuple[float, float]] = []
    for time, cost in sorted(corners):
        if not best or cost < best[-1][1]:
            best.append((time, cost))
    if not best:
        return []
    places = [(plane.time.at(time), plane.cost.at(cost)) for time, cost in best]
    found: list[tuple[float, float]] = []
    for (x, y), (_, before) in zip(places, [places[0], *places], strict=False):
        found += [(x, before), (x, y)]
    return [f"{x:g},{y:g}" for x, y in found]


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle that nothing else should cover."""

    left: float
    top: float
    width: float
    height: float

    def overlaps(self, other: Box) -> bool:
        """Tell whether two rectangles have a pixel in common."""
        is_beside = self.left + self.width < other.left or other.left + other.width < self.left
        is_above = self.top + self.height < other.top or other.top + other.height < self.top
        return not (is_beside or is_above)


def find_room(places: Iterable[Box], taken: Sequence[Box]) -> Box | None:
    """Return the first place within the plane that covers nothing; None if each does."""
    inside = (box for box in places if is_within_plane(box))
    return next((box for box in inside if not any(map(box.overlaps, taken))), None)


def places_around(x: float, y: float, width: float, height: float) -> Iterator[Box]:
    """Yield places for a label, above and right first: a front leaves that side empty."""
    for away in (14.0, 34.0, 60.0):
        for left in (x + away, x - width - away, x - width / 2):
            for top in (y - height - away, y + away):
                yield Box(left, top, width, height)


def is_within_plane(box: Box) -> bool:
    """Tell whether a label lies within the plane."""
    is_between = box.left >= LEFT and box.left + box.width <= WIDTH
    return is_between and box.top >= TOP and box.top + box.height <= HEIGHT - BOTTOM


def circle(x: float, y: float, size: float) -> str:
    """Return the path of a circle."""
    r = 4.6 * size
    half = f"a{r:.2f},{r:.2f} 0 1 0"
    return f"M{x - r:.2f},{y:.2f} {half} {2 * r:.2f},0 {half} {-2 * r:.2f},0Z"


def diamond(x: float, y: float, size: float) -> str:
    """Return the path of a square on its corner."""
    return polygon(x, y, [(0, -6 * size), (6 * size, 0), (0, 6 * size), (-6 * size, 0)])


def cross(x: float, y: float, size: float) -> str:
    """Return the path of a diagonal cross."""
    r = 4 * size
    left, right, top, low = (f"{at:.2f}" for at in (x - r, x + r, y - r, y + r))
    return f"M{left},{top} L{right},{low} M{right},{top} L{left},{low}"


def frame(x: float, y: float, size: float) -> str:
    """Return the path of a square around another shape."""
    r = 10 * size
    return polygon(x, y, [(-r, -r), (r, -r), (r, r), (-r, r)])


def star(x: float, y: float, size: float) -> str:
    """Return the path of a star with five points, larger than the shape upon it."""
    corners = []
    for number in range(10):
        radius, angle = (10.5 if number % 2 == 0 else 4.8) * size, math.pi * (number / 5 - 0.5)
        corners.append((radius * math.cos(angle), radius * math.sin(angle)))
    return polygon(x, y, corners)


def polygon(x: float, y: float, corners: Sequence[tuple[float, float]]) -> str:
    """Return the path of a polygon around a point."""
    return f"M{' L'.join(f'{x + dx:.2f},{y + dy:.2f}' for dx, dy in corners)}Z"


SHAPES: dict[str, Callable[[float, float, float], str]] = {
    "measured": circle,
    "predicted": diamond,
    "extrapolated": diamond,
    "infeasible": cross,
    "knee": star,
    "unsure": star,
    "running": frame,
}


def add(parent: Element, tag: str, kind: str, **attributes: str) -> Element:
    """Add an element of a class."""
    return SubElement(parent, tag, {"class": kind, **attributes})


def pixels(**figures: float) -> dict[str, str]:
    """Return figures as attributes of an element."""
    return {name: f"{figure:g}" for name, figure in figures.items()}


def add_text(parent: Element, tag: str, text: str, **attributes: str) -> Element:
    """Add an element with a text; what XML cannot hold is left out."""
    element = SubElement(parent, tag, attributes)
    element.text = "".join(letter for letter in text if letter.isprintable())
    return element


def write(
    parent: Element, x: float, y: float, text: str, kind: str = "", *, anchor: str = "start"
) -> Element:
    """Write a text at a place."""
    facts = {"x": f"{x:g}", "y": f"{y:g}", "text-anchor": anchor}
    return add_text(parent, "text", text, **facts, **({"class": kind} if kind else {}))


def line(parent: Element, kind: str, *ends: float) -> None:
    """Draw a straight line from one place to another."""
    facts = zip(("x1", "y1", "x2", "y2"), ends, strict=True)
    add(parent, "line", kind, **{name: f"{pixel:g}" for name, pixel in facts})
