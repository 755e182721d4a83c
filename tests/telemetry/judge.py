"""Judge: compares what is stored with what was measured, iteration by iteration and in sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from sqlalchemy import Connection, select

from service.db import telemetry, workers
from service.db.schema import chunks, events
from service.db.step_arrays import StepArrays, pack, to_arrays, unpack
from tests.telemetry.producer import BLOCK, block_of, generation


@dataclass(frozen=True, slots=True)
class Judgement:
    """What was found.

    Attributes:
        stored: Rows that are stored.
        dropped: Rows that were given up, and counted.
        wrong: What should not be, in sentences.
    """

    stored: int
    dropped: int
    wrong: tuple[str, ...]


def judge(connection: Connection, job: str, total: int) -> Judgement:
    """Compare all that is stored of a job with what its machines measured."""
    wrong: list[str] = []
    stored = dropped = 0
    kept: list[tuple[str, StepArrays]] = []
    for worker in workers.of_job(connection, job):
        batch = rows_of(connection, worker.worker, wrong)
        numbers = batch["iteration"]
        times, counts = np.unique(numbers, return_counts=True)
        if (counts > 1).any():
            wrong.append(f"{worker.worker}: {times[counts > 1][:5]} stored more than once")
        missing = total - len(times)
        if missing != worker.dropped:
            wrong.append(f"{worker.worker}: {missing} are missing, {worker.dropped} were counted")
        if worker.rejected or worker.next_sequence != total:
            wrong.append(f"{worker.worker}: ended at {worker.next_sequence}")
        true = true_rows(worker.worker, total)
        if not same(batch, true.where(np.isin(true["iteration"], numbers))):
            wrong.append(f"{worker.worker}: what is stored is not what was measured")
        kept.append((worker.worker, true.where(np.isin(true["iteration"], numbers))))
        stored, dropped = stored + len(numbers), dropped + worker.dropped
    wrong += compare_beginnings(connection, job, [batch for _, batch in kept], total)
    query = select(events.c.message).where(events.c.job == job, events.c.kind == "rows_lost")
    wrong += connection.execute(query).scalars()
    return Judgement(stored, dropped, tuple(wrong))


def rows_of(connection: Connection, worker: str, wrong: list[str]) -> StepArrays:
    """Return all rows of a worker in order."""
    query = select(chunks.c.sequence, chunks.c.columns).where(chunks.c.worker == worker)
    parts = []
    for sequence, content in connection.execute(query.order_by(chunks.c.sequence)):
        batch = unpack(content)
        if batch["iteration"].tolist() != list(range(sequence, sequence + len(batch))):
            wrong.append(f"{worker}: the rows from {sequence} on are others")
        parts.append(batch)
    return joined(parts)


def true_rows(worker: str, total: int) -> StepArrays:
    """Return all that a worker measured."""
    blocks = (to_arrays(block_of(worker, place)) for place in range(-(-total // BLOCK)))
    return joined(list(blocks)).where(np.arange(-(-total // BLOCK) * BLOCK) < total)


def joined(parts: list[StepArrays]) -> StepArrays:
    return StepArrays(
        np.concatenate([part.offset for part in parts]),
        np.concatenate([part.values for part in parts], axis=1),
    )


def same(stored: StepArrays, true: StepArrays) -> bool:
    """Whether rows are equal, bit by bit, to how true ones are stored."""
    order = np.argsort(stored["iteration"])
    packed = unpack(pack(true))
    return np.array_equal(stored.values[:, order], packed.values, equal_nan=True)


def compare_beginnings(
    connection: Connection, job: str, kept: list[StepArrays], total: int
) -> list[str]:
    """Return the generations that the database lets begin elsewhere than their rows do."""
    begun: dict[int, int] = {}
    for batch in kept:
        for number in batch["iteration"].astype(int).tolist():
            of = generation(number, total)
            begun[of] = min(number, begun.get(of, number))
    known = telemetry.first_iterations(connection, job)
    return [] if known == begun else [f"{job}: generations begin at {known} instead of {begun}"]
