"""`StepRecorder`: collects metrics and completes rows of telemetry; never waits for the device.

A logged tensor is read one iteration later. What the workers agreed on an iteration is read one
iteration later too, and its synchronisation time travels with the next iteration's gradients; so
a row is complete two iterations after its own. Where a GPU computes, tensors and rows come as late
as the GPU does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from scavenger.measurement.steps import StepRow
from worker_agent.frameworks import LateMeasurement, StepSummary, detach_tensor
from worker_agent.step_clock import MAX_ARRIVING, ArrivalQueue
from worker_agent.telemetry.metrics import MetricRecorder

# Columns of a row that the strategy's summary, or its late measurement, has under the same name.
AGREED_COLUMNS = {f.name for f in fields(StepRow)} & {f.name for f in fields(StepSummary)}
LATE_COLUMNS = {f.name for f in fields(StepRow)} & {f.name for f in fields(LateMeasurement)}


@dataclass(frozen=True, slots=True)
class LoggedValue:
    """A value, and the iteration it was logged in."""

    value: Any
    iteration: int

    @property
    def is_late(self) -> bool:
        """Whether it came from a device of its own."""
        return hasattr(self.value, "is_there")

    def is_there(self) -> bool:
        """Whether ``float()`` reads it without waiting; of a tensor, an iteration later."""
        return not self.is_late or bool(self.value.is_there())


class StepRecorder(MetricRecorder):
    """Collects metrics and completes rows.

    Attributes:
        metrics: Last value of everything logged; tensors appear one iteration late or more.
        rows: Rows completed in this generation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, LoggedValue] = {}
        self.waiting: dict[str, ArrivalQueue[LoggedValue]] = {}  # of iterations before
        self.later_numbers: dict[str, LoggedValue] = {}  # logged after a tensor that is not read
        self.late_losses: deque[tuple[int, float]] = deque(maxlen=MAX_ARRIVING)
        self.start_generation()

    def start_generation(self) -> None:
        """Drop rows that are not complete: a row belongs to one generation."""
        self.unagreed: tuple[int, int, float] | None = None
        self.unsynced: StepRow | None = None
        self.first_iteration: int | None = None
        self.late_loss: float | None = None
        self.rows = 0

    def log(self, metrics: Mapping[str, Any], iteration: int) -> None:
        """Record named values; a value that is not a number is skipped and logged once per name.

        Args:
            metrics: The values.
            iteration: Number of the iteration they are logged in.
        """
        for name, value in metrics.items():
            # float() of a tensor would wait for the device in every iteration.
            if (held := detach_tensor(value)) is not None:
                self.tensors[name] = LoggedValue(held, iteration)
                self.later_numbers.pop(name, None)
            elif name in self.tensors or (name in self.waiting and self.waiting[name].waiting):
                # Recorded now, it would be replaced by the older value of the tensor.
                self.later_numbers[name] = LoggedValue(value, iteration)
                self.tensors.pop(name, None)
            else:
                self.record_number(name, value, iteration)

    def read_tensors(self) -> None:
        """Read the tensors of iterations before that are there; this iteration's are kept."""
        for name, later in self.later_numbers.items():
            self._waiting(name).put(later)
        for name, queue in self.waiting.items():
            for logged in queue.take():
                self.record_number(name, logged.value, logged.iteration)
                if logged.is_late and name == "loss":
                    self.late_losses.append((logged.iteration, float(logged.value)))
        for name, held in self.tensors.items():
            self._waiting(name).put(held)
        self.tensors, self.later_numbers = {}, {}

    def _waiting(self, name: str) -> ArrivalQueue[LoggedValue]:
        return self.waiting.setdefault(name, ArrivalQueue())

    def record(
        self, generation: int, iteration: int, step_time: float, summary: StepSummary | None
    ) -> list[StepRow]:
        """Start an iteration's row; returns the rows that became complete.

        Args:
            generation: The generation of the iteration.
            iteration: Its number.
            step_time: Its seconds on the host.
            summary: What was agreed on the iteration before.
        """
        if self.first_iteration is None:
            self.first_iteration = iteration
        if summary is not None and summary.late is not None:
            first = self.first_iteration
            return [self._late_row(generation, first + each.place, each) for each in summary.late]
        complete = None
        if summary is not None and self.unagreed is not None:
            complete = self._complete(*self.unagreed, summary)
        self.unagreed = generation, iteration, step_time
        return [] if complete is None else [complete]

    def _late_row(self, generation: int, iteration: int, measured: LateMeasurement) -> StepRow:
        """Return the row of an earlier iteration, with the loss that was logged in it."""
        while self.late_losses and self.late_losses[0][0] <= iteration:
            self.late_loss = self.late_losses.popleft()[1]
        self.rows += 1
        return StepRow(
            generation=generation,
            iteration=iteration,
            loss=self.metrics.get("loss") if self.late_loss is None else self.late_loss,
            **{name: getattr(measured, name) for name in LATE_COLUMNS},
        )

    def _complete(
        self, generation: int, iteration: int, step_time: float, summary: StepSummary
    ) -> StepRow | None:
        """Fill an iteration's row with what was agreed on it, and complete the one before it."""
        complete = None
        if self.unsynced is not None:
            complete = replace(self.unsynced, sync_time=summary.previous_sync_time)
            self.rows += 1
        self.unsynced = StepRow(
            generation=generation,
            iteration=iteration,
            step_time=step_time,
            sync_time=0.0,
            loss=self.metrics.get("loss"),
            **{name: getattr(summary, name) for name in AGREED_COLUMNS},
        )
        return complete
