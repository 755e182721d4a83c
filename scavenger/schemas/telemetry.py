"""Schemas of what a job measured and printed: series in time, and the lines of its logs."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from pydantic import ConfigDict, Field

from scavenger.schemas.base import View

# Some names on the wire are words of Python or of pydantic.
NAMED_BY_ALIAS = ConfigDict(serialize_by_alias=True)


class SeriesView(View):
    """One series, as the least and the largest value of each of its buckets.

    A bucket without a value, and one between two parts with nothing measured between them, has
    null: a line ends there and begins anew.

    Attributes:
        at: When each bucket begins.
        low: Least value of each bucket.
        high: Largest value of each bucket.
        nonfinite: Values that were NaN or infinite; no bucket shows them.
    """

    name: str
    unit: str
    at: list[datetime]
    low: list[float | None]
    high: list[float | None]
    nonfinite: int


class TelemetryView(View):
    """Measured series of a job.

    Attributes:
        since: Where they begin, ``from`` in the request; later than that where too much was
            measured for one answer.
        until: Where they end, ``to`` in the request.
        iterations_from: Before this moment iterations are no longer kept, and their series have one
            value for each settled probe, its mean; None where all are kept.
    """

    model_config = NAMED_BY_ALIAS

    since: datetime = Field(alias="from")
    until: datetime = Field(alias="to")
    series: list[SeriesView]
    iterations_from: datetime | None = None


class LogDropView(View):
    """How many lines a job or a machine printed that are not kept, as a stream says it."""

    dropped: int


class LogLineView(View):
    """One line that a command of a job printed.

    Attributes:
        number: Grows over all machines of the job, with gaps.
        at: When it was printed, by the clock of its machine.
    """

    number: int
    machine: str
    role: Literal["worker", "server"]
    at: datetime
    text: str


class LogList(View):
    """One page of the lines that the commands of a job printed, oldest first.

    Attributes:
        dropped: Lines that are not kept, of all machines that were asked for.
    """

    lines: list[LogLineView]
    dropped: int
    next_cursor: str | None = None
