"""`StepRow`: one measured iteration, and the columns that rows become."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace

from scavenger.protocol import StepColumns, StepReport

STEP_COLUMNS = tuple(field.name for field in fields(StepColumns))


@dataclass(frozen=True, slots=True)
class StepRow:
    """One measured iteration and the generation it belongs to."""

    generation: int
    iteration: int
    shards: int
    local_norm_sq: float | None
    mean_norm_sq: float | None
    compute_time: float
    sync_time: float
    step_time: float
    loss: float | None
    mean_compute_time: float
    fastest_compute_time: float


def to_columns(rows: Sequence[StepRow]) -> StepColumns:
    """Turn rows into columns, with None where a norm or loss is not finite."""
    return StepColumns(
        iteration=tuple(row.iteration for row in rows),
        shards=tuple(row.shards for row in rows),
        local_norm_sq=tuple(finite_or_none(row.local_norm_sq) for row in rows),
        mean_norm_sq=tuple(finite_or_none(row.mean_norm_sq) for row in rows),
        compute_time=tuple(seconds_or_invalid(row.compute_time) for row in rows),
        sync_time=tuple(seconds_or_invalid(row.sync_time) for row in rows),
        step_time=tuple(seconds_or_invalid(row.step_time) for row in rows),
        loss=tuple(finite_or_none(row.loss) for row in rows),
        mean_compute_time=tuple(seconds_or_invalid(row.mean_compute_time) for row in rows),
        fastest_compute_time=tuple(seconds_or_invalid(row.fastest_compute_time) for row in rows),
    )


def seconds_or_invalid(value: float) -> float:
    """Return the seconds, or -1 where a clock told none: the controller leaves that row out alone.

    As JSON it would be a null, for which a whole report is refused.
    """
    return value if math.isfinite(value) else -1.0


def finite_or_none(value: float | None) -> float | None:
    """Return the value, or None when it is NaN or infinite."""
    return None if value is None or not math.isfinite(value) else value


def concat_columns(parts: Sequence[StepColumns]) -> StepColumns:
    """Put the rows of all parts into one."""
    if len(parts) == 1:
        return parts[0]
    return StepColumns(
        *(tuple(v for part in parts for v in getattr(part, name)) for name in STEP_COLUMNS)
    )


def sequence_after(report: StepReport) -> int:
    """Return the sequence of the row after the last one of a report."""
    return report.sequence + len(report.steps)


def drop_before(report: StepReport, sequence: int) -> StepReport:
    """Return the report without its rows below a sequence."""
    known = sequence - report.sequence
    if known <= 0:
        return report
    steps = StepColumns(*(getattr(report.steps, name)[known:] for name in STEP_COLUMNS))
    return replace(report, sequence=sequence, steps=steps)


def merge_reports(reports: Iterable[StepReport], most: int) -> Iterator[StepReport]:
    """Merge reports that follow one another in a generation, up to so many rows each."""
    parts: list[StepReport] = []
    for report in reports:
        if parts and not _fits(parts, report, most):
            yield _merged(parts)
            parts = []
        parts.append(report)
    if parts:
        yield _merged(parts)


def _fits(parts: Sequence[StepReport], report: StepReport, most: int) -> bool:
    is_next = report.sequence == sequence_after(parts[-1])
    is_same = report.progress.generation == parts[-1].progress.generation
    return is_next and is_same and sequence_after(report) - parts[0].sequence <= most


def _merged(parts: Sequence[StepReport]) -> StepReport:
    steps = concat_columns([part.steps for part in parts])
    return replace(parts[-1], sequence=parts[0].sequence, steps=steps)
