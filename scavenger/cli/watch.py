"""``scavenger watch`` and ``events``: a job while it runs.

``follow_updates`` yields an update at each change. A terminal shows a live view, a pipe one line
per change, and ``-o json`` one document per change.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from scavenger.cli.errors import render_report, report_error
from scavenger.cli.jobs import (
    metrics_line,
    phase_word,
    progress_fraction,
    render_phase,
    running_facts,
)
from scavenger.cli.options import JobArgument, OutputOption, find_job
from scavenger.cli.output import (
    OutputFormat,
    Terminal,
    format_amount,
    format_config,
    format_percent,
    format_seconds,
    get_terminal,
    plain_text,
    render_facts,
)
from scavenger.client.client import Client
from scavenger.client.errors import Unreachable, error_of_job
from scavenger.errors import ExitCode
from scavenger.schemas.events import EventList, EventView
from scavenger.schemas.jobs import JobView

RECENT_EVENTS = 5


def watch(
    context: typer.Context, job: JobArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show a job until it ends; exit with the job's code. Ctrl-C stops watching, not the job."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = find_job(client, job)
        raise typer.Exit(follow_job(terminal, client, found.id, output))


def follow_job(
    terminal: Terminal, client: Client, job: str, output_format: OutputFormat
) -> ExitCode:
    """Show a job until it ends or the user presses Ctrl-C."""
    try:
        ended = show_updates(terminal, follow_updates(client, job, terminal.pause), output_format)
    except KeyboardInterrupt:
        return report_detached(terminal, job)
    return report_end(terminal, ended, output_format)


def wait_for_job(terminal: Terminal, client: Client, job: str) -> ExitCode:
    """Wait silently until a job ends or the user presses Ctrl-C."""
    try:
        ended = last_of(update.job for update in follow_updates(client, job, terminal.pause))
    except KeyboardInterrupt:
        return report_detached(terminal, job)
    return report_end(terminal, ended, OutputFormat.TABLE)


def report_detached(terminal: Terminal, job: str) -> ExitCode:
    """Tell that the job goes on."""
    terminal.print_message(f"Detached: {job} keeps running.")
    terminal.print_message(f"Next: scavenger watch {job}    or cancel it: scavenger cancel {job}")
    return ExitCode.INTERRUPTED


def report_end(terminal: Terminal, job: JobView, output_format: OutputFormat) -> ExitCode:
    """Tell how a job ended, and return its exit code."""
    error = error_of_job(job)
    if error is not None:
        terminal.print_message(render_report(report_error(error)))
        return error.exit_code
    if output_format is OutputFormat.TABLE:
        spent = f"{format_seconds(job.elapsed)}, {format_amount(job.cost.accrued)}"
        terminal.print_message(f"✔ {job.reason} ({spent})", "green")
        terminal.print_message(f"Next: scavenger curve {job.id}")
    return ExitCode.SUCCESS


def show_updates(
    terminal: Terminal, updates: Iterator[JobUpdate], output_format: OutputFormat
) -> JobView:
    """Show updates as the output allows, and return the job as it ended."""
    if output_format is not OutputFormat.TABLE:
        return write_changes(terminal, updates, output_format)
    if terminal.can_redraw:
        return show_live_view(terminal, updates)
    return print_lines(terminal, updates)


def show_live_view(terminal: Terminal, updates: Iterator[JobUpdate]) -> JobView:
    """Redraw a view of the job at every update."""
    recent: deque[EventView] = deque(maxlen=RECENT_EVENTS)
    job: JobView | None = None
    with Live(console=terminal.stdout, auto_refresh=False) as live:
        for update in updates:
            job = update.job
            recent.extend(update.new_events)
            width, is_stale = terminal.stdout.width, update.is_stale
            live.update(render_live_view(job, recent, width=width, is_stale=is_stale), refresh=True)
    assert job is not None
    return job


def print_lines(terminal: Terminal, updates: Iterator[JobUpdate]) -> JobView:
    """Print a line for each event and each change of the job."""
    job: JobView | None = None
    was_stale = False
    for update in updates:
        for event in update.new_events:
            terminal.stdout.print(render_event(event, since=update.job.created_at))
        if update.is_stale and not was_stale:
            terminal.print_message(f"! {UNREACHABLE_MESSAGE}")
        if job is None or change_key(job) != change_key(update.job):
            terminal.stdout.print(render_change(update.job))
        job, was_stale = update.job, update.is_stale
    assert job is not None
    return job


def write_changes(
    terminal: Terminal, updates: Iterator[JobUpdate], output_format: OutputFormat
) -> JobView:
    """Write the job for programs at each change."""
    job: JobView | None = None
    for update in updates:
        if job is None or change_key(job) != change_key(update.job):
            terminal.write_update(update.job, output_format)
        job = update.job
    assert job is not None
    return job


def last_of(jobs: Iterable[JobView]) -> JobView:
    """Return the last of at least one."""
    return deque(jobs, maxlen=1)[0]


UNREACHABLE_MESSAGE = "the controller does not answer; the job keeps running, retrying"


def render_live_view(
    job: JobView, recent: Sequence[EventView], *, width: int, is_stale: bool = False
) -> RenderableType:
    """Render a job with its last events.

    Args:
        job: The job.
        recent: Its last events, oldest first.
        width: Width of the terminal in columns.
        is_stale: Whether the controller did not answer the last request.
    """
    title = Text.assemble(
        (job.id, "bold"),
        "  ",
        plain_text(job.name),
        "  ",
        render_phase(job),
        f"  {format_seconds(job.elapsed)}",
    )
    facts = running_facts(job, bar_width=max(10, min(30, width - 70)))
    parts: list[RenderableType] = [title, render_facts(facts)]
    if recent:
        parts += [Text(), render_events(recent, since=job.created_at)]
    if is_stale:
        parts.append(Text(f"! {UNREACHABLE_MESSAGE}", "yellow"))
    return Group(*parts)


def render_change(job: JobView) -> RenderableType:
    """Render a job in one line."""
    parts = [
        f"{format_seconds(job.elapsed)}",
        phase_word(job),
        describe_target(job),
        format_percent(progress_fraction(job)),
        metrics_line(job.progress),
        format_amount(job.cost.accrued),
    ]
    return plain_text(" · ".join(part for part in parts if part))


def describe_target(job: JobView) -> str:
    """Write the configuration that runs, or with an arrow the one that a resize leads to."""
    is_there = job.phase.is_final or job.applied == job.target
    return format_config(job.applied) if is_there else f"→ {format_config(job.target)}"


def change_key(job: JobView) -> tuple[object, ...]:
    """Return what must change for another line to be printed; progress counts in tenths."""
    # Tenths, so that the log of a long job has dozens of lines and not thousands.
    return (phase_word(job), job.target, int(10 * progress_fraction(job)))


FollowOption = Annotated[
    bool, typer.Option("--follow", "-f", help="Print further events until the job ends.")
]


def events(
    context: typer.Context,
    job: JobArgument,
    follow: FollowOption = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what happened to a job, and why. --follow with JSON prints one event per line."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = find_job(client, job)
        if follow:
            raise typer.Exit(follow_events(terminal, client, found.id, output))
        happened = list(client.events(found.id))
    terminal.print_result(EventList(events=happened), output, render_events(happened))


def follow_events(
    terminal: Terminal, client: Client, job: str, output_format: OutputFormat
) -> ExitCode:
    """Print events as they happen."""
    try:
        for update in follow_updates(client, job, terminal.pause):
            for event in update.new_events:
                if output_format is OutputFormat.TABLE:
                    terminal.stdout.print(render_event(event))
                else:
                    terminal.write_update(event, output_format)
    except KeyboardInterrupt:
        return report_detached(terminal, job)
    return ExitCode.SUCCESS


def render_events(events: Iterable[EventView], since: datetime | None = None) -> RenderableType:
    """Render events, oldest first.

    Args:
        events: The events.
        since: Start to count seconds from; None shows date and time in UTC.
    """
    return Group(*(render_event(event, since) for event in events))


def render_event(event: EventView, since: datetime | None = None) -> RenderableType:
    """Render one event: time, kind and message."""
    at = event.at.astimezone(UTC)
    moment = (
        f"{at:%Y-%m-%d %H:%M:%S}Z" if since is None else f"{(at - since).total_seconds():+7.1f}s"
    )
    return HappenedMoment(moment, event.kind, event.message)


LONGEST_KIND = 14  # such as launch_delayed; the rare longer ones push their message aside


LEAST_MESSAGE = 30  # columns of a message beside its moment; it stands below where fewer are left


@dataclass(frozen=True, slots=True)
class HappenedMoment:
    """What happened at a moment, as a line of a list of events."""

    moment: str
    kind: str
    message: str

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[RenderableType]:
        """Render in columns, or the message below where the terminal is narrow."""
        moment, kind = Text(self.moment, "dim"), plain_text(self.kind, "cyan")
        message = plain_text(self.message)
        if options.max_width - max(len(self.moment), 8) - LONGEST_KIND - 4 < LEAST_MESSAGE:
            yield Text.assemble(moment, "  ", kind)
            yield Padding(message, (0, 0, 0, 4))
            return
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True, min_width=8)
        grid.add_column(no_wrap=True, min_width=LONGEST_KIND)
        grid.add_column(overflow="fold")
        grid.add_row(moment, kind, message)
        yield grid


RECONNECT_INTERVAL = 0.5
MAX_SILENCE = 30.0  # longer than a controller takes to restart


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """State of a job after something changed.

    Attributes:
        job: The job.
        new_events: Events since the last update, oldest first.
        is_stale: Whether the controller does not answer, so that ``job`` is what it was before.
    """

    job: JobView
    new_events: tuple[EventView, ...] = ()
    is_stale: bool = False


def follow_updates(client: Client, job: str, pause: Callable[[float], None]) -> Iterator[JobUpdate]:
    """Yield a job at each change; the last update shows it ended, with all its events.

    A stream tells of changes, so nothing is asked while nothing changes. When it ends or breaks,
    another is opened; while a controller restarts, updates are stale.

    Raises:
        Unreachable: The controller did not answer at first, or not for half a minute.
    """
    seen: JobUpdate | None = None
    after, silence = 0, 0.0
    while True:
        try:
            for update in stream_updates(client, job, after):
                seen, silence = update, 0.0
                after = max([after, *(event.sequence for event in update.new_events)])
                yield update
            if seen is not None and seen.job.phase.is_final:
                return
        except Unreachable:
            if seen is None or silence >= MAX_SILENCE:
                raise
            silence += RECONNECT_INTERVAL
            yield JobUpdate(seen.job, is_stale=True)
        pause(RECONNECT_INTERVAL)


def stream_updates(client: Client, job: str, after: int) -> Iterator[JobUpdate]:
    """Yield a job as it is and at each change, until it has ended or its stream does."""
    found: JobView | None = None
    for news in client.listen(job, after):
        if isinstance(news, EventView):
            if news.sequence > after and found is not None:
                after = news.sequence
                yield JobUpdate(found, (news,))
            continue
        found, new_events = client.get_job(job), list[EventView]()
        if news is None or found.phase.is_final:
            # After the look at the job: once it has ended, these are all there will be.
            new_events = list(client.events(job, after))
            after = max([after, *(event.sequence for event in new_events)])
        yield JobUpdate(found, tuple(new_events))
        if found.phase.is_final:
            return
