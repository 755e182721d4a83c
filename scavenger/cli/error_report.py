"""Reports of what went wrong: what happened, where, and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from rich.console import Group, RenderableType
from rich.table import Table

from scavenger.cli.errors import (
    AmbiguousJob,
    CommandError,
    ControllerDied,
    NeedsAnswer,
    NoCurve,
    NoPlots,
    NoSuchJob,
    NoSuchTable,
    NothingFits,
    NothingHeld,
    UnusableDocument,
)
from scavenger.cli.exit_code import is_infeasible
from scavenger.cli.figures import configuration, counted, money, words
from scavenger.client.errors import (
    ClientError,
    Conflict,
    Invalid,
    NotFound,
    NoToken,
    Refused,
    TooOften,
    Unauthenticated,
    Unreachable,
)
from scavenger.client.profile import profile_file
from scavenger.errors import Problem
from scavenger.view import ErrorDetail, JobView, Phase

Fact = tuple[str, str]
MOST_TABLES = 12


@dataclass(frozen=True, slots=True)
class Report:
    """What to tell a person.

    Attributes:
        headline: What went wrong, in one sentence.
        facts: What happened, where, and what to do, each with its label.
        places: What is wrong at which place of a file, as compilers write it.
    """

    headline: str
    facts: tuple[Fact, ...]
    places: tuple[str, ...] = ()


def show_report(report: Report) -> RenderableType:
    """Show a report: the headline, the places in a file, and labelled facts."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, fact in report.facts:
        grid.add_row(f"  {label}", words(fact))
    headline = words(f"✗ {report.headline}", "bold red")
    return Group(headline, *(words(f"  {place}") for place in report.places), grid)


def report_error(error: ClientError | CommandError) -> Report:
    """Return what to tell about an error."""
    match error:
        case Refused():
            return report_refusal(error)
        case Unreachable():
            where = f" at {error.url}" if error.url else ""
            return Report(
                f"No controller answers{where}",
                (("What happened", str(error)), ("You can", "start it with: scavenger serve")),
            )
        case NoToken():
            remedy = "set SCAVENGER_TOKEN, or pass --token"
            return Report("No token to show", (("What happened", str(error)), ("You can", remedy)))
        case UnusableDocument():
            return report_document(error)
        case NoSuchTable():
            return report_tables(error)
        case NothingFits():
            return Report(str(error), (("You can", "relax --max-cost or --max-time"),))
        case NothingHeld():
            return Report(
                str(error), (("You can", "look at what was found: scavenger admin sweep"),)
            )
        case NoPlots():
            remedy = "pip install 'scavenger[plots]', or leave --plot out"
            return Report(str(error), (("You can", remedy),))
        case NoCurve():
            return report_no_curve(error)
        case NoSuchJob():
            headline = f"No job goes by {error.reference}"
            return Report(headline, (("You can", "look at what there is: scavenger list"),))
        case AmbiguousJob():
            return report_ambiguity(error)
        case NeedsAnswer():
            return Report(error.question, (("You can", f"answer beforehand: pass {error.flag}"),))
        case ControllerDied():
            facts = (("Last lines", error.tail or "none"), ("You can", "try again: scavenger demo"))
            return Report(str(error), facts)
        case _:
            return Report(str(error), ())


def report_refusal(error: Refused) -> Report:
    """Return what to tell about an answer that says no."""
    problem = error.problem
    # The detail of a problem that lists its errors repeats them in one line.
    facts = [("Where", _place(detail)) for detail in problem.errors]
    if problem.detail and not facts:
        facts = [("What happened", problem.detail)]
    facts.append(("You can", remedy_of(error)))
    if problem.request_id:
        facts.append(("Ref", problem.request_id))
    return Report(problem.title, tuple(facts))


def _place(detail: ErrorDetail) -> str:
    line = f"line {detail.line}, column {detail.column or 1}: " if detail.line else ""
    pointer = f"{detail.pointer}: " if detail.pointer else ""
    return f"{line}{pointer}{detail.message}"


def remedy_of(error: Refused) -> str:
    """Return what to do after an answer that says no."""
    match error:
        case Unauthenticated() if error.problem.status == 401:
            return f"name another token in SCAVENGER_TOKEN, or in {profile_file()}"
        case Unauthenticated():
            return "use a token that may do this: scavenger token create makes them"
        case NotFound():
            return f"look at what there is: {list_of(error.path)}"
        case TooOften():
            return "wait a moment and try again"
        case Conflict():
            return f"look at it first: {look_at(error.path)}"
        case Invalid():
            return "correct it and try again"
        case _:
            return "read what the controller logged, then try again"


def list_of(path: str) -> str:
    """Return the command that lists things of the kind that was asked for.

    >>> list_of("/v1/tokens/0/actions/revoke"), list_of("/v1/jobs/job_0/curve")
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


def look_at(path: str) -> str:
    """Return the command that shows the very thing that was asked for, or else all of its kind.

    >>> look_at("/v1/jobs/job_0/actions/cancel"), look_at("/v1/sweeps")
    ('scavenger show job_0', 'scavenger admin sweep')
    """
    match path.split("/"):
        case ["", "v1", "jobs", job, *_]:
            return f"scavenger show {unquote(job)}"
        case _:
            return list_of(path)


def report_no_curve(error: NoCurve) -> Report:
    """Return what to tell about a job that too little is measured of."""
    job = error.job
    remedy = f"wait for its first probe: scavenger watch {job.id}"
    if job.phase.is_final:
        remedy = f"read how it ended: scavenger events {job.id}"
    facts = [("What happened", error.why)] if error.why else []
    return Report(str(error), (*facts, ("You can", remedy)))


def report_document(error: UnusableDocument) -> Report:
    """Return what to tell about a file: each problem as file:line:column."""
    headline = f"{error.source} cannot be used: {counted(len(error.problems), 'problem')}"
    places = tuple(f"{_spot(error.source, each)}: {_message(each)}" for each in error.problems)
    return Report(headline, (("You can", f"correct it and {error.remedy}"),), places)


def _spot(source: str, problem: Problem) -> str:
    return f"{source}:{problem.line}:{problem.column or 1}" if problem.line else source


def _message(problem: Problem) -> str:
    return f"{problem.path}: {problem.message}" if problem.path else problem.message


def report_tables(error: NoSuchTable) -> Report:
    """Return what to tell when a table is not named, or by no name there is."""
    listed = "\n".join(error.names[:MOST_TABLES])
    more = len(error.names) - MOST_TABLES
    names = f"{listed}\nand {more} more" if more > 0 else listed
    if not error.names:
        return Report(str(error), (("You can", "pass a file that has some"),))
    remedy = f"name one: --table '{error.names[0]}'"
    return Report(str(error), (("There are", names), ("You can", remedy)))


def report_ambiguity(error: AmbiguousJob) -> Report:
    """Return what to tell when several jobs fit."""
    listed = "\n".join(error.candidates[:5])
    more = len(error.candidates) - 5
    candidates = f"{listed}\nand {more} more" if more > 0 else listed
    return Report(str(error), (("They are", candidates), ("You can", "write more of the id")))


def report_outcome(job: JobView) -> Report:
    """Return what to tell about a job that ended without success."""
    where = [configuration(job.applied), f"iteration {job.progress.iteration}"]
    if job.worker_exit_code:
        where.append(f"worker's exit code {job.worker_exit_code}")
    where.append(f"{money(job.cost.accrued)} spent")
    return Report(
        f"Job {job.name} ({job.id}) {outcome_of(job)}",
        (
            ("What happened", job.reason or UNSAID),
            ("Where", " · ".join(where)),
            ("You can", f"read how it came to this: scavenger events {job.id}"),
        ),
    )


UNSAID = "the controller gives no reason"


def outcome_of(job: JobView) -> str:
    """Say how a job ended."""
    if job.diverged:
        return "diverged"
    if is_infeasible(job):
        return "cannot meet its limits"
    return "reached a limit" if job.phase is Phase.CAPPED else job.phase.value
