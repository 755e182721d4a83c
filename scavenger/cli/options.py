"""Options and arguments that several commands share, and what they resolve to.

A JOB argument resolves to a job, a range such as ``2..16`` to counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated

import typer

from scavenger.cli.errors import AmbiguousJob, JobNotFound
from scavenger.cli.output import OutputFormat
from scavenger.client.client import Client
from scavenger.job.fields import Bounds, doublings, read_duration, read_range
from scavenger.schemas.jobs import JobView

JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Job id, its beginning or end, a name (newest job of that name), or 'latest'.",
    ),
]
OutputOption = Annotated[
    OutputFormat, typer.Option("-o", "--output", metavar="FORMAT", help="Output format.")
]
NoCapOption = Annotated[
    bool, typer.Option("--no-cap", help="Let the job spend without a limit of cost.")
]
HomeOption = Annotated[
    Path | None,
    typer.Option("--home", help="Data directory of the controller.", file_okay=False),
]


def choice_parser(names: Collection[str]) -> Callable[[str], str]:
    """Return a parser of an option that takes one of some names, such as those of a registry."""

    def parse(text: str) -> str:
        if text not in names:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(names)}")
        return text

    return parse


def parse_counts(text: str) -> Bounds | tuple[int, ...]:
    """Read a range such as ``2..16``, or whole numbers separated by commas.

    Raises:
        typer.BadParameter: The text is neither; the message says what to write.
    """
    parts = text.split(",")
    try:
        if ".." in text:
            return read_range(text, example="2..16")
        counts = tuple(sorted({int(part) for part in parts}))
    except ValueError as error:
        message = str(error) if ".." in text else f"{text!r} is no list of whole numbers"
        raise typer.BadParameter(f"{message}: write e.g. 2..16 or 2,4,8") from None
    if counts[0] < 1:
        raise typer.BadParameter(f"{text!r} must be from 1 up: write e.g. 2..16 or 2,4,8")
    return counts


def expand_counts(text: str | None) -> tuple[int, ...]:
    """Return the counts of an option such as ``2..16``; a range means each number in it."""
    counts = () if text is None else parse_counts(text)
    if not isinstance(counts, Bounds):
        return counts
    return tuple(range(max(counts.low, 1), counts.high + 1))


def expand_batches(text: str | None) -> tuple[int, ...]:
    """Return the batches of an option; a range means its ends and the doublings between them."""
    batches = () if text is None else parse_counts(text)
    if not isinstance(batches, Bounds):
        return batches
    return doublings(max(batches.low, 1), batches.high)


ID_PREFIX = "job_"
LATEST_JOB = "latest"


def find_job(client: Client, reference: str) -> JobView:
    """Return the job that a reference names. The controller searches, so no list is transferred.

    Raises:
        JobNotFound: No job matches: list the jobs.
        AmbiguousJob: Several ids match: write more of the id.
    """
    if reference == LATEST_JOB:
        return pick_job(client.list_jobs(limit=1).jobs, reference)
    return pick_job(client.jobs(q=reference) if reference else (), reference)


def pick_job(jobs: Iterable[JobView], reference: str) -> JobView:
    """Pick from jobs, newest first: the first with that id or name, or the only id that matches."""
    candidates = []
    # Names win over parts of ids, and jobs come newest first: the first exact match is the answer.
    for job in jobs:
        if reference in (LATEST_JOB, job.name, job.id):
            return job
        if is_part_of_id(reference, job.id):
            candidates.append(job)
    if not candidates:
        raise JobNotFound(reference)
    if len(candidates) > 1:
        raise AmbiguousJob(reference, [job.id for job in candidates])
    return candidates[0]


def is_part_of_id(reference: str, job_id: str) -> bool:
    """Tell whether an id, with or without its prefix, begins or ends with a reference.

    >>> [is_part_of_id(text, "job_01JC8Q") for text in ("job_01", "01JC", "C8Q", "1JC", "")]
    [True, True, True, False, False]
    """
    bare = job_id.removeprefix(ID_PREFIX)
    is_start = job_id.startswith(reference) or bare.startswith(reference)
    return bool(reference) and (is_start or bare.endswith(reference))


DAYS_AGO = re.compile(r" *([0-9]{1,5}) *d *")


def parse_moment(text: str) -> datetime:
    """Read a moment: ``8h`` or ``2d`` ago, a date, or RFC 3339; without a zone it is UTC.

    Raises:
        typer.BadParameter: It is none of them; the message says what to write.
    """
    days = DAYS_AGO.fullmatch(text)
    try:
        if days is not None:
            return datetime.now(UTC) - timedelta(days=int(days[1]))
        if text[:4].isdigit() and "-" in text:
            moment = datetime.fromisoformat(text)
            return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return datetime.now(UTC) - timedelta(seconds=read_duration(text))
    except (ValueError, OverflowError):
        example = "write e.g. 8h, 2d, 2026-11-23 or 2026-11-23T19:00:00Z"
        raise typer.BadParameter(f"{text!r} is no moment: {example}") from None


OneProjectOption = Annotated[
    str | None, typer.Option("--project", help="Only what is of this project.", metavar="NAME")
]
SinceOption = Annotated[
    datetime | None,
    typer.Option(
        "--since",
        parser=parse_moment,
        metavar="WHEN",
        help="Only from then on: 8h or 2d ago, a date, or RFC 3339.",
    ),
]
