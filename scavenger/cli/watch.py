"""``scavenger watch``: shows a job until it has ended, and ends as it did."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import typer
from rich.live import Live

from scavenger.cli.error_report import report_outcome, show_report
from scavenger.cli.event_table import show_event
from scavenger.cli.exit_code import ExitCode, code_of_job
from scavenger.cli.figures import money, span, words
from scavenger.cli.live import SILENCE, landmark, show_change, show_live
from scavenger.cli.option import FormOption, JobArgument
from scavenger.cli.reference import find_job
from scavenger.cli.sighting import Sighting, sight
from scavenger.cli.terminal import Form, Terminal, terminal_of
from scavenger.client.client import Client
from scavenger.view import EventView, JobView

RECENT = 5


def watch(context: typer.Context, job: JobArgument, output: FormOption = Form.TABLE) -> None:
    """Show a job until it has ended. Ctrl-C leaves it running. Ends with the job's exit code."""
    terminal = terminal_of(context)
    with terminal.connect() as client:
        found = find_job(client, job)
        raise typer.Exit(accompany(terminal, client, found.id, output))


def accompany(terminal: Terminal, client: Client, job: str, form: Form) -> ExitCode:
    """Show a job until it has ended, or the user has seen enough."""
    try:
        ended = show_all(terminal, sight(client, job, terminal.pause), form)
    except KeyboardInterrupt:
        return detach(terminal, job)
    return conclude(terminal, ended, form)


def wait(terminal: Terminal, client: Client, job: str) -> ExitCode:
    """Wait silently until a job has ended, or the user has waited enough."""
    try:
        ended = last(sighting.job for sighting in sight(client, job, terminal.pause))
    except KeyboardInterrupt:
        return detach(terminal, job)
    return conclude(terminal, ended, Form.TABLE)


def detach(terminal: Terminal, job: str) -> ExitCode:
    """Say that the job goes on."""
    terminal.say(words(f"Detached: {job} goes on."))
    terminal.say(words(f"Next: scavenger watch {job}    or end it: scavenger cancel {job}"))
    return ExitCode.INTERRUPTED


def conclude(terminal: Terminal, job: JobView, form: Form) -> ExitCode:
    """Say how a job ended."""
    code = code_of_job(job)
    if code is not ExitCode.SUCCESS:
        terminal.say(show_report(report_outcome(job)))
    elif form is Form.TABLE:
        spent = f"{span(job.elapsed)}, {money(job.cost.accrued)}"
        terminal.say(words(f"✔ {job.reason} ({spent})", "green"))
        terminal.say(words(f"Next: scavenger curve {job.id}"))
    return code


def show_all(terminal: Terminal, sightings: Iterator[Sighting], form: Form) -> JobView:
    """Show sightings in the form that fits, and return the job as it ended."""
    if form is Form.JSON:
        return show_documents(terminal, sightings)
    if terminal.is_live:
        return show_picture(terminal, sightings)
    return show_lines(terminal, sightings)


def show_picture(terminal: Terminal, sightings: Iterator[Sighting]) -> JobView:
    """Redraw one picture of the job."""
    recent: deque[EventView] = deque(maxlen=RECENT)
    job: JobView | None = None
    with Live(console=terminal.data, auto_refresh=False) as live:
        for sighting in sightings:
            job = sighting.job
            recent.extend(sighting.fresh)
            width, is_stale = terminal.data.width, sighting.is_stale
            live.update(show_live(job, recent, width=width, is_stale=is_stale), refresh=True)
    assert job is not None
    return job


def show_lines(terminal: Terminal, sightings: Iterator[Sighting]) -> JobView:
    """Write a line for each event and each change."""
    job: JobView | None = None
    was_stale = False
    for sighting in sightings:
        for event in sighting.fresh:
            terminal.data.print(show_event(event, since=sighting.job.created_at))
        if sighting.is_stale and not was_stale:
            terminal.say(words(f"! {SILENCE}"))
        if job is None or landmark(job) != landmark(sighting.job):
            terminal.data.print(show_change(sighting.job))
        job, was_stale = sighting.job, sighting.is_stale
    assert job is not None
    return job


def show_documents(terminal: Terminal, sightings: Iterator[Sighting]) -> JobView:
    """Write the job as a line of JSON for each change."""
    job: JobView | None = None
    for sighting in sightings:
        if job is None or landmark(job) != landmark(sighting.job):
            terminal.write(sighting.job.model_dump_json())
        job = sighting.job
    assert job is not None
    return job


def last(jobs: Iterable[JobView]) -> JobView:
    """Return the last of at least one."""
    return deque(jobs, maxlen=1)[0]
