"""Commands of the agent that need the extra ``cli``: ``sync`` spools and ``selftest`` a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from scavenger.cli.errors import ErrorReport, ExtraNotInstalled, render_report
from scavenger.cli.help import CommandWithPage, ReportingGroup
from scavenger.cli.output import open_console, plain_text, pluralize
from scavenger.client.profile import ConnectionProfile, find_profile
from scavenger.errors import ExitCode, ScavengerError
from scavenger.schemas.problems import ProblemView
from worker_agent.controller import TelemetryUploader
from worker_agent.errors import ControllerRefused, SpoolUnusable
from worker_agent.launcher.audit import audit
from worker_agent.launcher.command import run
from worker_agent.launcher.profile import profile
from worker_agent.selftest import (
    FRAMEWORK_SELFTESTS,
    FrameworkSelftest,
    SelftestFramework,
    installed_frameworks,
    load_selftest,
)
from worker_agent.telemetry.spool import SpoolHeader, find_spools, read_spool_header
from worker_agent.telemetry.upload import replay_spool

app = typer.Typer(
    name="scavenger agent",
    cls=ReportingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

RunArguments = Annotated[list[str] | None, typer.Argument(metavar="[OPTIONS] -- COMMAND...")]


@app.callback()
def root() -> None:
    """Run training scripts beside the agent, upload what it measured, or test this machine."""


@app.command("run", cls=CommandWithPage)
def describe_run(arguments: RunArguments = None) -> None:
    """Run a training command: measured and resized in a job, untouched outside one."""
    # For `scavenger agent --help` only: worker_agent.__main__ takes `run` before it comes here.
    run(arguments or ["--help"])


@app.command("audit", cls=CommandWithPage)
def describe_audit(arguments: RunArguments = None) -> None:
    """Name the lines of a script that make the host wait for the device in every step."""
    # For `scavenger agent --help` only, like `run`.
    audit(arguments or ["--help"])


@app.command("profile", cls=CommandWithPage)
def describe_profile(arguments: RunArguments = None) -> None:
    """Time the blocks of a script's model, to compare its layouts."""
    # For `scavenger agent --help` only, like `run`.
    profile(arguments or ["--help"])


SpoolArgument = Annotated[
    Path,
    typer.Argument(
        metavar="DIR",
        help="A spool, or a directory with spools somewhere in it.",
        exists=True,
        file_okay=False,
    ),
]
ControllerOption = Annotated[
    str | None,
    typer.Option("--url", help="Address of the controller; else the one the spool names."),
]
SyncTokenOption = Annotated[
    str | None,
    typer.Option("--token", help="Token of the controller; better SCAVENGER_TOKEN."),
]


@app.command(cls=CommandWithPage, epilog="Example: scavenger agent sync ~/.scavenger/machines")
def sync(
    directory: SpoolArgument, controller: ControllerOption = None, token: SyncTokenOption = None
) -> None:
    """Upload measurements that machines kept while their controller was away.

    Each row is stored once, however often this runs. An uploaded spool stays, empty.
    """
    console = open_console(is_stderr=True)
    spools = find_spools(directory)
    if not spools:
        remedy = "name the directory that SCAVENGER_SPOOL named, or one above it"
        console.print(
            render_report(ErrorReport(f"No spool in {directory}", (("You can", remedy),)))
        )
        raise typer.Exit(ExitCode.NOT_FOUND)
    codes = []
    for spool in spools:
        url = controller
        try:
            header = read_spool_header(spool)
            url = url or header.controller
            profile = find_profile(url, token)
            rows = upload_with_progress(console, spool, header, profile)
        except (ScavengerError, OSError, ValidationError) as caught:
            # The disk and what lies on it raise errors of their own.
            error = caught if isinstance(caught, ScavengerError) else SpoolUnusable(str(caught))
            console.print(render_report(upload_failure(spool, url, error)))
            codes.append(error.exit_code)
        else:
            result = f"{pluralize(rows, 'row')} delivered" if rows else "nothing to deliver"
            console.print(plain_text(f"✔ {header.worker} of {header.job}: {result}"))
    if codes:
        raise typer.Exit(codes[0])


def upload_with_progress(
    console: Console, directory: Path, header: SpoolHeader, profile: ConnectionProfile
) -> int:
    """Upload one spool with a progress bar; returns how many rows were stored.

    Raises:
        AgentError: Not all of it could be uploaded.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with (
        Progress(*columns, console=console, transient=True) as progress,
        TelemetryUploader(profile.url, profile.token) as uploader,
    ):
        task = progress.add_task(header.worker, total=None)

        def show(sent: int, total: int) -> None:
            progress.update(task, completed=sent, total=total)

        delivered = replay_spool(directory, uploader, show)
    if not delivered.is_complete:
        raise SpoolUnusable(delivered.why)
    return delivered.rows


def upload_failure(directory: Path, url: str | None, error: ScavengerError) -> ErrorReport:
    """Return what to tell about a spool that was not uploaded, or not as a whole."""
    what = problem_detail(error) if isinstance(error, ControllerRefused) else str(error)
    asked = [("Controller", url)] if url else []
    facts = [*asked, ("What happened", what), ("You can", error.remedy)]
    return ErrorReport(f"{directory} is not delivered completely: {error.headline}", facts)


def problem_detail(error: ControllerRefused) -> str:
    """Return the detail of a problem document, or the text of another answer."""
    try:
        return ProblemView.model_validate_json(error.text).detail
    except ValidationError:
        return f"status {error.status}: {error.text[:200]}"


MAX_OVERHEAD = 0.05  # of an iteration, including the machine's own noise
MAX_NOISE_ERROR = 1e-5
MAX_RESIZE_PAUSE = 2.0
MAX_WEIGHT_DIFFERENCE = 1e-9


@dataclass(frozen=True, slots=True)
class SelftestCheck:
    """Result of one check.

    Attributes:
        name: What was checked.
        figure: The measured figure, in words.
        bound: Its bound, in words.
        is_met: Whether the figure is within the bound.
    """

    name: str
    figure: str
    bound: str
    is_met: bool


FrameworkOption = Annotated[
    SelftestFramework | None,
    typer.Option(
        help="What to test; else the one that is installed, PyTorch before TensorFlow.",
        show_default=False,
    ),
]


@app.command(cls=CommandWithPage, epilog="Example: scavenger agent selftest")
def selftest(framework: FrameworkOption = None) -> None:
    """Check the agent on this machine: its overhead, its noise measurement, and a resize."""
    tested = choose_framework(framework)
    console = open_console()
    table = Table(title=f"The agent on this machine, with {tested}")
    for heading in ("check", "measured", "must be", ""):
        table.add_column(heading)
    failed = 0
    for doing, examine in SELFTEST_STAGES:
        with console.status(doing):
            checks = list(run_checks(doing, partial(examine, load_selftest(tested))))
        for check in checks:
            mark = Text("✔", "green") if check.is_met else Text("✘", "red")
            table.add_row(check.name, check.figure, check.bound, mark)
            failed += not check.is_met
    console.print(table)
    if failed:
        console.print(
            f"{failed} of these checks failed. Training under the agent may be slow or wrong here: "
            "repeat the selftest on an idle machine, and report it if it fails again."
        )
        raise typer.Exit(ExitCode.FAILED)
    console.print("All checks passed: scripts with worker_agent.session() train correctly here.")


def choose_framework(wanted: SelftestFramework | None) -> SelftestFramework:
    """Return the framework to test.

    Raises:
        ExtraNotInstalled: It is not installed, or no framework is.
    """
    candidates = installed_frameworks() if wanted is None else [wanted]
    found = [name for name in candidates if name in installed_frameworks()]
    if found:
        return found[0]
    modules = [FRAMEWORK_SELFTESTS[name][0] for name in candidates or FRAMEWORK_SELFTESTS]
    raise ExtraNotInstalled(f"Not installed: {', '.join(modules)}", modules[0])


def run_checks(
    doing: str, examine: Callable[[], Iterator[SelftestCheck]]
) -> Iterator[SelftestCheck]:
    """Run the checks of one stage; a stage that cannot run is a failed check."""
    try:
        yield from examine()
    except (ImportError, OSError, RuntimeError, TimeoutError) as error:
        yield SelftestCheck(doing, f"{type(error).__name__}: {error}", "possible", is_met=False)


def check_overhead(tested: FrameworkSelftest) -> Iterator[SelftestCheck]:
    """Check what the agent adds to an iteration."""
    cost = tested.measure_overhead()
    figure = f"{cost.fraction:+.1%} of {cost.plain * 1000:.1f} ms CPU ({cost.added * 1e6:+.0f} µs)"
    is_met = cost.fraction <= MAX_OVERHEAD
    yield SelftestCheck("overhead", figure, f"at most {MAX_OVERHEAD:.0%}", is_met)


def check_noise(tested: FrameworkSelftest) -> Iterator[SelftestCheck]:
    """Check that the measured noise is right."""
    error = tested.measure_noise_error()
    bound = f"within {MAX_NOISE_ERROR:g} of it"
    yield SelftestCheck(
        "gradient noise",
        f"{error:.1e} from a direct computation",
        bound,
        error <= MAX_NOISE_ERROR,
    )


def check_resizing(tested: FrameworkSelftest) -> Iterator[SelftestCheck]:
    """Check that a resize is quick and loses nothing."""
    seen = tested.measure_resize()
    bound = f"at most {MAX_RESIZE_PAUSE:g} s"
    yield SelftestCheck(
        "grow 1 → 2", f"{seen.growing:.3f} s", bound, seen.growing <= MAX_RESIZE_PAUSE
    )
    yield SelftestCheck(
        "shrink 2 → 1", f"{seen.shrinking:.3f} s", bound, seen.shrinking <= MAX_RESIZE_PAUSE
    )
    yield SelftestCheck(
        "weights afterwards",
        f"{seen.difference:.1e} from one process over {seen.iterations} iterations",
        f"within {MAX_WEIGHT_DIFFERENCE:g} of it",
        seen.difference <= MAX_WEIGHT_DIFFERENCE,
    )


StageFunction = Callable[[FrameworkSelftest], Iterator[SelftestCheck]]

SELFTEST_STAGES: tuple[tuple[str, StageFunction], ...] = (
    ("training with and without the agent in turns", check_overhead),
    ("comparing the gradient noise", check_noise),
    ("resizing a small job", check_resizing),
)
