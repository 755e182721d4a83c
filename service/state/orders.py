"""What stands for a job by its orders: a pure fold over them, oldest first.

Nothing else stores it. An order takes effect in the transaction that stores it, and loses it where
it is refused; a controller that dies in between neither loses nor doubles one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import assert_never

from scavenger.cluster import ClusterConfig
from scavenger.job.spec import JobSpec
from scavenger.schemas.orders import (
    ChangeWish,
    GridPoint,
    PauseWish,
    Preference,
    ProbeWish,
    ResizeWish,
    ResumeWish,
    Wish,
)
from service.db.orders import StoredOrder


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause of a job.

    Attributes:
        until: When it was resumed; None while it is paused.
    """

    since: datetime
    until: datetime | None = None

    def covers(self, moment: datetime) -> bool:
        """Whether the job was paused at a moment."""
        return self.since <= moment and (self.until is None or moment < self.until)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a job's orders say of it now.

    Attributes:
        preference: The objective to choose by; ``auto`` for the job's own, planned anew when the
            noise drifts.
        pinned: The configuration to stay on; None where none is pinned.
        pauses: Every pause, oldest first.
        changes: Changes of limits and objective, oldest first, with their moments.
        open: Orders that are still to be obeyed, oldest first.
        replaced_by: Numbers of the later orders that make open ones needless, by their numbers.
        newest: Number of the last of the orders that count; 0 before the first.
    """

    preference: Preference = "auto"
    pinned: ClusterConfig | None = None
    pauses: tuple[Pause, ...] = ()
    changes: tuple[tuple[datetime, ChangeWish], ...] = ()
    open: tuple[StoredOrder, ...] = ()
    replaced_by: tuple[tuple[int, int], ...] = ()
    newest: int = 0

    @property
    def is_paused(self) -> bool:
        """Whether no machine is to run."""
        return bool(self.pauses) and self.pauses[-1].until is None

    @property
    def probe(self) -> StoredOrder | None:
        """The probe that is to be made; None where none is."""
        return next((order for order in self.open if isinstance(order.wish, ProbeWish)), None)

    @property
    def is_automatic(self) -> bool:
        """Whether the job is planned anew by itself."""
        return self.preference == "auto" and self.pinned is None

    def apply_to(self, spec: JobSpec, until: datetime | None = None) -> JobSpec:
        """Return a job with its limits and objective as they were changed.

        Args:
            spec: The job as submitted.
            until: Only with what was changed up to then; None for all.
        """
        for at, change in self.changes:
            if until is None or at <= until:
                spec = change.apply_to(spec)
        return spec

    def prefer_in(self, spec: JobSpec) -> JobSpec:
        """Return a job with the objective that is to be chosen by."""
        if self.preference == "auto":
            return spec
        return spec.model_copy(update={"objective": self.preference})

    def was_paused_at(self, moment: datetime | None) -> bool:
        """Whether the job was paused at a moment."""
        return moment is not None and any(pause.covers(moment) for pause in self.pauses)


NO_ORDERS = Standing()


def fold_orders(orders: Iterable[StoredOrder]) -> Standing:
    """Return what stands for a job.

    Args:
        orders: All orders of the job, oldest first, or those that may bear on what stands.
    """
    given = [order for order in orders if is_in_force(order)]
    standing = Standing(
        open=tuple(order for order in given if order.is_open),
        replaced_by=superseded(given),
        newest=max((order.number for order in given), default=0),
    )
    for order in given:
        standing = obey_in_fold(standing, order)
    return standing


def is_in_force(order: StoredOrder) -> bool:
    """Whether an order counts; what holds from when it is given did hold until it was replaced.

    So a job stays paused whose pause was replaced by a resume that is then refused.
    """
    held = isinstance(order.wish, ChangeWish | PauseWish | ResumeWish)
    return order.state in ("open", "done") or (order.state == "replaced" and held)


def obey_in_fold(standing: Standing, order: StoredOrder) -> Standing:
    """Return what stands after one more order."""
    match order.wish:
        case ResizeWish(to=GridPoint() as point):
            return replace(standing, preference="auto", pinned=point.config)
        case ResizeWish(to=str() as preference):
            return replace(standing, preference=preference, pinned=None)
        case PauseWish() if not standing.is_paused:
            return replace(standing, pauses=(*standing.pauses, Pause(order.at)))
        case ResumeWish() if standing.is_paused:
            *before, last = standing.pauses
            return replace(standing, pauses=(*before, replace(last, until=order.at)))
        case ChangeWish() as change:
            return replace(standing, changes=(*standing.changes, (order.at, change)))
        case _:
            return standing


def superseded(given: Sequence[StoredOrder]) -> tuple[tuple[int, int], ...]:
    """Return the open orders that later ones make needless, each with the latest of those."""
    later: dict[str, int] = {}
    found: list[tuple[int, int]] = []
    for order in reversed(given):
        subjects = subjects_of(order.wish)
        if order.is_open and subjects <= later.keys():
            found.append((order.number, max(later[subject] for subject in subjects)))
        for subject in subjects:
            later.setdefault(subject, order.number)
    return tuple(reversed(found))


def subjects_of(wish: Wish) -> frozenset[str]:
    """Return what a wish is about: it replaces an older one whose subjects it has."""
    match wish:
        case ResizeWish():
            return frozenset({"configuration"})
        case ProbeWish():
            return frozenset({"probe"})
        case PauseWish() | ResumeWish():
            return frozenset({"pause"})
        case ChangeWish():
            return wish.subjects
        case _:
            assert_never(wish)


def describe_wish(wish: Wish) -> str:
    """Say what is asked for.

    >>> describe_wish(ResizeWish(to="cheapest"))
    'resize to cheapest'
    """
    match wish:
        case ResizeWish(to=GridPoint() as point):
            return f"resize to {point.config}"
        case ResizeWish(to=preference):
            return f"resize to {preference}"
        case ProbeWish():
            return f"probe {wish.config}"
        case PauseWish():
            return "pause"
        case ResumeWish():
            return "resume"
        case ChangeWish():
            return f"change {describe_change(wish)}"
        case _:
            assert_never(wish)


def describe_change(change: ChangeWish) -> str:
    """Say what is changed to what.

    >>> describe_change(ChangeWish.model_validate({"limits": {"max_time": None}}))
    'limits.max_time to no limit'
    """
    written = change.model_dump(mode="json", exclude_unset=True)
    parts = [
        f"limits.{name} to {'no limit' if value is None else value}"
        for name, value in written.get("limits", {}).items()
    ]
    if "objective" in written:
        parts.append(f"objective to {written['objective']}")
    return " and ".join(parts)
