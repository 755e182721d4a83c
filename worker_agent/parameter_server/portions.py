"""`PortionAllocator`: which worker computes which part of an evaluation, and which result counts.

An evaluation is the loss and its gradient over one batch, at one point. The batch is cut into
portions. A worker takes runs of neighbouring portions, the same ones in every evaluation as long as
the others are as fast as before, so that its samples stay in its cache. When none is left,
portions that other workers have not finished are given again. The first result of a portion counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# A worker takes this fraction of its even share of what is left: long runs first, to send few
# gradients, and single portions at the end, so that all workers end together.
RUNS_PER_WORKER = 4
MOST_COPIES = 3  # workers that compute the same portion at once


@dataclass(frozen=True, slots=True, order=True)
class PortionRun:
    """Neighbouring portions of one evaluation, which one worker computes and pushes together.

    Attributes:
        first: The first portion.
        count: How many.
    """

    first: int
    count: int

    def __post_init__(self) -> None:
        if self.first < 0 or self.count < 1:
            raise ValueError(f"no portions: {self.count} from {self.first}")

    @property
    def portions(self) -> range:
        """The portions themselves."""
        return range(self.first, self.first + self.count)


class PortionAllocator:
    """The portions of one evaluation; a pure value without clock or chance.

    Args:
        portions: How many there are.
        owners: Which worker computed which portion of the evaluation before.
        has_backups: Whether portions in progress are given again when no other is left.

    Attributes:
        accepted: Runs whose results count, in the order in which they came; no two overlap.
    """

    def __init__(
        self,
        portions: int,
        owners: Mapping[int, str] | None = None,
        *,
        has_backups: bool = True,
    ) -> None:
        self.portions, self.has_backups = portions, has_backups
        self.accepted: list[PortionRun] = []
        self.owners: dict[int, str] = {}
        self._owners_before = dict(owners or {})
        self._free = set(range(portions))
        self._done: set[int] = set()
        self._holders: dict[int, set[str]] = {}  # of portions that are neither free nor done
        self._handed: dict[int, int] = {}  # times each portion was given, in order of the first
        self._last: dict[str, int] = {}  # the last portion of each worker that is there

    @property
    def is_over(self) -> bool:
        """Whether every portion has a result that counts."""
        return len(self._done) == self.portions

    @property
    def is_untouched(self) -> bool:
        """Whether no portion was given yet."""
        return not self._handed and not self._done

    def has_work(self, worker: str) -> bool:
        """Whether ``take`` would give this worker portions."""
        return bool(self._free) or (self.has_backups and bool(self._others_have(worker)))

    def take(self, worker: str) -> PortionRun | None:
        """Give a worker portions to compute; None when it cannot help."""
        self._last.setdefault(worker, -1)
        run = self._fresh_run(worker) if self._free else self._backup(worker)
        if run is None:
            return None
        for portion in run.portions:
            self._free.discard(portion)
            self._holders.setdefault(portion, set()).add(worker)
            self._handed[portion] = self._handed.get(portion, 0) + 1
        self._last[worker] = run.portions[-1]
        return run

    def is_wanted(self, run: PortionRun) -> bool:
        """Whether a result for these portions would count now."""
        return run.portions[-1] < self.portions and self._done.isdisjoint(run.portions)

    def finish(self, worker: str, run: PortionRun) -> bool:
        """Note a result; returns whether it counts.

        A result that holds a portion twice over cannot be taken apart: its other portions are given
        again. Any worker may bring any result, because all are of the same point.
        """
        for portion in run.portions:
            self._release(worker, portion)
        if not self.is_wanted(run):
            return False
        self.accepted.append(run)
        for portion in run.portions:
            self._done.add(portion)
            self._free.discard(portion)
            self._holders.pop(portion, None)
            self.owners[portion] = worker
        return True

    def give_back(self, worker: str) -> None:
        """Give to others what a worker has not finished: it is gone."""
        self._last.pop(worker, None)
        for portion in list(self._holders):
            self._release(worker, portion)

    def _release(self, worker: str, portion: int) -> None:
        holders = self._holders.get(portion)
        if holders is None or worker not in holders:
            return
        holders.remove(worker)
        if not holders:
            del self._holders[portion]
            self._free.add(portion)

    def _fresh_run(self, worker: str) -> PortionRun:
        """Return free neighbours, best those that this worker computed in the evaluation before."""
        # In the first evaluation others may still come, so all begin with single portions.
        workers = len({*self._last, *self._owners_before.values()})
        length = len(self._free) // (RUNS_PER_WORKER * workers) if self._owners_before else 1
        own = [each for each in self._free if self._owners_before.get(each) == worker]
        following = self._last[worker] + 1
        if own:
            first = min(own)
        elif self._last[worker] >= 0 and following in self._free:
            first = following
        else:
            first = self._place_to_begin()
        count = 1
        while count < length and self._may_follow(worker, first + count):
            count += 1
        return PortionRun(first, count)

    def _may_follow(self, worker: str, portion: int) -> bool:
        owner = self._owners_before.get(portion, worker)
        return portion in self._free and owner in (worker, *self._gone(owner))

    def _gone(self, owner: str) -> tuple[str, ...]:
        """Return the owner again if it is not there, so that others take its portions over."""
        return () if owner in self._last else (owner,)

    def _place_to_begin(self) -> int:
        """Return the middle of the longest free run, whose first half its neighbour may reach."""
        longest = max(free_runs(self._free), key=lambda run: run.count)
        return longest.first + (longest.count // 2 if self._handed else 0)

    def _backup(self, worker: str) -> PortionRun | None:
        """Return the portion in progress that was given least often, of these the oldest."""
        if not self.has_backups:
            return None
        oldest = {portion: age for age, portion in enumerate(self._handed)}
        others = self._others_have(worker)
        chosen = min(others, key=lambda each: (self._handed[each], oldest[each]), default=None)
        return None if chosen is None else PortionRun(chosen, 1)

    def _others_have(self, worker: str) -> list[int]:
        return [
            portion
            for portion, holders in self._holders.items()
            if worker not in holders and len(holders) < MOST_COPIES
        ]


def free_runs(portions: Iterable[int]) -> list[PortionRun]:
    """Return neighbours together, in ascending order.

    >>> free_runs({4, 1, 2})
    [PortionRun(first=1, count=2), PortionRun(first=4, count=1)]
    """
    runs: list[PortionRun] = []
    for portion in sorted(portions):
        if runs and runs[-1].first + runs[-1].count == portion:
            runs[-1] = PortionRun(runs[-1].first, runs[-1].count + 1)
        else:
            runs.append(PortionRun(portion, 1))
    return runs
