"""``scavenger demo``: trains one job twice in a private controller, first with a search."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.text import Text

from scavenger.cli.dashboard import open_page
from scavenger.cli.demo_report import render_first_job, render_second_job
from scavenger.cli.errors import ControllerStartFailed
from scavenger.cli.jobs import exit_code_of_job
from scavenger.cli.options import HomeOption
from scavenger.cli.output import OutputFormat, Terminal, get_terminal
from scavenger.cli.programs import module_command, require_extra
from scavenger.cli.submit import read_job_file
from scavenger.cli.watch import follow_updates, report_end, show_updates
from scavenger.client.client import Client
from scavenger.client.errors import ClientError
from scavenger.client.profile import CONNECTION_FILE, ConnectionProfile, read_connection
from scavenger.errors import ExitCode
from scavenger.job.spec import JobSpec
from scavenger.resources import resource_path
from scavenger.schemas.curves import CurveView
from scavenger.schemas.jobs import JobView

DEMO_STOP_TIMEOUT = 15.0
DEMO_POLL_INTERVAL = 0.25
LOAD_SAMPLE_TIME = 0.5  # seconds over which the load of other programs is measured
SPARE_CORES = 0.5  # load of other programs that does not change the timings visibly

DemoBrowserOption = Annotated[bool, typer.Option("--no-browser", help="Open no browser.")]
PROLOGUE = (
    "Scavenger chooses how many workers (K) and which global batch (B) a training job should use. "
    "This job starts on the smallest configuration. While it trains, it probes a few others. Their "
    "measurements predict the cost and time of every configuration, and the job is resized live to "
    "the best one."
)


def demo(
    context: typer.Context, home: HomeOption = None, no_browser: DemoBrowserOption = False
) -> None:
    """Train one job twice on this computer: the first searches, the second reuses its model.

    Needs no account and no cloud. Takes less than two minutes on an idle computer and leaves
    nothing behind, unless --home names a directory to keep. On a terminal it opens the page of the
    job in a browser.
    """
    terminal = get_terminal(context)
    require_extra("demo", "sqlalchemy", "uvicorn", "torch", "sklearn")
    spec = read_job_file(example_job_file())
    with demo_directory(home) as place, sigterm_as_exit():
        if warning := load_warning(
            measure_busy_cores(), os.cpu_count() or 1, spec.space.workers[-1]
        ):
            terminal.print_message(warning, "yellow")
        terminal.print_message(
            f"Starting a private controller in {place}; while it runs, another terminal opens its "
            f"dashboard with: SCAVENGER_HOME={place} scavenger dashboard"
        )
        with (
            run_controller(place, terminal.pause, "--simulated-job") as profile,
            Client(profile.url, profile.token) as client,
        ):
            shows_page = terminal.can_redraw and not no_browser
            code = run_demo(terminal, client, spec, shows_page=shows_page)
    raise typer.Exit(code)


def measure_busy_cores() -> float:
    """Return how many cores other programs use; call this before the demo starts its own."""
    import psutil

    return psutil.cpu_percent(interval=LOAD_SAMPLE_TIME) / 100 * (os.cpu_count() or 1)


def load_warning(busy: float, cores: int, workers: int) -> str | None:
    """Return a warning where other programs leave too few cores for the workers, else None.

    Args:
        busy: Cores that other programs use.
        cores: Cores there are.
        workers: The most workers of the job, each of which keeps a core busy.
    """
    if cores - busy >= workers - SPARE_CORES:
        return None
    return (
        f"! Other programs use {busy:.1f} of {cores} cores, and this job has up to {workers} "
        "workers: the demo takes longer than on an idle computer, and its times vary."
    )


def run_demo(
    terminal: Terminal, client: Client, spec: JobSpec, *, shows_page: bool = False
) -> ExitCode:
    """Run the job twice, report on both runs, and return the exit code.

    Args:
        terminal: Where it prints.
        client: Of a controller that is the demo's own.
        spec: The job.
        shows_page: Whether to open the page of the first job in a browser. The controller then
            stays until its user has looked.
    """
    jobs: list[str] = []
    try:
        terminal.stdout.print(Text(PROLOGUE))
        if not shows_page:
            terminal.print_message(f"Its dashboard is at {client.url}/")
        first, first_curve = run_job(
            terminal, client, spec, jobs, "The first job", shows_page=shows_page
        )
        terminal.stdout.print(render_first_job(first, first_curve, width=terminal.stdout.width))
        if exit_code_of_job(first) is not ExitCode.SUCCESS:
            return report_failure(terminal, first)
        second, second_curve = run_job(terminal, client, spec, jobs, "The second job")
        terminal.stdout.print(render_second_job(first, second, first_curve, second_curve))
        if exit_code_of_job(second) is not ExitCode.SUCCESS:
            return report_failure(terminal, second)
    finally:
        cancel_running_jobs(terminal, client, jobs)
    code = report_result(terminal, second_curve)
    if shows_page and terminal.is_interactive:
        with suppress(EOFError, KeyboardInterrupt):
            terminal.stderr.input("The dashboard stays until you press Enter. ")
    return code


def run_job(
    terminal: Terminal,
    client: Client,
    spec: JobSpec,
    jobs: list[str],
    which: str,
    *,
    shows_page: bool = False,
) -> tuple[JobView, CurveView]:
    """Run the job to its end and show it; its id is added to ``jobs`` at once, for the clean-up."""
    job = client.submit(json.dumps(spec.document()), "json")
    jobs.append(job.id)
    if shows_page:
        open_page(terminal, client, f"/jobs/{job.id}/curve")
    title = f"{which}, {job.name}, to {spec.target_text}"
    terminal.stdout.print(Text(f"\n{title}", "bold"))
    updates = follow_updates(client, job.id, terminal.pause)
    ended = show_updates(terminal, updates, OutputFormat.TABLE)
    return ended, client.curve(job.id)


def report_failure(terminal: Terminal, job: JobView) -> ExitCode:
    """Report a job that did not succeed."""
    return report_end(terminal, job, OutputFormat.TABLE)


def report_result(terminal: Terminal, second: CurveView) -> ExitCode:
    """Report whether the second job needed no search."""
    if second.probes:
        terminal.print_message(f"✗ The second job made {len(second.probes)} probes", "bold red")
        return ExitCode.OTHER
    terminal.print_message(
        "\n✔ Both jobs reached their target, the second without a search", "green"
    )
    terminal.print_message(
        "Next: scavenger serve, and in your repository: scavenger submit job.yaml"
    )
    return ExitCode.SUCCESS


def cancel_running_jobs(terminal: Terminal, client: Client, jobs: Sequence[str]) -> None:
    """Cancel running jobs and wait for their workers, before the controller ends."""
    # Local machines are processes of their own, which would keep training after the demo.
    with suppress(ClientError):
        for job in jobs:
            if not client.get_job(job).phase.is_final:
                terminal.print_message(f"Cancelling {job}, which still runs")
                client.cancel(job)
        for _ in range(round(DEMO_STOP_TIMEOUT / DEMO_POLL_INTERVAL)):
            if not any(client.get_job(job).workers_alive for job in jobs):
                return
            terminal.pause(DEMO_POLL_INTERVAL)


def example_job_file() -> Path:
    """Return the document of the example job."""
    return resource_path("examples/digits") / "job.yaml"


@contextmanager
def demo_directory(home: Path | None) -> Iterator[Path]:
    """Yield the directory to work in; a temporary one is removed afterwards."""
    if home is not None:
        yield home.expanduser().absolute()
        return
    place = Path(tempfile.mkdtemp(prefix="scavenger-demo-"))
    try:
        yield place
    finally:
        # A worker that ends late may still write: files that it leaves are not worth an error.
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Turn SIGTERM into SystemExit, so that the controller is stopped before this process ends."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


CONTROLLER_LOG_FILE = "controller.log"
CONTROLLER_LOG_LINES = 10
CONTROLLER_START_TIMEOUT = 60.0
CONTROLLER_STOP_TIMEOUT = 30.0
START_POLL_INTERVAL = 0.1


@contextmanager
def run_controller(
    home: Path, pause: Callable[[float], None], *options: str
) -> Iterator[ConnectionProfile]:
    """Run a controller in a directory, and stop it on every way out.

    Args:
        home: The directory.
        pause: Sleeps for a number of seconds.
        options: Further options of the controller.

    Raises:
        ControllerStartFailed: It did not start; the error has the end of its log.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    before = file_version(home / CONNECTION_FILE)
    with (home / CONTROLLER_LOG_FILE).open("wb") as log:
        process = subprocess.Popen(
            module_command("service", "--port", "0", "--home", str(home), *options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            # Ctrl-C must reach the demo only, which stops its jobs before its controller.
            start_new_session=True,
        )
    try:
        yield wait_until_ready(process, home, before, pause)
    finally:
        stop_process(process)


def wait_until_ready(
    process: subprocess.Popen[bytes],
    home: Path,
    before: tuple[int, int] | None,
    pause: Callable[[float], None],
) -> ConnectionProfile:
    """Wait until a controller has written a new address and answers there."""
    for _ in range(round(CONTROLLER_START_TIMEOUT / START_POLL_INTERVAL)):
        if process.poll() is not None:
            what = f"the controller ended with exit code {process.returncode} before it was ready"
            raise ControllerStartFailed(what, last_lines(home / CONTROLLER_LOG_FILE))
        if file_version(home / CONNECTION_FILE) != before:
            profile = read_connection(home / CONNECTION_FILE)
            if profile is not None and is_healthy(profile):
                return profile
        pause(START_POLL_INTERVAL)
    what = f"the controller was not ready within {CONTROLLER_START_TIMEOUT:.0f} s"
    raise ControllerStartFailed(what, last_lines(home / CONTROLLER_LOG_FILE))


def is_healthy(profile: ConnectionProfile) -> bool:
    """Tell whether a controller answers."""
    try:
        with Client(profile.url, profile.token) as client:
            return client.get_health().status == "ok"
    except ClientError:
        return False


def stop_process(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process, and kill it if it does not end."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
        process.wait(CONTROLLER_STOP_TIMEOUT)
    if process.poll() is None:
        process.kill()
        process.wait()


def file_version(path: Path) -> tuple[int, int] | None:
    """Return what changes when a file is written; None while there is no file."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_mtime_ns


def last_lines(path: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(path.read_text(errors="replace").splitlines()[-CONTROLLER_LOG_LINES:])
