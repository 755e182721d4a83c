"""`PushRows`: turns the pushes of workers that do not wait for each other into measured steps.

As many pushes as there are workers count as one iteration: that is one batch of the job. Its noise
comes from the newest push of each worker, since no gradient is ever averaged.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from worker_agent.launcher.step_records import MeasuredStep
from worker_agent.telemetry.metrics import smooth_staleness

ROUNDS_KEPT = 2  # rounds of pushes in which each worker must have pushed for its noise to count


@dataclass(frozen=True, slots=True)
class Push:
    """One gradient that a worker gave to the servers.

    Attributes:
        number: Place among all pushes, from 0.
        worker: Number that this start of the worker has chosen for itself.
        began_at: When it began, by the worker's clock.
        compute_time: Seconds from the arrival of the weights to the gradient.
        local_norm_sq: ||g||².
        samples: Its samples; 0 if unknown.
        seen: Pushes that the servers had when the worker read its weights; -1 if unknown.
        ended_at: When it came, by the first server's clock.
    """

    number: int
    worker: int
    began_at: float
    compute_time: float
    local_norm_sq: float
    samples: int
    seen: int
    ended_at: float

    @property
    def staleness(self) -> int | None:
        """Pushes of others that its weights did not contain; None if unknown."""
        return max(self.number - self.seen, 0) if self.seen >= 0 else None


@dataclass(frozen=True, slots=True)
class SketchProducts:
    """Inner products of the sketches of some pushes.

    Attributes:
        first: Number of the first push.
        products: The products, by number from there on; NaN where a sketch is gone.
    """

    first: int
    products: npt.NDArray[np.float64]

    def of(self, one: int, other: int) -> float:
        """Return the product of two pushes; NaN if it is not known."""
        places = one - self.first, other - self.first
        known = range(len(self.products))
        return float(self.products[places]) if all(place in known for place in places) else math.nan


class PushRows:
    """Collects pushes.

    Args:
        workers: Pushes that make one iteration.

    Attributes:
        staleness: Smoothed over about ten pushes; None while unknown.
        samples: Samples of all rows so far.
        rows: Rows so far.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.staleness: float | None = None
        self.samples = self.rows = 0
        self.round: list[Push] = []
        self.recent: deque[Push] = deque(maxlen=ROUNDS_KEPT * workers)
        self.before: dict[int, Push] = {}  # of each worker, its newest one before the round
        self.waited: list[float] = []
        self.ended_at: float | None = None

    def add(self, push: Push, products: SketchProducts) -> MeasuredStep | None:
        """Take the next push; returns the row that it completes."""
        last = self.before.get(push.worker)
        if last is not None:
            self.waited.append(max(push.began_at - last.began_at - last.compute_time, 0.0))
        self.before[push.worker] = push
        if push.staleness is not None:
            self.staleness = smooth_staleness(self.staleness, push.staleness)
        self.round.append(push)
        self.recent.append(push)
        if len(self.round) < self.workers:
            return None
        row = self._complete(products)
        self.before = {push.worker: push for push in self.recent}
        self.round, self.waited = [], []
        self.rows += 1
        self.samples += row.samples
        return row

    def _complete(self, products: SketchProducts) -> MeasuredStep:
        compute_times = [push.compute_time for push in self.round]
        sync_time = min(self.waited, default=0.0)
        began_at, self.ended_at = self.ended_at, self.round[-1].ended_at
        usual = max(compute_times) + sync_time
        newest = list({push.worker: push for push in self.recent}.values())
        local, mean = norms_of(newest, products)
        is_known = len(newest) == self.workers > 1 and math.isfinite(local + mean)
        return MeasuredStep(
            iteration=self.rows + 1,
            samples=sum(push.samples for push in self.round),
            shards=self.workers if is_known else 1,
            local_norm_sq=local if is_known else None,
            mean_norm_sq=mean if is_known else None,
            compute_time=max(compute_times),
            sync_time=sync_time,
            step_time=usual if began_at is None else max(self.ended_at - began_at, 0.0),
            mean_compute_time=sum(compute_times) / len(compute_times),
            fastest_compute_time=min(compute_times),
        )


def norms_of(pushes: list[Push], products: SketchProducts) -> tuple[float, float]:
    """Return the mean of ||g_k||², and ||mean gradient||² as the sketches tell it.

    Workers tell their own norms exactly. So only the products of two different gradients come
    from sketches, which about halves the error for two workers.
    """
    own = [push.local_norm_sq for push in pushes]
    crossed = sum(
        2 * products.of(one.number, other.number)
        for place, one in enumerate(pushes)
        for other in pushes[:place]
    )
    # Gradients that cancel each other leave less than the error of the products.
    return sum(own) / len(own), max((sum(own) + crossed) / len(own) ** 2, 0.0)


def products_of(first: int, gram: npt.NDArray[np.float32], kept_from: int) -> SketchProducts:
    """Return the products that a server computed, without those whose sketches were overwritten.

    Args:
        first: Number of the first push.
        gram: Inner products of all sketches from there on.
        kept_from: Number of the oldest push whose sketch was certainly still there.
    """
    products = np.array(gram, dtype=np.float64)
    gone = max(kept_from - first, 0)
    products[:gone, :] = products[:, :gone] = math.nan
    return SketchProducts(first, products)
