"""Tables of jobs: the list, and one job in detail."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from scavenger.cli.figures import (
    bar,
    configuration,
    milliseconds,
    money,
    number,
    percent,
    span,
    words,
)
from scavenger.cli.fitted_table import Cell, FittedTable, figure, long_name, name, word
from scavenger.view import IndicatorsView, JobView, Phase, ProgressView

ICONS = {
    Phase.PENDING: ("○", "dim"),
    Phase.STARTING: ("◔", "cyan"),
    Phase.PROBING: ("◎", "cyan"),
    Phase.TRAINING: ("▶", "blue"),
    Phase.SUCCEEDED: ("✔", "green"),
    Phase.FAILED: ("✗", "red"),
    Phase.CANCELLED: ("■", "dim"),
    Phase.CAPPED: ("▲", "yellow"),
}


JOB_COLUMNS = (
    name("ID"),
    long_name("NAME"),
    word("PHASE", 1),
    word("CONFIG", 3),
    figure("DONE", 4),
    figure("SPENT", 2),
    figure("TIME", 5),
)


def show_jobs(jobs: Sequence[JobView]) -> RenderableType:
    """Show jobs as a table, one row each."""
    return FittedTable(JOB_COLUMNS, [job_row(job) for job in jobs], gap=1)


def job_row(job: JobView) -> tuple[Cell, ...]:
    """Return the cells of a job."""
    return (
        words(job.id),
        words(job.name),
        phase_of(job),
        configuration(job.applied or job.target),
        percent(share_done(job)),
        money(job.cost.accrued),
        span(job.elapsed),
    )


def phase_of(job: JobView) -> Text:
    """Show the phase with a shape of its own, because colour alone fails."""
    icon, style = ICONS[job.phase]
    return Text(f"{icon} {job.phase.value}", style)


def share_done(job: JobView) -> float:
    """Return the share of the expected progress that is made, from 0 to 1."""
    if job.phase is Phase.SUCCEEDED:
        return 1.0
    goal = job.progress.expected_epochs or job.progress.max_epochs
    return min(max(job.progress.epochs / goal, 0.0), 1.0) if goal > 0 else 0.0


def show_job(job: JobView) -> RenderableType:
    """Show one job in detail."""
    title = Text.assemble((job.id, "bold"), "  ", words(job.name), "  ", phase_of(job))
    return Group(title, show_facts(job_facts(job)))


def show_facts(facts: Iterable[tuple[str, str]]) -> RenderableType:
    """Show labelled facts, one under the other."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, fact in facts:
        grid.add_row(f"  {label}", words(fact))
    return grid


def job_facts(job: JobView) -> list[tuple[str, str]]:
    """Say everything about a job that fits a line each."""
    facts = [
        ("reason", job.reason),
        ("model", job.model_key),
        ("search", job.search),
        ("runs", running(job)),
        ("progress", progress_line(job, width=20)),
        ("metrics", metrics_line(job.progress)),
        ("diverged", job.progress.diverged or ""),
        *indicator_facts(job.indicators),
        ("cost", cost_line(job)),
        ("time", f"{span(job.elapsed)} since {job.created_at:%Y-%m-%d %H:%M:%S} UTC"),
    ]
    return [(label, fact) for label, fact in facts if fact]


def running(job: JobView) -> str:
    """Say which configuration runs and which one is wanted."""
    applied, target = configuration(job.applied), configuration(job.target)
    change = "" if job.applied == job.target or job.phase.is_final else f" → {target}"
    alive = f"{job.workers_alive} alive"
    return f"{applied}{change} · generation {job.generation} · {alive}"


def progress_line(job: JobView, width: int) -> str:
    """Draw how far training is, against the epochs expected or else allowed."""
    progress = job.progress
    share = share_done(job)
    if progress.expected_epochs is None:
        goal = f"of at most {number(progress.max_epochs)} epochs"
    else:
        expected = number(progress.expected_epochs)
        goal = f"of ≈{expected} epochs (at most {number(progress.max_epochs)})"
    done = f"{bar(share, width)} {percent(share)}  {number(progress.epochs)} {goal}"
    return f"{done} · iteration {progress.iteration}"


def metrics_line(progress: ProgressView) -> str:
    """Say the last value of everything the script logged."""
    return " · ".join(f"{name} {number(value)}" for name, value in progress.metrics.items())


def indicator_facts(indicators: IndicatorsView | None) -> list[tuple[str, str]]:
    """Say how noisy gradients are among their shards, and where the time of an iteration goes."""
    if indicators is None:
        return []
    noise = f"γ_n {number(indicators.noise)} · φ {number(indicators.noise_scale)} samples"
    return [("noise", noise), ("iteration", split_line(indicators))]


def split_line(indicators: IndicatorsView) -> str:
    """Draw an iteration as compute (full) and sync (shaded)."""
    total = indicators.step_time
    share = indicators.compute_time / total if total > 0 else 0.0
    drawn = bar(share, 10).replace("░", "▒")
    return (
        f"{drawn} τ {milliseconds(total)} = compute {milliseconds(indicators.compute_time)}"
        f" + sync {milliseconds(indicators.sync_time)}"
    )


def cost_line(job: JobView) -> str:
    """Say the numbers of money, which are never mixed."""
    cost = job.cost
    cap = "no cap" if cost.cap is None else f"cap {money(cost.cap)}"
    forecast = "" if cost.forecast is None else f" · ≈{money(cost.forecast)} in the end"
    return f"{money(cost.accrued)} spent, {money(cost.search)} of it searching · {cap}{forecast}"
