"""`StepRecorder`: collects metrics and completes rows of telemetry; never waits for the device.

A logged tensor is read one iteration later. What the workers agreed on an iteration is read one
iteration later too, and its synchronisation time travels with the next iteration's gradients; so
a row is complete two iterations after its own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Literal

from scavenger.measurement.steps import StepRow
from scavenger.protocol import NotFinite
from worker_agent.frameworks import StepSummary, detach_tensor

MAX_METRIC_NAME = 256
# What float() of a script's own object may raise.
CONVERSION_ERRORS = (
    TypeError,
    ValueError,
    RuntimeError,
    ArithmeticError,
    LookupError,
    AttributeError,
)

log = logging.getLogger(__name__)

# Columns of a row that the strategy's summary has under the same name.
AGREED_COLUMNS = {f.name for f in fields(StepRow)} & {f.name for f in fields(StepSummary)}

LoggedValue = tuple[Any, int]  # a value, and the iteration it was logged in


class StepRecorder:
    """Collects metrics and completes rows.

    Attributes:
        metrics: Last value of everything logged; tensors appear one iteration late.
        not_finite: Metrics that were NaN or infinite at some time.
        has_changed: Whether a value became NaN or infinite, or finite again, since this was unset.
        rows: Rows completed in this generation.
    """

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.not_finite: dict[str, NotFinite] = {}
        self.has_changed = False
        self.last_finite: dict[str, float] = {}  # of what is not finite now
        self.tensors: dict[str, LoggedValue] = {}
        self.old_tensors: dict[str, LoggedValue] = {}
        self.later_numbers: dict[str, LoggedValue] = {}  # logged after a tensor that is not read
        self.left_out: set[str] = set()
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
                self._record_number(name, value, iteration)

    def read_tensors(self) -> None:
        """Read the tensors logged one iteration ago; this iteration's are kept for the next."""
        for name, (value, iteration) in [*self.old_tensors.items(), *self.later_numbers.items()]:
            self._record_number(name, value, iteration)
        self.old_tensors, self.tensors, self.later_numbers = self.tensors, {}, {}

    def _record_number(self, name: str, value: Any, iteration: int) -> None:
        try:
            if not (len(name) <= MAX_METRIC_NAME and name.isprintable()):
                raise ValueError(f"a name is at most {MAX_METRIC_NAME} printable characters")
            number = float(value)
        except CONVERSION_ERRORS as error:
            if name not in self.left_out:
                self.left_out.add(name)
                log.warning("job.log: %.80r is skipped: %s", name, error)
            return
        self._watch(name, number, iteration)
        self.metrics[name] = number

    def _watch(self, name: str, number: float, iteration: int) -> None:
        """Record when a value becomes NaN or infinite, and when it is finite again."""
        before, known = self.metrics.get(name), self.not_finite.get(name)
        if math.isfinite(number):
            if known is not None and known.since is not None:
                self._set_not_finite(name, replace(known, since=None))
            return
        if before is not None and math.isfinite(before):
            self.last_finite[name] = before
        if known is None:
            self._set_not_finite(name, NotFinite(spell_non_finite(number), iteration, iteration))
        elif known.since is None:
            self._set_not_finite(name, replace(known, since=iteration))

    def _set_not_finite(self, name: str, now: NotFinite) -> None:
        self.not_finite[name] = now
        self.has_changed = True

    def finite_metrics(self) -> dict[str, float]:
        """Return the last finite value of each metric that ever had one."""
        known = {
            name: value if math.isfinite(value) else self.last_finite.get(name)
            for name, value in self.metrics.items()
        }
        return {name: value for name, value in known.items() if value is not None}

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


def spell_non_finite(value: float) -> Literal["NaN", "Infinity", "-Infinity"]:
    """Write a value that is not finite.

    >>> [spell_non_finite(float(each)) for each in ("nan", "inf", "-inf")]
    ['NaN', 'Infinity', '-Infinity']
    """
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"
