"""Errors of the command line, exit codes, and the report that a user reads.

::

    CommandError
    ├── InvalidInput             a document or a table is invalid: correct what ``problems`` name
    ├── TableNotFound            no table, or several, by this name: name one of those there are
    ├── NoFeasibleConfig         no configuration meets the limits: relax one
    ├── PlottingNotInstalled     matplotlib is missing: install it
    ├── JobNotFound              no job matches the reference: list the jobs
    ├── AmbiguousJob             several jobs match the reference: write more of the id
    ├── CurveUnavailable         too few measurements for a curve: wait for the first probe
    ├── NothingToConfirm         no machine waits for a confirmation: there is nothing to do
    ├── ConfirmationRequired     a question without a terminal to ask it on: pass the flag
    └── ControllerStartFailed    the controller of the demo did not start: read its last lines
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from urllib.parse import unquote

from rich.console import Group, RenderableType
from rich.table import Table

from scavenger.cli.output import format_amount, format_config, plain_text, pluralize
from scavenger.client.errors import (
    AccessDenied,
    ClientError,
    Conflict,
    ErrorResponse,
    InvalidRequest,
    NotFound,
    NoToken,
    RateLimited,
    Unreachable,
)
from scavenger.client.profile import connection_file
from scavenger.errors import DocumentProblem
from scavenger.schemas import ErrorDetail, JobPhase, JobView


class CommandError(Exception):
    """Root of everything a command raises on purpose."""


class InvalidInput(CommandError):
    """A job document or a table cannot be used; correct what its problems name.

    Attributes:
        source: The file, as the user wrote it.
        problems: What is wrong, in order of appearance.
        remedy: What to do once it is corrected.
    """

    def __init__(
        self, source: str, problems: Sequence[DocumentProblem], remedy: str = "submit again"
    ) -> None:
        self.source = source
        self.problems = tuple(problems)
        self.remedy = remedy
        super().__init__(f"{source}: {'; '.join(map(str, self.problems))}")


class TableNotFound(CommandError):
    """No table goes by this name, or several do and one is needed; name one of those there are.

    Attributes:
        names: Tables there are to choose from.
    """

    def __init__(self, what: str, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(what)


class NoFeasibleConfig(CommandError):
    """No configuration meets the limits; relax the one that the message names."""


class PlottingNotInstalled(CommandError):
    """What draws pictures is not installed; install it, or leave the picture out."""


class JobNotFound(CommandError):
    """No job goes by this reference; list what there is."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        super().__init__(f"no job goes by {reference}")


class AmbiguousJob(CommandError):
    """Several jobs go by this reference; write more of the id.

    Attributes:
        candidates: Ids that fit.
    """

    def __init__(self, reference: str, candidates: Sequence[str]) -> None:
        self.reference = reference
        self.candidates = tuple(candidates)
        super().__init__(f"{len(self.candidates)} jobs go by {reference}")


class CurveUnavailable(CommandError):
    """Too little of a job is measured for a curve; wait for its first probe, if it goes on.

    Attributes:
        job: The job.
        why: What keeps it, as far as the controller says.
    """

    def __init__(self, job: JobView, why: str) -> None:
        self.job = job
        self.why = why
        super().__init__(f"{job.name} ({job.id}) has no curve")


class NothingToConfirm(CommandError):
    """No machine waits for a confirmation; there is nothing to do."""


class ConfirmationRequired(CommandError):
    """A question has to be answered and nobody is there; pass the flag instead."""

    def __init__(self, question: str, flag: str) -> None:
        self.question = question
        self.flag = flag
        super().__init__(f"{question} pass {flag}")


class ControllerStartFailed(CommandError):
    """The controller this command started ended or never answered; read its last lines."""

    def __init__(self, what: str, tail: str) -> None:
        self.tail = tail
        super().__init__(what)


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


def exit_code_of_job(job: JobView) -> ExitCode:
    """Return the exit code for how a job ended.

    Raises:
        ValueError: The job has not ended.
    """
    match job.phase:
        case JobPhase.SUCCEEDED:
            return ExitCode.SUCCESS
        case JobPhase.FAILED | JobPhase.CAPPED if job.diverged:
            return ExitCode.DIVERGED
        case JobPhase.FAILED:
            return ExitCode.INFEASIBLE if is_infeasible(job) else ExitCode.FAILED
        case JobPhase.CANCELLED:
            return ExitCode.CANCELLED
        case JobPhase.CAPPED:
            return ExitCode.CAPPED
        case JobPhase.PENDING | JobPhase.STARTING | JobPhase.PROBING | JobPhase.TRAINING:
            raise ValueError(f"job {job.id} has not ended, it is {job.phase}")


def is_infeasible(job: JobView) -> bool:
    """Tell whether a job failed because its limits leave no configuration, not by its command."""
    return (
        job.phase is JobPhase.FAILED
        and job.worker_exit_code is None
        and _LIMIT.search(job.reason) is not None
    )


def exit_code_of_error(error: ClientError | CommandError) -> ExitCode:
    """Return the exit code for what went wrong."""
    match error:
        case NoToken() | AccessDenied():
            return ExitCode.AUTHENTICATION
        case NotFound() | JobNotFound() | TableNotFound() | CurveUnavailable():
            return ExitCode.NOT_FOUND
        case Conflict() | NothingToConfirm():
            return ExitCode.CONFLICT
        case InvalidRequest() | InvalidInput() | AmbiguousJob() | ConfirmationRequired():
            return ExitCode.USAGE
        case NoFeasibleConfig():
            return ExitCode.INFEASIBLE
        case Unreachable() | RateLimited():
            return ExitCode.UNREACHABLE
        case ControllerStartFailed():
            return ExitCode.SERVER
        case ClientError():
            return ExitCode.SERVER
        case _:
            return ExitCode.OTHER


Fact = tuple[str, str]
MAX_LISTED_TABLES = 12


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """What to tell a person.

    Attributes:
        headline: What went wrong, in one sentence.
        facts: What happened, where, and what to do, each with its label.
        locations: What is wrong at which place of a file, as compilers write it.
    """

    headline: str
    facts: tuple[Fact, ...]
    locations: tuple[str, ...] = ()


def render_report(report: ErrorReport) -> RenderableType:
    """Show a report: the headline, the locations in a file, and labelled facts."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, fact in report.facts:
        grid.add_row(f"  {label}", plain_text(fact))
    headline = plain_text(f"✗ {report.headline}", "bold red")
    return Group(headline, *(plain_text(f"  {place}") for place in report.locations), grid)


def report_error(error: ClientError | CommandError) -> ErrorReport:
    """Return what to tell about an error."""
    match error:
        case ErrorResponse():
            return report_error_response(error)
        case Unreachable():
            where = f" at {error.url}" if error.url else ""
            return ErrorReport(
                f"No controller answers{where}",
                (("What happened", str(error)), ("You can", "start it with: scavenger serve")),
            )
        case NoToken():
            remedy = "set SCAVENGER_TOKEN, or pass --token"
            return ErrorReport(
                "No token to show", (("What happened", str(error)), ("You can", remedy))
            )
        case InvalidInput():
            return report_invalid_input(error)
        case TableNotFound():
            return report_table_not_found(error)
        case NoFeasibleConfig():
            return ErrorReport(str(error), (("You can", "relax --max-cost or --max-time"),))
        case NothingToConfirm():
            return ErrorReport(
                str(error), (("You can", "look at what was found: scavenger admin sweep"),)
            )
        case PlottingNotInstalled():
            remedy = "pip install 'scavenger[plots]', or leave --plot out"
            return ErrorReport(str(error), (("You can", remedy),))
        case CurveUnavailable():
            return report_curve_unavailable(error)
        case JobNotFound():
            headline = f"No job goes by {error.reference}"
            return ErrorReport(headline, (("You can", "look at what there is: scavenger list"),))
        case AmbiguousJob():
            return report_ambiguity(error)
        case ConfirmationRequired():
            return ErrorReport(
                error.question, (("You can", f"answer beforehand: pass {error.flag}"),)
            )
        case ControllerStartFailed():
            facts = (("Last lines", error.tail or "none"), ("You can", "try again: scavenger demo"))
            return ErrorReport(str(error), facts)
        case _:
            return ErrorReport(str(error), ())


def report_error_response(error: ErrorResponse) -> ErrorReport:
    """Return what to tell about an answer that says no."""
    problem = error.problem
    # The detail of a problem that lists its errors repeats them in one line.
    facts = [("Where", _describe_detail(detail)) for detail in problem.errors]
    if problem.detail and not facts:
        facts = [("What happened", problem.detail)]
    facts.append(("You can", remedy_of(error)))
    if problem.request_id:
        facts.append(("Ref", problem.request_id))
    return ErrorReport(problem.title, tuple(facts))


def _describe_detail(detail: ErrorDetail) -> str:
    line = f"line {detail.line}, column {detail.column or 1}: " if detail.line else ""
    pointer = f"{detail.pointer}: " if detail.pointer else ""
    return f"{line}{pointer}{detail.message}"


def remedy_of(error: ErrorResponse) -> str:
    """Return what to do after an answer that says no."""
    match error:
        case AccessDenied() if error.problem.status == 401:
            return f"name another token in SCAVENGER_TOKEN, or in {connection_file()}"
        case AccessDenied():
            return "use a token that may do this: scavenger token create makes them"
        case NotFound():
            return f"look at what there is: {list_command_for(error.path)}"
        case RateLimited():
            return "wait a moment and try again"
        case Conflict():
            return f"look at it first: {show_command_for(error.path)}"
        case InvalidRequest():
            return "correct it and try again"
        case _:
            return "read what the controller logged, then try again"


def list_command_for(path: str) -> str:
    """Return the command that lists things of the kind that was asked for.

    >>> list_command_for("/v1/tokens/0/actions/revoke"), list_command_for("/v1/jobs/job_0/curve")
    ('scavenger token list', 'scavenger list')
    """
    match path.split("/"):
        case ["", "v1", "tokens", *_]:
            return "scavenger token list"
        case ["", "v1", "sweeps", *_]:
            return "scavenger admin sweep"
        case ["", "v1", "models", *_]:
            return "scavenger models"
        case _:
            return "scavenger list"


def show_command_for(path: str) -> str:
    """Return the command that shows the very thing that was asked for, or else all of its kind.

    >>> show_command_for("/v1/jobs/job_0/actions/cancel"), show_command_for("/v1/sweeps")
    ('scavenger show job_0', 'scavenger admin sweep')
    """
    match path.split("/"):
        case ["", "v1", "jobs", job, *_]:
            return f"scavenger show {unquote(job)}"
        case _:
            return list_command_for(path)


def report_curve_unavailable(error: CurveUnavailable) -> ErrorReport:
    """Return what to tell about a job that too little is measured of."""
    job = error.job
    remedy = f"wait for its first probe: scavenger watch {job.id}"
    if job.phase.is_final:
        remedy = f"read how it ended: scavenger events {job.id}"
    facts = [("What happened", error.why)] if error.why else []
    return ErrorReport(str(error), (*facts, ("You can", remedy)))


def report_invalid_input(error: InvalidInput) -> ErrorReport:
    """Return what to tell about a file: each problem as file:line:column."""
    headline = f"{error.source} cannot be used: {pluralize(len(error.problems), 'problem')}"
    locations = tuple(
        f"{_location_of(error.source, each)}: {_describe_problem(each)}" for each in error.problems
    )
    return ErrorReport(headline, (("You can", f"correct it and {error.remedy}"),), locations)


def _location_of(source: str, problem: DocumentProblem) -> str:
    return f"{source}:{problem.line}:{problem.column or 1}" if problem.line else source


def _describe_problem(problem: DocumentProblem) -> str:
    return f"{problem.path}: {problem.message}" if problem.path else problem.message


def report_table_not_found(error: TableNotFound) -> ErrorReport:
    """Return what to tell when a table is not named, or by no name there is."""
    listed = "\n".join(error.names[:MAX_LISTED_TABLES])
    more = len(error.names) - MAX_LISTED_TABLES
    names = f"{listed}\nand {more} more" if more > 0 else listed
    if not error.names:
        return ErrorReport(str(error), (("You can", "pass a file that has some"),))
    remedy = f"name one: --table '{error.names[0]}'"
    return ErrorReport(str(error), (("There are", names), ("You can", remedy)))


def report_ambiguity(error: AmbiguousJob) -> ErrorReport:
    """Return what to tell when several jobs fit."""
    listed = "\n".join(error.candidates[:5])
    more = len(error.candidates) - 5
    candidates = f"{listed}\nand {more} more" if more > 0 else listed
    return ErrorReport(str(error), (("They are", candidates), ("You can", "write more of the id")))


def report_job_outcome(job: JobView) -> ErrorReport:
    """Return what to tell about a job that ended without success."""
    where = [format_config(job.applied), f"iteration {job.progress.iteration}"]
    if job.worker_exit_code:
        where.append(f"worker's exit code {job.worker_exit_code}")
    where.append(f"{format_amount(job.cost.accrued)} spent")
    return ErrorReport(
        f"Job {job.name} ({job.id}) {describe_outcome(job)}",
        (
            ("What happened", job.reason or NO_REASON),
            ("Where", " · ".join(where)),
            ("You can", f"read how it came to this: scavenger events {job.id}"),
        ),
    )


NO_REASON = "the controller gives no reason"


def describe_outcome(job: JobView) -> str:
    """Say how a job ended."""
    if job.diverged:
        return "diverged"
    if is_infeasible(job):
        return "cannot meet its limits"
    return "reached a limit" if job.phase is JobPhase.CAPPED else job.phase.value
