"""Errors of the command line, and the report of an error that a user reads.

::

    ScavengerError
    └── CommandError
        ├── InvalidInput             a document or a table is invalid: correct its problems
        ├── FileInTheWay             a file would be overwritten: pass the flag, or name another
        ├── PlaceUnusable            a file cannot be read or written: name another place
        ├── TableNotSelected         no table, or several, by this name: name one of those there are
        ├── ExtraNotInstalled        an optional part is missing: install its extra
        ├── BinaryOnTerminal         a picture would be written to a terminal: redirect it to a file
        ├── JobNotFound              no job matches the reference: list the jobs
        ├── AmbiguousJob             several jobs match the reference: write more of the id
        ├── CurveUnavailable         too few measurements for a curve: wait for the first probe
        ├── NothingToExport          nothing of the job is measured: wait for its first iterations
        ├── NothingToConfirm         no machine waits for a confirmation: there is nothing to do
        ├── ReceiverRefused          a receiver refused the test: mend it, and test again
        ├── CapRemoved               a job would lose its cap: pass the flag if that is meant
        ├── ConfirmationRequired     a question without a terminal to ask it on: pass the flag
        └── ControllerStartFailed    the controller of the demo did not start: read its last lines
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType

from scavenger.cli.output import plain_text, pluralize, render_facts
from scavenger.errors import DocumentProblem, ExitCode, ScavengerError
from scavenger.schemas.jobs import JobView

MAX_LISTED_NAMES = 12


class CommandError(ScavengerError):
    """Root of the errors that a command raises on purpose."""


class InvalidInput(CommandError):
    """A job document or a table cannot be used; correct what its problems name.

    Attributes:
        source: The file, as the user wrote it.
        problems: What is wrong, in order of appearance.
        next_step: What to do once it is corrected.
    """

    exit_code = ExitCode.USAGE

    def __init__(
        self, source: str, problems: Sequence[DocumentProblem], next_step: str = "try again"
    ) -> None:
        self.source = source
        self.problems = tuple(problems)
        self.next_step = next_step
        super().__init__(f"{source}: {'; '.join(map(str, self.problems))}")

    @property
    def headline(self) -> str:
        return f"{self.source} cannot be used: {pluralize(len(self.problems), 'problem')}"

    @property
    def locations(self) -> list[str]:
        return [self._locate(problem) for problem in self.problems]

    @property
    def remedy(self) -> str:
        return f"correct it and {self.next_step}"

    # file:line:column is what editors and terminals make clickable.
    def _locate(self, problem: DocumentProblem) -> str:
        position = f":{problem.line}:{problem.column or 1}" if problem.line else ""
        field = f"{problem.path}: " if problem.path else ""
        return f"{self.source}{position}: {field}{problem.message}"


class FileInTheWay(CommandError):
    """A file would be overwritten; pass the flag that allows it.

    Attributes:
        file: The file, as the user wrote it.
    """

    exit_code = ExitCode.CONFLICT
    remedy = "keep it, or replace it: pass --force"

    def __init__(self, file: str) -> None:
        self.file = file
        super().__init__(f"{file} is there already, and was not changed")


class PlaceUnusable(CommandError):
    """The system refuses a file, a directory or the output; name another place, or make room."""

    remedy = "name another place, or let your user write there"

    def __init__(self, error: OSError) -> None:
        place = "the output" if error.filename is None else str(error.filename)
        super().__init__(f"{place} cannot be used: {error.strerror or error}")


class TableNotSelected(CommandError):
    """No table has this name, or several do and one is needed; name one of those there are.

    Attributes:
        names: Tables there are to choose from.
    """

    exit_code = ExitCode.NOT_FOUND

    def __init__(self, what: str, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(what)

    @property
    def details(self) -> list[tuple[str, str]]:
        return [("There are", list_names(self.names, MAX_LISTED_NAMES))] if self.names else []

    @property
    def remedy(self) -> str:
        if not self.names:
            return "pass a file that has some"
        return f"name one: --table '{self.names[0]}'"


class ExtraNotInstalled(CommandError):
    """An optional part of this package is not installed; install its extra."""

    def __init__(self, what: str, extra: str) -> None:
        self.extra = extra
        super().__init__(what)

    @property
    def remedy(self) -> str:
        return f"install it: pip install 'scavenger[{self.extra}]'"


class BinaryOnTerminal(CommandError):
    """A picture would be written to a terminal, which shows it as garbage; redirect it to a file.

    Attributes:
        example: A command that does.
    """

    exit_code = ExitCode.USAGE

    def __init__(self, example: str) -> None:
        self.example = example
        super().__init__("A terminal cannot show this picture")

    @property
    def remedy(self) -> str:
        return f"write it to a file: {self.example}"


class JobNotFound(CommandError):
    """No job matches this reference; list what there is."""

    exit_code = ExitCode.NOT_FOUND
    remedy = "look at what there is: scavenger list"

    def __init__(self, reference: str) -> None:
        self.reference = reference
        super().__init__(f"No job matches {reference or repr(reference)}")


class AmbiguousJob(CommandError):
    """Several jobs match this reference; write more of the id.

    Attributes:
        candidates: Ids that match.
    """

    exit_code = ExitCode.USAGE
    remedy = "write more of the id"

    def __init__(self, reference: str, candidates: Sequence[str]) -> None:
        self.reference = reference
        self.candidates = tuple(candidates)
        super().__init__(f"{len(self.candidates)} jobs match {reference}")

    @property
    def details(self) -> list[tuple[str, str]]:
        return [("They are", list_names(self.candidates, 5))]


class CurveUnavailable(CommandError):
    """Too few measurements of a job for a curve; wait for its first probe, if it goes on.

    Attributes:
        job: The job.
        why: What is missing, as far as the controller says.
    """

    exit_code = ExitCode.NOT_FOUND

    def __init__(self, job: JobView, why: str) -> None:
        self.job = job
        self.why = why
        super().__init__(f"{job.name} ({job.id}) has no curve")

    @property
    def details(self) -> list[tuple[str, str]]:
        return [("What happened", self.why)] if self.why else []

    @property
    def remedy(self) -> str:
        if self.job.phase.is_final:
            return f"read how it ended: scavenger events {self.job.id}"
        return f"wait for its first probe: scavenger watch {self.job.id}"


class NothingToExport(CommandError):
    """Nothing of a job is measured yet, or is kept any more; wait for its first iterations.

    Attributes:
        job: Id of the job.
    """

    exit_code = ExitCode.NOT_FOUND

    def __init__(self, job: str) -> None:
        self.job = job
        super().__init__(f"{job} has no measured series")

    @property
    def remedy(self) -> str:
        return f"look at how far it is: scavenger show {self.job}"


class NothingToConfirm(CommandError):
    """No machine waits for a confirmation; there is nothing to do."""

    exit_code = ExitCode.CONFLICT
    remedy = "look at what was found: scavenger admin sweep"


class ReceiverRefused(CommandError):
    """A webhook's receiver did not take the test; mend what the message says, and test again.

    Attributes:
        webhook: Id of the webhook.
    """

    def __init__(self, webhook: str, why: str) -> None:
        self.webhook = webhook
        super().__init__(why)

    @property
    def headline(self) -> str:
        return f"{self.webhook} did not take the test: {self}"

    @property
    def remedy(self) -> str:
        return f"mend that and test again: scavenger webhook test {self.webhook}"


class CapRemoved(CommandError):
    """A job would lose its cap of cost; pass the flag if that is meant."""

    exit_code = ExitCode.USAGE
    remedy = "name a higher cap: --max-cost '20 USD', or pass --no-cap if no limit is meant"

    def __init__(self, job: str) -> None:
        super().__init__(f"Nothing was done: without max_cost nothing limits what {job} spends")


class ConfirmationRequired(CommandError):
    """A question needs an answer and there is no terminal to ask it on; pass the flag instead."""

    exit_code = ExitCode.USAGE

    def __init__(self, question: str, flag: str) -> None:
        self.flag = flag
        super().__init__(question)

    @property
    def headline(self) -> str:
        return f"Nothing was done, as there is no terminal to ask on: {self}"

    @property
    def remedy(self) -> str:
        return f"answer beforehand: pass {self.flag}"


class ControllerStartFailed(CommandError):
    """The controller of a command ended or never answered; read its last lines."""

    exit_code = ExitCode.SERVER
    remedy = "start the demo again"

    def __init__(self, what: str, tail: str) -> None:
        self.tail = tail
        super().__init__(what)

    @property
    def details(self) -> list[tuple[str, str]]:
        return [("Last lines", self.tail or "none")]


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """What a user reads about an error.

    Attributes:
        headline: What went wrong, in one sentence.
        facts: What happened, where, and what to do, each with its label.
        locations: What is wrong at which place of a file, as compilers write it.
    """

    headline: str
    facts: Sequence[tuple[str, str]]
    locations: Sequence[str] = ()


def report_error(error: ScavengerError) -> ErrorReport:
    """Return what to tell about an error."""
    remedy = [("You can", error.remedy)] if error.remedy else []
    return ErrorReport(error.headline, [*error.details, *remedy], error.locations)


def render_report(report: ErrorReport) -> RenderableType:
    """Render the headline, the places in a file, and labelled facts."""
    headline = plain_text(f"✗ {report.headline}", "bold red")
    locations = [plain_text(f"  {location}") for location in report.locations]
    return Group(headline, *locations, render_facts(report.facts))


def list_names(names: Sequence[str], most: int) -> str:
    """Write the first names, one a line, and how many more there are."""
    more = [f"and {len(names) - most} more"] if len(names) > most else []
    return "\n".join([*names[:most], *more])
