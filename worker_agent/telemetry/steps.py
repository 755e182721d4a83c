"""Reports of measured steps: their sequence numbers, and how reports are cut and merged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from scavenger.measurement.steps import StepColumns
from scavenger.protocol import StepReport


def sequence_after(report: StepReport) -> int:
    """Return the sequence of the row after the last one of a report."""
    return report.sequence + len(report.steps)


def drop_before(report: StepReport, sequence: int) -> StepReport:
    """Return the report without its rows below a sequence."""
    known = sequence - report.sequence
    if known <= 0:
        return report
    steps = report.steps[known:]
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
    steps = StepColumns.concat([part.steps for part in parts])
    return replace(parts[-1], sequence=parts[0].sequence, steps=steps)
