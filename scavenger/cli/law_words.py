"""Laws of an iteration's time in words: which forms are averaged, and by what weight."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from scavenger.cli.figures import percent

MOST_NAMED = 4


class AveragedLaw(Protocol):
    """One of the laws of an average, as the API and ``scavenger fit`` tell it."""

    @property
    def weight(self) -> float:
        """Its share, 0 to 1."""

    @property
    def growth(self) -> str:
        """How synchronisation grows: linear, log or servers."""

    @property
    def sync_fixed(self) -> float:
        """Seconds of synchronisation as soon as there are two workers."""

    @property
    def sync_per_worker(self) -> float:
        """Seconds of synchronisation per worker, or per doubling."""

    @property
    def sync_across_machines(self) -> float:
        """Seconds of synchronisation as soon as there are two machines."""

    @property
    def overlap(self) -> float:
        """q, how much of synchronisation hides behind compute."""

    @property
    def flatness(self) -> float:
        """r, how abruptly small batches stop saving time."""


def name_average(laws: Sequence[AveragedLaw]) -> str:
    """Name the forms that are averaged, the heaviest first.

    Laws whose forms have one name count together.
    """
    shares: dict[str, float] = defaultdict(float)
    for law in laws:
        shares[name_form(law)] += law.weight
    ranked = sorted(shares.items(), key=lambda named: -named[1])
    named = [f"{name} {percent(share)}" for name, share in ranked[:MOST_NAMED]]
    others = ranked[MOST_NAMED:]
    if others:
        named.append(f"{len(others)} more {percent(sum(share for _, share in others))}")
    count = f"{len(ranked)} form{'' if len(ranked) == 1 else 's'}"
    return f"average of {count}: {', '.join(named)}"


def name_form(law: AveragedLaw) -> str:
    """Name the form of a law: how synchronisation grows, what overlaps, what is flat.

    The same symbols as in the equations: K workers, q overlap, r flatness.
    """
    grows = "log2 K" if law.growth == "log" else "K"
    parts = [grows if law.sync_per_worker > 0 else "constant" if law.sync_fixed > 0 else ""]
    if law.sync_across_machines > 0:
        parts.append("step to machines")
    name = " + ".join(part for part in parts if part) or "no sync"
    flat = f" r={law.flatness:g}" if law.flatness > 1 else ""
    return f"{name} q={law.overlap:g}{flat}"
