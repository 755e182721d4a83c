"""What was done in a cell, read from its workers' notes, and what of it is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

from scavenger.schemas.jobs import JobPhase, JobView
from service.ledger import MONEY_RESOLUTION
from tests.interruptions.cells import Cell
from tests.interruptions.trainee import BATCH, SAMPLES, SEED, train_undisturbed
from worker_agent.sampler import SampleOrder, SampleRange

CHECKPOINT_EVERY = 1.0
WRITING = 3.0  # until a checkpoint that is due is on the disk of a busy computer
CLOSE = 1e-9  # sums of another number of workers differ in their last digits

Attempt = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Note:
    """An iteration that a worker attempted.

    Attributes:
        leads: Whether it was the leader.
        at: When, in seconds since the epoch.
    """

    worker: str
    iteration: int
    attempt: Attempt
    indices: tuple[int, ...]
    leads: bool
    at: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a cell.

    Attributes:
        wrong: A sentence for each thing that should not be.
        redone: Iterations that were done again.
        left_after: Seconds from a notice until the last iteration of its workers began; None where
            that is not defined.
        asked_after: Seconds from the interruption until another machine was asked for.
        seconds: How long the cell took.
    """

    cell: Cell
    wrong: tuple[str, ...]
    redone: int = 0
    left_after: float | None = None
    asked_after: float | None = None
    seconds: float = 0.0


def read_notes(work: Path) -> tuple[Note, ...]:
    """Return what the workers have noted so far, without a line that is being written."""
    return tuple(note for file in sorted(work.glob("*.jsonl")) for note in notes_in(file))


def notes_in(file: Path) -> Iterator[Note]:
    for line in file.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            told = json.loads(line)
            indices, attempt = tuple(told["indices"]), tuple(told["attempt"])
            yield Note(file.stem, told["iteration"], attempt, indices, told["leads"], told["at"])


def judge(
    cell: Cell, work: Path, view: JobView, bill: float, struck_at: float
) -> tuple[int, tuple[str, ...]]:
    """Return how many iterations were done again, and what is wrong with a job that has ended."""
    notes = read_notes(work)
    by_iteration: dict[int, dict[Attempt, list[Note]]] = {}
    for note in notes:
        by_iteration.setdefault(note.iteration, {}).setdefault(note.attempt, []).append(note)
    again = {number: tries for number, tries in by_iteration.items() if len(tries) > 1}
    wrong = [
        *wrong_in_the_end(work, view),
        *wrong_samples(view, by_iteration),
        *wrong_repetitions(cell, again, struck_at),
        *wrong_money(view, bill),
    ]
    return len(again), tuple(wrong)


def wrong_in_the_end(work: Path, view: JobView) -> Iterator[str]:
    """Yield what the job or its model should have come to."""
    if view.phase is not JobPhase.SUCCEEDED:
        yield f"the job is {view.phase}: {view.reason}"
    number = view.progress.iteration
    ends = [json.loads(file.read_text()) for file in work.glob("*.end")]
    final = [end for end in ends if end["iteration"] == number]
    if not final:
        yield f"no worker has written down its model of iteration {number}"
    expected = undisturbed(number)
    for end in final:
        for name, value in expected.items():
            if abs(end[name] - value) > CLOSE:
                yield f"{name} is {end[name]!r} in the end, undisturbed it is {value!r}"


def wrong_samples(
    view: JobView, by_iteration: dict[int, dict[Attempt, list[Note]]]
) -> Iterator[str]:
    """Yield the first iteration that was never done, or with other samples than its own."""
    for number in range(1, view.progress.iteration + 1):
        tries = by_iteration.get(number, {})
        done = tries[max(tries)] if tries else []
        samples = sorted(sample for note in done for sample in note.indices)
        if samples != sorted(samples_of(number)):
            yield f"iteration {number} was done with {len(samples)} samples, some not its own"
            return


def wrong_repetitions(
    cell: Cell, again: dict[int, dict[Attempt, list[Note]]], struck_at: float
) -> Iterator[str]:
    """Yield iterations that were done again though no checkpoint excuses it."""
    if cell.has_notice and again:
        yield f"{len(again)} iterations were done again, from {min(again)} to {max(again)}"
    kept_until = struck_at - CHECKPOINT_EVERY - WRITING
    early = [
        number
        for number, tries in again.items()
        if any(note.at < kept_until for notes in tries.values() for note in notes)
    ]
    if early and not cell.has_notice:
        yield f"iterations {min(early)} to {max(early)} were done again, from before a checkpoint"


def wrong_money(view: JobView, bill: float) -> Iterator[str]:
    """Yield where the bill is above the ledger, or that above the cap."""
    accrued, cap = view.cost.accrued.amount, view.cost.cap
    if Decimal(bill) > accrued + 1000 * MONEY_RESOLUTION:  # a page rounds each machine
        yield f"the bill is ${bill:.6f}, and the ledger has ${accrued:.6f}"
    if cap is not None and accrued > cap.amount:
        yield f"${accrued:.6f} is above the cap"


def samples_of(number: int) -> list[int]:
    """Return the samples of an iteration, counted from 1."""
    share = SampleRange((number - 1) * BATCH, BATCH)
    return [int(index) for index in SampleOrder(SAMPLES, SEED).indices(share)]


@lru_cache
def undisturbed(iterations: int) -> dict[str, float]:
    """Return the result of so many iterations on one worker without an agent."""
    return dict(train_undisturbed([samples_of(n) for n in range(1, iterations + 1)]))
