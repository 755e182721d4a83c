"""Sieve: reads a report and parts the rows that can be used from those that cannot.

A row that is poisoned costs itself and not its report: the others are stored, and the answer says
which were not, and why. A report that cannot be read at all is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from scavenger.protocol import Rejected, StepReport
from service.api.refusal import Refusal
from service.db.batch import Batch, batch_of, useless

T = TypeVar("T")
REPORT = TypeAdapter(StepReport)


@dataclass(frozen=True, slots=True)
class Sieved:
    """A report, and what is left of its rows.

    Attributes:
        message: The report; its columns hold the rows that could be read.
        rows: How many rows it came with.
        batch: Those that can be used.
        rejected: The others, in order.
    """

    message: StepReport
    rows: int
    batch: Batch
    rejected: tuple[Rejected, ...]

    @property
    def following(self) -> int:
        """Number of the row after its last."""
        return self.message.sequence + self.rows


def understand(adapter: TypeAdapter[T], body: bytes) -> T:
    """Read a message; one that cannot be read is refused without repeating it."""
    try:
        return adapter.validate_json(body)
    except ValidationError as error:
        raise unreadable(problems_of(error)[0]) from None


def sift(body: bytes) -> Sieved:
    """Read a report, and judge each of its rows.

    Raises:
        Refusal: It is no report, or something is wrong with it that is in no single row.
    """
    try:
        return judge(REPORT.validate_json(body), {})
    except ValidationError as error:
        poisoned = misread(error)
    content = from_json(body)
    sizes = {len(column) for column in content["steps"].values() if column}
    if len(sizes) > 1:
        raise Refusal("validation", "steps: columns differ in length")
    try:
        return judge(REPORT.validate_python(without(content, poisoned)), poisoned)
    except ValidationError as error:
        raise unreadable(problems_of(error)[0]) from None


def judge(message: StepReport, misread: Mapping[int, str]) -> Sieved:
    """Leave out the rows that no fit could bear.

    Args:
        message: What could be read.
        misread: Why rows could not, by their place in the report.
    """
    batch = batch_of(message.steps)
    rows = len(batch) + len(misread)
    if misread:
        places = np.delete(np.arange(rows), list(misread))
        batch = Batch(places, batch.iteration, batch.shards, batch.series)
    reasons = {**misread, **(unfit := useless(batch))}
    if unfit:
        batch = batch.where(~np.isin(batch.offset, list(unfit)))
    rejected = [Rejected(message.sequence + place, reasons[place]) for place in sorted(reasons)]
    return Sieved(message, rows, batch, tuple(rejected))


def misread(error: ValidationError) -> dict[int, str]:
    """Return why rows could not be read, by their place in the report.

    Raises:
        Refusal: What could not be read is more than rows.
    """
    said: dict[int, str] = {}
    for problem in problems_of(error):
        match problem["loc"]:
            case ("steps", str(name), int(place), *_):
                said.setdefault(place, f"{name}: {problem['msg']}")
            case _:
                raise unreadable(problem)
    return said


def without(content: dict[str, Any], places: Mapping[int, str]) -> dict[str, Any]:
    """Return a report as JSON without the rows in some places."""
    steps = {
        name: [value for place, value in enumerate(column) if place not in places]
        for name, column in content["steps"].items()
    }
    return {**content, "steps": steps}


def problems_of(error: ValidationError) -> list[ErrorDetails]:
    """Return what is wrong, without repeating what was sent."""
    return error.errors(include_url=False, include_context=False, include_input=False)


def unreadable(problem: ErrorDetails) -> Refusal:
    """Say where a message cannot be read."""
    place = ".".join(str(part) for part in problem["loc"])
    return Refusal("validation", f"{place}: {problem['msg']}")
