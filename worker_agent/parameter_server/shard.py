"""Shards: contiguous ranges of all parameters laid end to end, one for each server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Segment:
    """Neighbouring values that belong to one parameter group of the optimizer.

    Attributes:
        group: Number of the group.
        size: How many values.
    """

    group: int
    size: int


def ranges(size: int, servers: int) -> tuple[tuple[int, int], ...]:
    """Cut so many values into one range per server; sizes differ by at most one.

    >>> ranges(5, 2)
    ((0, 2), (2, 5))
    """
    edges = [size * server // servers for server in range(servers + 1)]
    return tuple(pairwise(edges))


def within(segments: Sequence[Segment], low: int, high: int) -> tuple[Segment, ...]:
    """Return what lies between two places; neighbours of one group become one segment.

    >>> within([Segment(0, 4), Segment(0, 2), Segment(1, 3)], 2, 7)
    (Segment(group=0, size=4), Segment(group=1, size=1))
    """
    found: list[Segment] = []
    start = 0
    for segment in segments:
        size = min(start + segment.size, high) - max(start, low)
        start += segment.size
        if size <= 0:
            continue
        if found and found[-1].group == segment.group:
            found[-1] = Segment(segment.group, found[-1].size + size)
        else:
            found.append(Segment(segment.group, size))
    return tuple(found)
