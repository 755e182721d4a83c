"""`StepRecorder`: collects metrics and completes rows of telemetry; never waits for the device.

A logged tensor is read one iteration later. What the workers agreed on an iteration is read one
iteration later too, and its synchronisation time travels with the next iteration's gradients; so
a row is complete two iterations after its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from scavenger.measurement.steps import StepRow
from worker_agent.frameworks import StepSummary, detach_tensor
from worker_agent.telemetry.metrics import MetricRecorder

# Columns of a row that the strategy's summary has under the same name.
AGREED_COLUMNS = {f.name for f in fields(StepRow)} & {f.name for f in fields(StepSummary)}

LoggedValue = tuple[Any, int]  # a value, and the iteration it was logged in


class StepRecorder(MetricRecorder):
    """Collects metrics and completes rows.

    Attributes:
        metrics: Last value of everything logged; tensors appear one iteration late.
        rows: Rows completed in this generation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, LoggedValue] = {}
        self.old_tensors: dict[str, LoggedValue] = {}
        self.later_numbers: dict[str, LoggedValue] = {}  # logged after a tensor that is not read
        self.start_generation()

    def start_generation(self) -> None:
        """Drop rows that are not complete: a row belongs to one generation."""
        self.unagreed: tuple[int, int, float] | None = None
        self.unsynced: StepRow | None = None
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
                self.tensors[name] = held, iteration
                self.later_numbers.pop(name, None)
            elif name in self.tensors or name in self.old_tensors:
                # Recorded now, it would be replaced by the older value of the tensor.
                self.later_numbers[name] = value, iteration
                self.tensors.pop(name, None)
            else:
                self.record_number(name, value, iteration)

    def read_tensors(self) -> None:
        """Read the tensors logged one iteration ago; this iteration's are kept for the next."""
        for name, (value, iteration) in [*self.old_tensors.items(), *self.later_numbers.items()]:
            self.record_number(name, value, iteration)
        self.old_tensors, self.tensors, self.later_numbers = self.tensors, {}, {}

    def record(
        self, generation: int, iteration: int, step_time: float, summary: StepSummary | None
    ) -> StepRow | None:
        """Start an iteration's row; returns the row that this completes, if any."""
        complete = None
        if summary is not None and self.unagreed is not None:
            complete = self._complete(*self.unagreed, summary)
        self.unagreed = generation, iteration, step_time
        return complete

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
