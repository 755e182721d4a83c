"""PriceModel: what a configuration costs by the hour and for a whole run (Eq. 5, V-D)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scavenger.cluster import ConfigColumns, Floats, MemoryModel
from scavenger.number_checks import check_not_negative, require_not_negative


@dataclass(frozen=True, slots=True)
class MachinePrice:
    """A price per VM, on demand or spot.

    Attributes:
        price_per_hour: Dollars per VM-hour.
        by_type: Dollars per VM-hour of each machine type, by its key; others cost
            ``price_per_hour``.
    """

    price_per_hour: float
    by_type: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_not_negative(self, "price_per_hour")
        for key, price in self.by_type.items():
            check_not_negative(f"price of {key}", price)

    def per_hour(self, grid: ConfigColumns) -> Floats:
        """Dollars per hour of each whole cluster."""
        prices = [self.by_type.get(key, self.price_per_hour) for key in grid.machine_types]
        return np.asarray(np.array(prices)[grid.type_index] * grid.machines)


@dataclass(frozen=True, slots=True)
class ResourcePrice:
    """Machines of custom size, paid per vCPU and per GiB; memory follows the batch (V-D).

    Attributes:
        vcpu_price_per_hour: Dollars per vCPU-hour.
        gib_price_per_hour: Dollars per GiB-hour.
        vcpus_per_worker: vCPUs each worker gets.
        memory: GiB each worker needs at a local batch.
    """

    vcpu_price_per_hour: float
    gib_price_per_hour: float
    vcpus_per_worker: float
    memory: MemoryModel

    def __post_init__(self) -> None:
        require_not_negative(self, "vcpu_price_per_hour", "gib_price_per_hour", "vcpus_per_worker")

    def per_hour(self, grid: ConfigColumns) -> Floats:
        """Dollars per hour of each whole cluster."""
        memory = self.memory.fixed_gib + self.memory.gib_per_sample * grid.local_batch
        worker = self.vcpu_price_per_hour * self.vcpus_per_worker + self.gib_price_per_hour * memory
        return np.asarray(worker * grid.workers)


WorkerPrice = MachinePrice | ResourcePrice


@dataclass(frozen=True, slots=True)
class ServerPrice:
    """Parameter servers, paid beside the workers; leave them out and they count as free.

    Attributes:
        count: Parameter-server VMs.
        price_per_hour: Dollars per VM-hour.
    """

    count: int
    price_per_hour: float

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must not be negative, got {self.count}")
        require_not_negative(self, "price_per_hour")


@dataclass(frozen=True, slots=True)
class Interruptions:
    """Spot machines are taken back, and the job waits for a replacement each time.

    Attributes:
        per_hour: Interruptions of one machine per hour.
        restart_time: Seconds without progress each time: boot, regroup, lost work.
    """

    per_hour: float
    restart_time: float

    def __post_init__(self) -> None:
        require_not_negative(self, "per_hour", "restart_time")


@dataclass(frozen=True, slots=True)
class PriceModel:
    """What running costs.

    Attributes:
        rate: Price of the workers' machines.
        quantum: Seconds that are billed at once, e.g. 3600 for hourly billing; 0 bills exactly.
        servers: Parameter servers; None to leave them out.
        interruptions: Of spot machines; None on demand.
    """

    rate: WorkerPrice
    quantum: float = 0.0
    servers: ServerPrice | None = None
    interruptions: Interruptions | None = None

    def __post_init__(self) -> None:
        require_not_negative(self, "quantum")

    def per_hour(self, grid: ConfigColumns) -> Floats:
        """Dollars per hour of each configuration, servers included."""
        servers = self.servers
        beside = 0.0 if servers is None else servers.count * servers.price_per_hour
        return np.asarray(self.rate.per_hour(grid) + beside)

    def expected_wall_time(self, grid: ConfigColumns, seconds: Floats) -> Floats:
        """Expected seconds by the clock for seconds of training: interruptions stretch them."""
        if self.interruptions is None:
            return seconds
        risk = self.interruptions.per_hour / 3600 * self.interruptions.restart_time
        return np.asarray(seconds * (1 + risk * grid.machines))

    def costs(self, grid: ConfigColumns, seconds: Floats) -> Floats:
        """Dollars of each configuration for seconds by the clock, C = T K p (Eq. 5)."""
        billed = seconds + np.mod(-seconds, self.quantum) if self.quantum else seconds
        return np.asarray(self.per_hour(grid) * billed / 3600)


def on_demand_price_model(price_per_hour: float) -> PriceModel:
    """Return the plainest price: so many dollars per VM-hour, billed exactly."""
    return PriceModel(MachinePrice(price_per_hour))
