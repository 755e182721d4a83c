"""``scavenger agent sync``: delivers what machines measured while their controller was away."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from scavenger.cli.error_report import Report, show_report
from scavenger.cli.exit_code import ExitCode
from scavenger.cli.figures import counted, words
from scavenger.cli.terminal import open_console
from scavenger.client.errors import NoToken, Unreachable
from scavenger.client.profile import Profile, find_profile
from scavenger.view import ProblemView
from worker_agent.errors import ControllerRefused, ControllerUnreachable, SpoolUnusable
from worker_agent.telemetry.courier import Courier
from worker_agent.telemetry.delivery import Delivered, deliver
from worker_agent.telemetry.header import Header, find_spools, read_header

AGAIN = "nothing is lost: run the same command again later"
SHOW_IT = "pass the token of an operator: SCAVENGER_TOKEN or --token"
REMEDIES = {
    401: (ExitCode.AUTHENTICATION, SHOW_IT),
    403: (ExitCode.AUTHENTICATION, SHOW_IT),
    404: (ExitCode.NOT_FOUND, "name the controller that ran the job: --controller URL"),
    409: (ExitCode.CONFLICT, "run the same command again when the job has ended"),
}

Directory = Annotated[
    Path,
    typer.Argument(
        help="A spool, or a directory with spools somewhere in it.", exists=True, file_okay=False
    ),
]
Url = Annotated[
    str | None,
    typer.Option("--controller", help="Address of the controller; else the one the spool names."),
]
Token = Annotated[
    str | None,
    typer.Option("--token", help="Token of the controller; better SCAVENGER_TOKEN."),
]


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a spool could not be delivered.

    Attributes:
        code: Exit code that says so.
        report: What to tell a person.
    """

    code: ExitCode
    report: Report


def sync(directory: Directory, controller: Url = None, token: Token = None) -> None:
    """Deliver what machines measured and could not tell while their controller was away.

    Each row is stored once, however often this runs. A spool that was delivered stays, empty.
    """
    console = open_console(is_chatter=True)
    spools = find_spools(directory)
    if not spools:
        remedy = "name the directory that SCAVENGER_SPOOL named, or one above it"
        console.print(show_report(Report(f"No spool in {directory}", (("You can", remedy),))))
        raise typer.Exit(ExitCode.NOT_FOUND)
    failures = []
    for spool in spools:
        failure = bring(console, spool, controller, token)
        if failure is not None:
            console.print(show_report(failure.report))
            failures.append(failure)
    if failures:
        raise typer.Exit(failures[0].code)


def bring(
    console: Console, directory: Path, controller: str | None, token: str | None
) -> Failure | None:
    """Deliver one spool and say how it went; returns what went wrong, if anything did."""
    try:
        header = read_header(directory)
        profile = find_profile(controller or header.controller, token)
        delivered = show_delivery(console, directory, header, profile)
    except (SpoolUnusable, OSError, ValidationError) as error:
        return incomplete(directory, str(error))
    except NoToken as error:
        facts = (("What happened", str(error)), ("You can", "set SCAVENGER_TOKEN, or pass --token"))
        return Failure(ExitCode.AUTHENTICATION, Report(f"{directory} is not delivered", facts))
    except (ControllerUnreachable, Unreachable) as error:
        return unreachable(directory, controller or header.controller, str(error))
    except ControllerRefused as error:
        return refused(directory, controller or header.controller, error)
    if not delivered.is_complete:
        return incomplete(directory, delivered.why)
    told = f"{counted(delivered.rows, 'row')} delivered" if delivered.rows else "nothing to deliver"
    console.print(words(f"✔ {header.worker} of {header.job}: {told}"))
    return None


def show_delivery(console: Console, directory: Path, header: Header, profile: Profile) -> Delivered:
    """Deliver one spool with a bar that grows."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, console=console, transient=True) as progress,
        Courier(profile.url, profile.token) as courier,
    ):
        task = progress.add_task(header.worker, total=None)

        def grow(done: int, waiting: int) -> None:
            progress.update(task, completed=done, total=waiting)

        return deliver(directory, courier, grow)


def incomplete(directory: Path, why: str) -> Failure:
    """Say that a spool, or part of it, cannot be delivered as it is."""
    return Failure(
        ExitCode.OTHER,
        Report(
            f"{directory} is not delivered completely",
            (
                ("What happened", why),
                ("You can", "end the process that uses it, or look at the disk, and run it again"),
            ),
        ),
    )


def unreachable(directory: Path, url: str, why: str) -> Failure:
    """Say that nobody answered."""
    facts = (
        ("What happened", why),
        ("You can", f"name another address: --controller URL. Else {AGAIN}"),
    )
    headline = f"{directory} is not delivered: no controller answers at {url}"
    return Failure(ExitCode.UNREACHABLE, Report(headline, facts))


def refused(directory: Path, url: str, error: ControllerRefused) -> Failure:
    """Say that the controller does not want it."""
    headline = f"{directory} is not delivered: the controller at {url} refuses it"
    code, remedy = REMEDIES.get(error.status, (ExitCode.OTHER, "read what the controller logged"))
    facts = (("What happened", detail_of(error)), ("You can", f"{remedy}; nothing is lost"))
    return Failure(code, Report(headline, facts))


def detail_of(error: ControllerRefused) -> str:
    """Return the sentence of an answer that says no, or all of it."""
    try:
        return ProblemView.model_validate_json(error.text).detail
    except ValidationError:
        return f"status {error.status}: {error.text[:200]}"
