"""``scavenger list``, ``show`` and ``cancel``: jobs as they are, and their end."""

from __future__ import annotations

from typing import Annotated

import typer

from scavenger.cli.errors import NeedsAnswer
from scavenger.cli.figures import money, percent, words
from scavenger.cli.job_table import share_done, show_job, show_jobs
from scavenger.cli.option import FormOption, JobArgument
from scavenger.cli.reference import find_job
from scavenger.cli.terminal import Form, terminal_of
from scavenger.view import JobView

Limit = Annotated[int, typer.Option("--limit", min=1, help="Show at most so many.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def list_jobs(context: typer.Context, limit: Limit = 20, output: FormOption = Form.TABLE) -> None:
    """List jobs, newest first."""
    terminal = terminal_of(context)
    with terminal.connect() as client:
        found = client.newest_jobs(limit)
    if found.jobs or output is Form.JSON:
        terminal.show(found, output, show_jobs(found.jobs))
    if not found.jobs:
        terminal.say(words("No jobs yet. Next: scavenger submit job.yaml"))
    if found.next_cursor is not None:
        terminal.say(words(f"There are more: scavenger list --limit {10 * limit}"))


def show(context: typer.Context, job: JobArgument, output: FormOption = Form.TABLE) -> None:
    """Show one job in detail."""
    terminal = terminal_of(context)
    with terminal.connect() as client:
        found = find_job(client, job)
    terminal.show(found, output, show_job(found))


def cancel(context: typer.Context, job: JobArgument, yes: Yes = False) -> None:
    """End a job: its workers stop, and what it learnt about the model is kept."""
    terminal = terminal_of(context)
    with terminal.connect() as client:
        found = find_job(client, job)
        if not (yes or found.phase.is_final):
            if not terminal.can_ask:
                raise NeedsAnswer(question(found), "--yes")
            typer.confirm(question(found), abort=True, err=True)
        cancelled = client.cancel(found.id)
    terminal.write(cancelled.id)
    terminal.say(words(f"Ending {cancelled.id}. Next: scavenger watch {cancelled.id}"))


def question(job: JobView) -> str:
    """Ask for the end of a job, and say what is given up."""
    done = f"{job.phase.value}, {percent(share_done(job))} done"
    return f"End {job.name} ({job.id}; {done}, {money(job.cost.accrued)} spent)?"
