"""Exit codes: what a script learns from a command without reading it."""

from __future__ import annotations

import re
from enum import IntEnum

from scavenger.cli.errors import (
    AmbiguousJob,
    CommandError,
    ControllerDied,
    NeedsAnswer,
    NoCurve,
    NoSuchJob,
    NoSuchTable,
    NothingFits,
    NothingHeld,
    UnusableDocument,
)
from scavenger.client.errors import (
    ClientError,
    Conflict,
    Invalid,
    NotFound,
    NoToken,
    TooOften,
    Unauthenticated,
    Unreachable,
)
from scavenger.view import JobView, Phase

_LIMIT = re.compile(r"\blimits?\b")


class ExitCode(IntEnum):
    """How a command ended; docs/exit-codes.md says when."""

    SUCCESS = 0
    OTHER = 1
    USAGE = 2
    AUTHENTICATION = 4
    NOT_FOUND = 5
    CONFLICT = 6
    INFEASIBLE = 7
    CAPPED = 8
    FAILED = 10
    CANCELLED = 11
    DIVERGED = 13
    UNREACHABLE = 20
    SERVER = 21
    INTERRUPTED = 130


def code_of_job(job: JobView) -> ExitCode:
    """Return the exit code for how a job ended.

    Raises:
        ValueError: The job has not ended.
    """
    match job.phase:
        case Phase.SUCCEEDED:
            return ExitCode.SUCCESS
        case Phase.FAILED | Phase.CAPPED if job.diverged:
            return ExitCode.DIVERGED
        case Phase.FAILED:
            return ExitCode.INFEASIBLE if is_infeasible(job) else ExitCode.FAILED
        case Phase.CANCELLED:
            return ExitCode.CANCELLED
        case Phase.CAPPED:
            return ExitCode.CAPPED
        case Phase.PENDING | Phase.STARTING | Phase.PROBING | Phase.TRAINING:
            raise ValueError(f"job {job.id} has not ended, it is {job.phase}")


def is_infeasible(job: JobView) -> bool:
    """Tell whether a job failed because its limits leave no configuration, not by its command."""
    return (
        job.phase is Phase.FAILED
        and job.worker_exit_code is None
        and _LIMIT.search(job.reason) is not None
    )


def code_of_error(error: ClientError | CommandError) -> ExitCode:
    """Return the exit code for what went wrong."""
    match error:
        case NoToken() | Unauthenticated():
            return ExitCode.AUTHENTICATION
        case NotFound() | NoSuchJob() | NoSuchTable() | NoCurve():
            return ExitCode.NOT_FOUND
        case Conflict() | NothingHeld():
            return ExitCode.CONFLICT
        case Invalid() | UnusableDocument() | AmbiguousJob() | NeedsAnswer():
            return ExitCode.USAGE
        case NothingFits():
            return ExitCode.INFEASIBLE
        case Unreachable() | TooOften():
            return ExitCode.UNREACHABLE
        case ControllerDied():
            return ExitCode.SERVER
        case ClientError():
            return ExitCode.SERVER
        case _:
            return ExitCode.OTHER
