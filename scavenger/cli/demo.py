"""``scavenger demo``: a controller, a job that searches, and the same job again without."""

from __future__ import annotations

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import typer
from rich.text import Text

from scavenger.cli.demo_story import tell_first_job, tell_second_job
from scavenger.cli.error_report import report_outcome, show_report
from scavenger.cli.exit_code import ExitCode, code_of_job
from scavenger.cli.figures import words
from scavenger.cli.option import HomeOption
from scavenger.cli.private_controller import run_controller
from scavenger.cli.sighting import sight
from scavenger.cli.submit import read_spec
from scavenger.cli.terminal import Form, Terminal, terminal_of
from scavenger.cli.watch import show_all
from scavenger.client.client import Client
from scavenger.client.errors import ClientError
from scavenger.job import JobSpec
from scavenger.shipped import shipped
from scavenger.view import CurveView, JobView

FAREWELL = 15.0
INTERVAL = 0.25
LOOK = 0.5  # for how long the other programs are watched
SLACK = 0.5  # of a core that others may use unnoticed

PROLOGUE = (
    "Scavenger chooses how many workers (K) and which global batch (B) a training job should use. "
    "This job starts on the smallest configuration. While it trains, a few others are tried; what "
    "they show gives the cost and time of every one, and the job is resized live to the one that "
    "pays best."
)


def demo(context: typer.Context, home: HomeOption = None) -> None:
    """Show everything on this machine, in a private controller: a job searches, the next need not.

    No account, no cloud. Takes less than two minutes on a quiet computer and leaves nothing behind,
    unless --home names a directory to keep.
    """
    terminal = terminal_of(context)
    spec = read_spec(find_example())
    with directory_for(home) as place, sigterm_as_exit():
        if warning := crowded(busy_cores(), os.cpu_count() or 1, spec.space.workers[-1]):
            terminal.say(words(warning, "yellow"))
        terminal.say(words(f"Starting a private controller in {place}"))
        with (
            run_controller(place, terminal.pause) as profile,
            Client(profile.url, profile.token) as client,
        ):
            code = perform(terminal, client, spec)
    raise typer.Exit(code)


def busy_cores() -> float:
    """Return how many cores programs use now; nothing of the demo runs yet."""
    import psutil

    return psutil.cpu_percent(interval=LOOK) / 100 * (os.cpu_count() or 1)


def crowded(busy: float, cores: int, workers: int) -> str | None:
    """Say so when other programs leave too few cores for the workers; None if they do not.

    Args:
        busy: Cores that other programs use.
        cores: Cores there are.
        workers: The most workers of the job, each of which keeps a core busy.
    """
    if cores - busy >= workers - SLACK:
        return None
    return (
        f"! Other programs use {busy:.1f} of {cores} cores, and this job has up to {workers} "
        "workers: all of it takes longer than on a quiet computer, and its times vary."
    )


def perform(terminal: Terminal, client: Client, spec: JobSpec) -> ExitCode:
    """Run the job twice, tell both stories, and say whether they went as they should."""
    jobs: list[str] = []
    try:
        terminal.data.print(Text(PROLOGUE))
        first, first_curve = train(terminal, client, spec, jobs)
        terminal.data.print(tell_first_job(first, first_curve, width=terminal.data.width))
        if code_of_job(first) is not ExitCode.SUCCESS:
            return give_up(terminal, first)
        second, second_curve = train(terminal, client, spec, jobs)
        terminal.data.print(tell_second_job(first, second, first_curve, second_curve))
        if code_of_job(second) is not ExitCode.SUCCESS:
            return give_up(terminal, second)
    finally:
        leave(terminal, client, jobs)
    return judge(terminal, second_curve)


def train(
    terminal: Terminal, client: Client, spec: JobSpec, jobs: list[str]
) -> tuple[JobView, CurveView]:
    """Run the job to its end, showing it, and remember its id in ``jobs`` from the start."""
    job = client.submit(json.dumps(spec.document()), "json")
    jobs.append(job.id)
    nth = "first" if len(jobs) == 1 else "second"
    title = f"The {nth} job, {job.name}, to {spec.target_in_words}"
    terminal.data.print(Text(f"\n{title}", "bold"))
    ended = show_all(terminal, sight(client, job.id, terminal.pause), Form.TABLE)
    return ended, client.curve(job.id)


def give_up(terminal: Terminal, job: JobView) -> ExitCode:
    """Say which job did not succeed."""
    terminal.say(show_report(report_outcome(job)))
    return code_of_job(job)


def judge(terminal: Terminal, second: CurveView) -> ExitCode:
    """Say whether the second job needed no search."""
    if second.probes:
        terminal.say(words(f"✗ The second job made {len(second.probes)} probes", "bold red"))
        return ExitCode.OTHER
    terminal.say(words("\n✔ Both jobs reached their target, the second without a search", "green"))
    terminal.say(words("Next: scavenger serve, and in your repository: scavenger submit job.yaml"))
    return ExitCode.SUCCESS


def leave(terminal: Terminal, client: Client, jobs: Sequence[str]) -> None:
    """See to it that no worker outlives the controller that counts its cost."""
    with suppress(ClientError):
        for job in jobs:
            if not client.job(job).phase.is_final:
                terminal.say(words(f"Ending {job}, which still runs"))
                client.cancel(job)
        for _ in range(round(FAREWELL / INTERVAL)):
            if not any(client.job(job).workers_alive for job in jobs):
                return
            terminal.pause(INTERVAL)


def find_example() -> Path:
    """Return the document of the job to show."""
    return shipped("examples/digits") / "job.yaml"


@contextmanager
def directory_for(home: Path | None) -> Iterator[Path]:
    """Return the directory to work in; one that nobody named is removed afterwards."""
    if home is not None:
        yield home.expanduser().absolute()
        return
    place = Path(tempfile.mkdtemp(prefix="scavenger-demo-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


@contextmanager
def sigterm_as_exit() -> Iterator[None]:
    """Let a request to end this process stop its controller first."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
