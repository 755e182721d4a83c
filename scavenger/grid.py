"""Grid: many configurations as columns, so that laws predict a hundred thousand at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.machine import MachineType

Floats = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """Configurations as columns of one length, in the order of the space they come from.

    Attributes:
        workers: K of each configuration.
        global_batch: B of each configuration, samples.
        workers_per_machine: Workers that share one VM.
        type_of: Index into ``machine_types`` of each configuration.
        machine_types: Keys of the machine types in use.
    """

    workers: Floats
    global_batch: Floats
    workers_per_machine: Floats
    type_of: Indices
    machine_types: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def local_batch(self) -> Floats:
        """Mean samples per worker and iteration, b = B / K."""
        return self.global_batch / self.workers

    @property
    def machines(self) -> Floats:
        """VMs of each configuration."""
        return np.ceil(self.workers / self.workers_per_machine)

    def config(self, row: int) -> ClusterConfig:
        """Return one row as a configuration."""
        return ClusterConfig(
            int(self.workers[row]),
            int(self.global_batch[row]),
            int(self.workers_per_machine[row]),
            self.machine_types[self.type_of[row]],
        )

    def rows(self, rows: Indices | NDArray[np.bool_]) -> Grid:
        """Return some of the rows."""
        return Grid(
            self.workers[rows],
            self.global_batch[rows],
            self.workers_per_machine[rows],
            self.type_of[rows],
            self.machine_types,
        )


def grid_of(configs: Iterable[ClusterConfig]) -> Grid:
    """Put configurations into columns."""
    listed = list(configs)
    types = tuple(dict.fromkeys(config.machine_type for config in listed)) or ("",)
    index = {key: number for number, key in enumerate(types)}
    return Grid(
        np.array([config.workers for config in listed], dtype=float),
        np.array([config.global_batch for config in listed], dtype=float),
        np.array([config.workers_per_machine for config in listed], dtype=float),
        np.array([index[config.machine_type] for config in listed], dtype=np.intp),
        types,
    )


def lay_out(space: ConfigSpace) -> Grid:
    """Put every configuration of a space into columns, in the order in which it yields them."""
    machines: Sequence[MachineType | None] = space.machine_types or (None,)
    shape = (len(machines), len(space.workers), len(space.global_batches))
    kind, workers, batch = (axis.ravel() for axis in np.indices(shape))
    counts = np.array(space.workers, dtype=float)[workers]
    batches = np.array(space.global_batches, dtype=float)[batch]
    hosted = np.array([1.0 if m is None else float(m.workers) for m in machines])[kind]
    keys = tuple("" if machine is None else machine.key for machine in machines)
    grid = Grid(counts, batches, hosted, kind, keys)
    largest = np.ceil(batches / counts)
    fitting = (batches >= counts) & (largest <= space.most_local_batch)
    if space.memory is not None and space.machine_types:
        room = np.array([m.memory_gib for m in space.machine_types])[kind]
        needed = space.memory.fixed_gib + space.memory.gib_per_sample * largest
        fitting &= needed * hosted <= room
    return grid.rows(fitting)
