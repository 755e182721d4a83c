"""``scavenger list``, ``show`` and ``cancel``, and the tables of jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Group, RenderableType
from rich.text import Text

from scavenger.cli.errors import ConfirmationRequired
from scavenger.cli.options import JobArgument, OneProjectOption, OutputOption, SinceOption, find_job
from scavenger.cli.output import (
    Cell,
    OutputFormat,
    ResponsiveTable,
    draw_bar,
    format_amount,
    format_config,
    format_milliseconds,
    format_number,
    format_percent,
    format_seconds,
    get_terminal,
    long_name_column,
    number_column,
    plain_text,
    render_facts,
    word_column,
)
from scavenger.client.errors import error_of_job
from scavenger.errors import ExitCode
from scavenger.schemas.jobs import IndicatorsView, JobPhase, JobView, ProgressView

LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Maximum number of jobs to list.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


PhaseOption = Annotated[
    list[JobPhase] | None,
    typer.Option("--phase", help="Only jobs in this phase; again for others.", metavar="PHASE"),
]
ModelKeyOption = Annotated[
    str | None, typer.Option("--model", help="Only jobs with this model key.", metavar="KEY")
]
MatchOption = Annotated[
    str | None,
    typer.Option("--match", help="Only jobs whose name or id begins with it.", metavar="TEXT"),
]


def list_jobs(
    context: typer.Context,
    limit: LimitOption = 20,
    phase: PhaseOption = None,
    model: ModelKeyOption = None,
    project: OneProjectOption = None,
    since: SinceOption = None,
    match: MatchOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List jobs, newest first."""
    terminal = get_terminal(context)
    filters = {
        "phase": ",".join(phase) if phase else None,
        "model": model,
        "project": project,
        "since": None if since is None else since.isoformat(),
        "q": match,
    }
    wanted = {name: text for name, text in filters.items() if text}
    with terminal.connect() as client:
        found = client.list_jobs(limit, wanted)
    if found.jobs or output is not OutputFormat.TABLE:
        terminal.print_result(found, output, render_jobs(found.jobs))
    if not found.jobs:
        none = "No job matches." if wanted else "No jobs yet. Next: scavenger submit job.yaml"
        terminal.print_message(none)
    if found.next_cursor is not None:
        terminal.print_message(f"There are more: scavenger list --limit {10 * limit}")


def show(
    context: typer.Context, job: JobArgument, output: OutputOption = OutputFormat.TABLE
) -> None:
    """Show one job in detail."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = find_job(client, job)
    terminal.print_result(found, output, render_job(found))


def cancel(context: typer.Context, job: JobArgument, yes: YesOption = False) -> None:
    """Cancel a job: its workers stop. What it learned about its model is kept."""
    terminal = get_terminal(context)
    with terminal.connect() as client:
        found = find_job(client, job)
        if not (yes or found.phase.is_final):
            if not terminal.is_interactive:
                raise ConfirmationRequired(confirmation_question(found), "--yes")
            typer.confirm(confirmation_question(found), abort=True, err=True)
        cancelled = client.cancel(found.id)
    terminal.write_line(cancelled.id)
    terminal.print_message(f"Cancelling {cancelled.id}. Next: scavenger watch {cancelled.id}")


def confirmation_question(job: JobView) -> str:
    """Ask whether to cancel a job, and say what is given up."""
    done = f"{phase_word(job)}, {format_percent(progress_fraction(job))} done"
    return f"Cancel {job.name} ({job.id}; {done}, {format_amount(job.cost.accrued)} spent)?"


PHASE_ICONS = {
    JobPhase.PENDING: ("○", "dim"),
    JobPhase.STARTING: ("◔", "cyan"),
    JobPhase.PROBING: ("◎", "cyan"),
    JobPhase.TRAINING: ("▶", "blue"),
    JobPhase.SUCCEEDED: ("✔", "green"),
    JobPhase.FAILED: ("✗", "red"),
    JobPhase.CANCELLED: ("■", "dim"),
    JobPhase.CAPPED: ("▲", "yellow"),
}
PAUSED_ICON = ("‖", "yellow")


JOB_COLUMNS = (
    word_column("ID"),
    long_name_column("NAME"),
    word_column("PHASE", 1),
    word_column("CONFIG", 3),
    number_column("DONE", 4),
    number_column("SPENT", 2),
    number_column("TIME", 5),
)


def render_jobs(jobs: Sequence[JobView]) -> RenderableType:
    """Render a table of jobs."""
    return ResponsiveTable(JOB_COLUMNS, [_job_row(job) for job in jobs], gap=1)


def _job_row(job: JobView) -> tuple[Cell, ...]:
    return (
        plain_text(job.id),
        plain_text(job.name),
        render_phase(job),
        format_config(job.applied or job.target),
        format_percent(progress_fraction(job)),
        format_amount(job.cost.accrued),
        format_seconds(job.elapsed),
    )


def render_phase(job: JobView) -> Text:
    """Render a phase with a symbol of its own: some terminals and readers have no colour."""
    icon, style = PAUSED_ICON if job.is_paused else PHASE_ICONS[job.phase]
    return Text(f"{icon} {phase_word(job)}", style)


def phase_word(job: JobView) -> str:
    """Write the phase of a job; one that an order has paused runs nothing in any phase."""
    return "paused" if job.is_paused else job.phase.value


def progress_fraction(job: JobView) -> float:
    """Return progress as a share of the epochs expected, 0 to 1."""
    if job.phase is JobPhase.SUCCEEDED:
        return 1.0
    goal = job.progress.expected_epochs or job.progress.max_epochs
    return min(max(job.progress.epochs / goal, 0.0), 1.0) if goal > 0 else 0.0


def render_job(job: JobView) -> RenderableType:
    """Render one job in detail."""
    title = Text.assemble((job.id, "bold"), "  ", plain_text(job.name), "  ", render_phase(job))
    return Group(title, render_facts(job_facts(job)))


def job_facts(job: JobView) -> list[tuple[str, str]]:
    """Return the facts of a job, one per line."""
    begun = f"{'from' if job.phase.is_final else 'since'} {job.created_at:%Y-%m-%d %H:%M:%S} UTC"
    facts = [
        ("reason", job.reason),
        ("model", job.model_key),
        *running_facts(job, bar_width=20),
        ("time", f"{format_seconds(job.elapsed)} {begun}"),
    ]
    # While a probe is the reason of the phase, it is told once.
    told = {"search": job.reason}
    return [(label, fact) for label, fact in facts if fact and told.get(label) != fact]


def running_facts(job: JobView, bar_width: int) -> list[tuple[str, str]]:
    """Return the facts of a job that change while it runs."""
    facts = [
        ("search", job.search),
        ("runs", describe_config_change(job)),
        ("progress", progress_line(job, bar_width)),
        ("metrics", metrics_line(job.progress)),
        ("diverged", job.progress.diverged or ""),
        *indicator_facts(job.indicators),
        ("cost", cost_line(job)),
    ]
    return [(label, fact) for label, fact in facts if fact]


def describe_config_change(job: JobView) -> str:
    """Write the configuration that runs, and the target where it differs."""
    applied, target = format_config(job.applied), format_config(job.target)
    change = "" if job.applied == job.target or job.phase.is_final else f" → {target}"
    alive = f"{job.workers_alive} alive"
    return f"{applied}{change} · generation {job.generation} · {alive}"


def progress_line(job: JobView, width: int) -> str:
    """Draw progress against the epochs expected, or allowed where no expectation is known."""
    progress = job.progress
    share = progress_fraction(job)
    if progress.expected_epochs is None:
        goal = f"of at most {format_number(progress.max_epochs)} epochs"
    else:
        expected = format_number(progress.expected_epochs)
        goal = f"of ≈{expected} epochs (at most {format_number(progress.max_epochs)})"
    done = (
        f"{draw_bar(share, width)} {format_percent(share)}  {format_number(progress.epochs)} {goal}"
    )
    return f"{done} · iteration {progress.iteration}"


def metrics_line(progress: ProgressView) -> str:
    """Write the last value of every metric that the script logged."""
    return " · ".join(f"{name} {format_number(value)}" for name, value in progress.metrics.items())


def indicator_facts(indicators: IndicatorsView | None) -> list[tuple[str, str]]:
    """Return gradient noise and the parts of an iteration's time."""
    if indicators is None:
        return []
    noise = (
        f"γ_n {format_number(indicators.noise)} · φ {format_number(indicators.noise_scale)} samples"
    )
    return [("noise", noise), ("iteration", step_time_line(indicators))]


def step_time_line(indicators: IndicatorsView) -> str:
    """Draw an iteration as compute (full) and synchronization (shaded)."""
    total = indicators.step_time
    share = indicators.compute_time / total if total > 0 else 0.0
    drawn = draw_bar(share, 10).replace("░", "▒")
    times = (total, indicators.compute_time, indicators.sync_time)
    step, compute, sync = map(format_milliseconds, times)
    return f"{drawn} τ {step} = compute {compute} + sync {sync}"


def cost_line(job: JobView) -> str:
    """Write spending, cap and forecast."""
    cost = job.cost
    cap = "no cap" if cost.cap is None else f"cap {format_amount(cost.cap)}"
    forecast = "" if cost.forecast is None else f" · ≈{format_amount(cost.forecast)} in the end"
    spent, search = format_amount(cost.accrued), format_amount(cost.search)
    return f"{spent} spent, {search} of it searching · {cap}{forecast}"


def exit_code_of_job(job: JobView) -> ExitCode:
    """Return the exit code of a command that watched a job to its end.

    Raises:
        ValueError: The job has not ended.
    """
    error = error_of_job(job)
    return ExitCode.SUCCESS if error is None else error.exit_code
