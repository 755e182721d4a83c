"""`ServerRows`: reads the rows that servers write, as measured steps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from worker_agent.launcher.step_records import MeasuredStep
from worker_agent.tensorflow.sync_replicas import ServerRowLayout

ServerRow = npt.NDArray[np.float64]


class ServerRows:
    """Turns rows into steps; each is complete once the next tells how long the workers waited.

    Args:
        layout: Their columns.
        first: Step of the first row.

    Attributes:
        read: Step of the next row.
        steps: Steps that were read.
        samples: Their samples.
    """

    def __init__(self, layout: ServerRowLayout, first: int) -> None:
        self.layout, self.read = layout, first
        self.steps = self.samples = 0
        self.held: ServerRow | None = None
        self.ended_at: float | None = None

    def take(self, rows: Any, *, is_last: bool = False) -> Iterator[MeasuredStep]:
        """Yield the steps of these rows but the last, which is kept unless no step follows."""
        for row in np.asarray(rows):
            if int(row[self.layout.STEP]) != self.read:
                break  # it is being written
            self.read += 1
            self.steps += 1
            self.samples += self._samples(row)
            if self.held is not None:
                yield self._complete(self.held, row)
            self.held = row
        if is_last and self.held is not None:
            yield self._complete(self.held, None)
            self.held = None

    def _samples(self, row: ServerRow) -> int:
        return round(float(row[self.layout.SAMPLES] * row[self.layout.WORKERS]))

    def _complete(self, row: ServerRow, following: ServerRow | None) -> MeasuredStep:
        layout, workers = self.layout, int(row[self.layout.WORKERS])
        shares = layout.per_task(row, 0) * workers
        tasks = np.flatnonzero(shares > 0)
        # Where a step took more gradients than it needed, their shares are no whole numbers.
        is_whole = bool(np.all(np.abs(shares - np.round(shares)) < 0.01))
        given = shares[tasks] / workers
        compute_times = layout.per_task(row, 1)[tasks] / given
        sync_time = 0.0
        if following is not None:
            again = layout.per_task(following, 0)[tasks]
            waited = layout.per_task(following, 2)[tasks][again > 0] / again[again > 0]
            sync_time = float(waited[waited > 0].min(initial=math.inf))
            sync_time = sync_time if math.isfinite(sync_time) else 0.0
        ended_at = float(row[layout.ENDED])
        before, self.ended_at = self.ended_at, ended_at
        usual = float(compute_times.max(initial=0.0)) + sync_time
        local, mean = float(row[layout.LOCAL]), float(row[layout.MEAN])
        is_known = workers > 1 and is_whole and math.isfinite(local + mean)
        return MeasuredStep(
            iteration=int(row[layout.STEP]) + 1,
            samples=self._samples(row),
            shards=workers,
            local_norm_sq=local if is_known else None,
            mean_norm_sq=mean if is_known else None,
            compute_time=float(compute_times.max(initial=0.0)),
            sync_time=sync_time,
            step_time=usual if before is None else ended_at - before,
            mean_compute_time=float(compute_times.mean()) if len(tasks) else 0.0,
            fastest_compute_time=float(compute_times.min()) if len(tasks) else 0.0,
            tasks=list(map(int, tasks)),
        )
