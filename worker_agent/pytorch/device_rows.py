"""`DeviceRows`: what workers tell each other in an iteration that their GPUs have not computed yet.

On a CPU a worker's row travels behind its last gradients. On a GPU that row would have to be read
from the device in every step, and the norms and times of the iteration are not known when it
leaves. So the rows lie in host memory and have a small all-reduce of their own, beside the one of
the last bucket. Their flags are of the iteration that runs; their norms and times are of the one
`LATENESS` iterations before. A worker alone tells what has arrived.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from worker_agent.frameworks import SUMMARY_COLUMNS, LateMeasurement, name_columns
from worker_agent.pytorch.device_clock import DeviceValues
from worker_agent.step_clock import ArrivalQueue, Mark, StepClock

# When an iteration sends its last gradients, the host has waited for those of the one before, and
# so for all that the iteration before that one had queued.
LATENESS = 2


@dataclass(slots=True)
class UnreadIteration:
    """An iteration of this worker whose norms and times may still be on the device.

    Attributes:
        place: Iterations of the generation before it.
        clock: What made the marks.
        began_at: The end of the iteration before.
        forward_at: Its first forward pass; None without one.
        ready_at: Its last local gradient.
        done_at: When all gradients were averaged.
        ended_at: Its end.
        norms: Its squared norms: of the local gradients, and of the mean where this worker leads.
        shards: Shards the norms were taken over.
    """

    place: int
    clock: StepClock
    began_at: Mark
    forward_at: Mark | None
    ready_at: Mark
    done_at: Mark
    ended_at: Mark
    norms: DeviceValues | None
    shards: int

    def is_there(self) -> bool:
        marks = [self.ended_at, self.began_at, self.ready_at, self.done_at]
        marks += [] if self.forward_at is None else [self.forward_at]
        are_norms_there = self.norms is None or self.norms.is_there()
        return are_norms_there and all(map(self.clock.is_there, marks))

    @property
    def compute_time(self) -> float:
        if self.forward_at is None:
            return 0.0
        return max(self.clock.seconds(self.forward_at, self.ready_at), 0.0)

    @property
    def sync_time(self) -> float:
        return self.clock.seconds(self.ready_at, self.done_at)

    @property
    def local_norm_sq(self) -> float:
        return 0.0 if self.norms is None else self.norms.read()[0]

    def combine(
        self, compute_times: Sequence[float], sync_times: Sequence[float], local_norm_sq: float
    ) -> LateMeasurement:
        """Return what this worker, which leads, and the others measured together."""
        norms = None if self.norms is None or self.shards == 1 else self.norms.read()
        return LateMeasurement(
            place=self.place,
            sync_time=min(sync_times),
            step_time=self.clock.seconds(self.began_at, self.ended_at),
            shards=self.shards,
            local_norm_sq=None if norms is None else local_norm_sq,
            mean_norm_sq=None if norms is None or len(norms) == 1 else norms[1],
            compute_time=max(compute_times),
            mean_compute_time=sum(compute_times) / len(compute_times),
            fastest_compute_time=min(compute_times),
        )


class DeviceRows:
    """The rows of one generation, and what became known of its iterations.

    Attributes:
        values: Every worker's row of SUMMARY_COLUMNS, on the host.

    Args:
        workers: Workers of the generation.
        rank: This one.
    """

    def __init__(self, workers: int, rank: int) -> None:
        self.workers, self.rank = workers, rank
        # The script may have made its GPU the default device.
        size = workers, len(SUMMARY_COLUMNS)
        self.values = torch.zeros(size, dtype=torch.float64, device="cpu")
        self.ended = 0
        self.untold: deque[UnreadIteration] = deque()
        self.arriving: ArrivalQueue[UnreadIteration] = ArrivalQueue()  # of a worker alone
        self.told: UnreadIteration | None = None
        self.known: list[LateMeasurement] = []

    def write_own(self, flags: Sequence[float], *, is_skipped: bool) -> None:
        """Write this worker's row; the others, which each add their own, have zeros here."""
        self.told = None
        if len(self.untold) >= LATENESS:
            oldest = self.untold.popleft()
            self.told = oldest if oldest.is_there() else None
        said = (math.nan,) * 3  # nothing is known of that iteration, or its device has lost it
        if self.told is not None:
            said = self.told.local_norm_sq, self.told.compute_time, self.told.sync_time
        rows = self.values.numpy()
        rows.fill(0.0)
        rows[self.rank] = (*flags, *said, float(is_skipped))

    @property
    def is_skipped_by_any(self) -> bool:
        return any(row["is_skipped"] for row in name_columns(self.values.tolist()))

    def copy(self) -> Tensor:
        """Return the rows of all workers."""
        return self.values.clone()

    def end(self, iteration: UnreadIteration) -> None:
        """Keep an iteration that has ended, and read what its rows tell of an earlier one."""
        self.ended += 1
        if self.is_skipped_by_any:
            iteration.shards = 1
        self.untold.append(iteration)
        if self.workers == 1:
            # What the script has logged in an iteration is read at the end of the next.
            while len(self.untold) > 1:
                self.arriving.put(self.untold.popleft())
            return
        rows = name_columns(self.values.tolist())
        compute_times = [row["compute_time"] for row in rows]
        if self.told is None or not all(map(math.isfinite, compute_times)):
            return
        sync_times = [row["previous_sync_time"] for row in rows]
        local_norm_sq = sum(row["local_norm_sq"] for row in rows)
        self.known.append(self.told.combine(compute_times, sync_times, local_norm_sq))

    def take(self) -> list[LateMeasurement]:
        """Return what became known since the last call."""
        for each in self.arriving.take():
            times = [each.compute_time], [each.sync_time]
            self.known.append(each.combine(*times, each.local_norm_sq))
        known, self.known = self.known, []
        return known
