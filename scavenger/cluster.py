"""ClusterConfig, one choice of workers and global batch, and ConfigSpace, the grid of choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class ClusterConfig:
    """How many workers share one global batch: (K, B) in the paper.

    Attributes:
        workers: Number of data-parallel workers, at least 1.
        global_batch: Samples per iteration over all workers, at least one per worker.
    """

    workers: int
    global_batch: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if self.global_batch < self.workers:
            raise ValueError(
                f"global_batch {self.global_batch} is below workers {self.workers}: "
                "each worker needs at least one sample"
            )

    @property
    def local_batch(self) -> float:
        """Mean samples per worker and iteration, b = B / K."""
        return self.global_batch / self.workers

    def __str__(self) -> str:
        return f"K={self.workers} B={self.global_batch}"


@dataclass(frozen=True, slots=True)
class ConfigSpace:
    """The grid of configurations a job may use: every worker count with every global batch.

    Attributes:
        workers: Allowed worker counts, ascending, no repeats.
        global_batches: Allowed global batches in samples, ascending, no repeats.
    """

    workers: tuple[int, ...]
    global_batches: tuple[int, ...]

    def __post_init__(self) -> None:
        for name, values in (("workers", self.workers), ("global_batches", self.global_batches)):
            if not values:
                raise ValueError(f"{name} is empty")
            if list(values) != sorted(set(values)):
                raise ValueError(f"{name} must ascend without repeats, got {values}")
        if self.global_batches[-1] < self.workers[0]:
            raise ValueError(
                f"no configuration: the largest global batch {self.global_batches[-1]} "
                f"is below the fewest workers {self.workers[0]}"
            )

    def __iter__(self) -> Iterator[ClusterConfig]:
        """Yield every configuration that gives each worker a sample, by workers, then batch."""
        for workers in self.workers:
            for global_batch in self.global_batches:
                if global_batch >= workers:
                    yield ClusterConfig(workers, global_batch)

    def __contains__(self, config: object) -> bool:
        return (
            isinstance(config, ClusterConfig)
            and config.workers in self.workers
            and config.global_batch in self.global_batches
        )

    @property
    def start(self) -> ClusterConfig:
        """The configuration a job starts with: fewest workers, smallest batch they can share."""
        return next(iter(self))

    def corners(self) -> tuple[ClusterConfig, ...]:
        """Return the corners of the grid, ordered so that machines are only added (III-D)."""
        fewest, most = self.workers[0], self.workers[-1]
        largest = self.global_batches[-1]
        smallest_of_most = next((b for b in self.global_batches if b >= most), None)
        corners = [self.start, ClusterConfig(fewest, largest)]
        if largest >= most:
            corners.append(ClusterConfig(most, largest))
        if smallest_of_most is not None:
            corners.append(ClusterConfig(most, smallest_of_most))
        return tuple(dict.fromkeys(corners))
