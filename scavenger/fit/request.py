"""FitRequest: what somebody wants to know about a table of measurements."""

from __future__ import annotations

from dataclasses import dataclass

from scavenger.models.epochs import EpochsSeen, Laws
from scavenger.models.form import Topology
from scavenger.objective import Knee, Objective


@dataclass(frozen=True, slots=True)
class FitRequest:
    """What somebody wants to know about a table.

    Attributes:
        objective: What to choose by.
        price_per_hour: Dollars per machine-hour; None to count machine-hours instead.
        dataset_size: Samples of one epoch; None while unknown, when the curve is relative.
        epochs: Epochs to target at ``at_batch``; None where runs or nothing tells.
        at_batch: Batch ``epochs`` holds at; None for the middle one of the runs, else the least.
        runs: What finished runs took, by batch.
        noise_scale: φ in samples; None for what the table says.
        topology: How gradients travel; None for what the table says, or all-reduce.
        laws: Whether the data choose among forms, or the paper's are taken.
        workers: Worker counts to predict; empty for those that were measured.
        global_batches: Batches to predict; empty for those that were measured.
    """

    objective: Objective = Knee()  # noqa: RUF009
    price_per_hour: float | None = None
    dataset_size: int | None = None
    epochs: float | None = None
    at_batch: int | None = None
    runs: tuple[EpochsSeen, ...] = ()
    noise_scale: float | None = None
    topology: Topology | None = None
    laws: Laws = "measured"
    workers: tuple[int, ...] = ()
    global_batches: tuple[int, ...] = ()
