"""Grouping: rows of many jobs, read with one query, by the job they are of."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol, TypeVar


class OfJob(Protocol):
    """A row that belongs to a job."""

    @property
    def job(self) -> str:
        """Its job."""


R = TypeVar("R", bound=OfJob)


def by_job(wanted: Collection[str], rows: Iterable[R]) -> Mapping[str, tuple[R, ...]]:
    """Return rows by their job, in their order; jobs without any are there, too."""
    found: dict[str, list[R]] = {job: [] for job in wanted}
    for row in rows:
        found[row.job].append(row)
    return {job: tuple(own) for job, own in found.items()}
