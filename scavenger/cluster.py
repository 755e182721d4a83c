"""ClusterConfig, one choice of workers and global batch, and ConfigSpace, the grid of choices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from scavenger.machine import MachineType, MemoryModel


@dataclass(frozen=True, slots=True, order=True)
class ClusterConfig:
    """How many workers share one global batch: (K, B) in the paper.

    Attributes:
        workers: Number of data-parallel workers, at least 1.
        global_batch: Samples per iteration over all workers, at least one per worker.
        workers_per_machine: Workers that share one VM, e.g. one per accelerator.
        machine_type: Key of the ``MachineType``; empty where there is only one.
    """

    workers: int
    global_batch: int
    workers_per_machine: int = 1
    machine_type: str = ""

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if self.global_batch < self.workers:
            raise ValueError(
                f"global_batch {self.global_batch} is below workers {self.workers}: "
                "each worker needs at least one sample"
            )
        if self.workers_per_machine < 1:
            raise ValueError(
                f"workers_per_machine must be at least 1, got {self.workers_per_machine}"
            )

    @property
    def machines(self) -> int:
        """VMs the workers are spread over, the last one possibly not full."""
        return -(-self.workers // self.workers_per_machine)

    @property
    def local_batch(self) -> float:
        """Mean samples per worker and iteration, b = B / K."""
        return self.global_batch / self.workers

    def __str__(self) -> str:
        machine = f" on {self.machine_type}" if self.machine_type else ""
        return f"K={self.workers} B={self.global_batch}{machine}"


@dataclass(frozen=True, slots=True)
class ConfigSpace:
    """The grid of configurations a job may use: every worker count with every global batch.

    Attributes:
        workers: Allowed worker counts, ascending, no repeats.
        global_batches: Allowed global batches in samples, ascending, no repeats.
        machine_types: Machine types to choose from; empty where there is only one.
        memory: What a local batch needs; bounds the batch by the machines' memory if given.
        most_local_batch: Samples one worker can hold on any machine; infinite where nothing tells.
    """

    workers: tuple[int, ...]
    global_batches: tuple[int, ...]
    machine_types: tuple[MachineType, ...] = ()
    memory: MemoryModel | None = None
    most_local_batch: float = math.inf

    def __post_init__(self) -> None:
        for name, values in (("workers", self.workers), ("global_batches", self.global_batches)):
            if not values:
                raise ValueError(f"{name} is empty")
            if list(values) != sorted(set(values)):
                raise ValueError(f"{name} must ascend without repeats, got {values}")
        keys = [machine.key for machine in self.machine_types]
        if len(set(keys)) < len(keys):
            raise ValueError(f"machine_types must differ, got {keys}")
        if self.global_batches[-1] < self.workers[0]:
            raise ValueError(
                f"no configuration: the largest global batch {self.global_batches[-1]} "
                f"is below the fewest workers {self.workers[0]}"
            )
        if next(iter(self), None) is None:
            raise ValueError(
                f"no configuration fits in memory: {self.workers[-1]} workers share a batch of "
                f"{self.global_batches[0]}, which needs more than the machines have, or than the "
                f"{self.most_local_batch:g} samples one worker can hold"
            )

    def __iter__(self) -> Iterator[ClusterConfig]:
        """Yield every configuration that fits, by machine type, workers, then batch."""
        for machine in self.machine_types or (None,):
            for workers in self.workers:
                for global_batch in self.global_batches:
                    if self._fits(workers, global_batch, machine):
                        yield configure(workers, global_batch, machine)

    def __contains__(self, config: object) -> bool:
        return isinstance(config, ClusterConfig) and any(
            config.workers in self.workers
            and config.global_batch in self.global_batches
            and config == configure(config.workers, config.global_batch, machine)
            and self._fits(config.workers, config.global_batch, machine)
            for machine in self.machine_types or (None,)
        )

    @property
    def start(self) -> ClusterConfig:
        """The configuration a job starts with: fewest workers, smallest batch they can share."""
        return next(iter(self))

    def corners(self, per_kind: int = 4) -> tuple[ClusterConfig, ...]:
        """Return the corners of the grid, ordered so that machines are only added (III-D).

        Of every further kind of hardware the two ends of its diagonal: the first kind tells the
        shape of the laws, these how much faster each part is.

        Args:
            per_kind: Corners of the first kind. The fourth, most workers at the smallest batch,
                tells the least: the laws have three terms besides their constant.
        """
        corners: list[ClusterConfig] = []
        kinds: set[str] = set()
        for machine in self.machine_types or (None,):
            name = "" if machine is None else machine.name
            if name not in kinds and (of_kind := self._corners_on(machine)):
                corners += of_kind[::2] if kinds else of_kind[:per_kind]
                kinds.add(name)
        return tuple(dict.fromkeys(corners))

    def _corners_on(self, machine: MachineType | None) -> list[ClusterConfig]:
        fewest = next((k for k in self.workers if self._batches_of(k, machine)), None)
        if fewest is None:
            return []
        most = next(k for k in reversed(self.workers) if self._batches_of(k, machine))
        return [
            configure(workers, pick(self._batches_of(workers, machine)), machine)
            for workers, pick in ((fewest, min), (fewest, max), (most, max), (most, min))
        ]

    def _batches_of(self, workers: int, machine: MachineType | None) -> list[int]:
        """Return the batches that fit; none where workers are too few for memory or too many."""
        return [b for b in self.global_batches if self._fits(workers, b, machine)]

    def _fits(self, workers: int, global_batch: int, machine: MachineType | None) -> bool:
        largest = -(-global_batch // workers)
        if global_batch < workers or largest > self.most_local_batch:
            return False
        if machine is None or self.memory is None:
            return True
        return self.memory.fits(largest, machine)


def configure(workers: int, global_batch: int, machine: MachineType | None) -> ClusterConfig:
    """Return the configuration of workers and batch on a machine type."""
    if machine is None:
        return ClusterConfig(workers, global_batch)
    return ClusterConfig(workers, global_batch, machine.workers, machine.key)
