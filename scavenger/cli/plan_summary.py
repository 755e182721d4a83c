"""What a job is going to do, said before it does it."""

from __future__ import annotations

from rich.console import RenderableType

from scavenger.cli.figures import counted, span
from scavenger.cli.job_table import show_facts
from scavenger.decision import FIRST
from scavenger.job import JobSpec
from scavenger.quantity import format_money, format_price
from scavenger.search.partial import PartialSearch
from scavenger.tariff import ResourceTariff


def show_plan(spec: JobSpec) -> RenderableType:
    """Show the plan of a job."""
    return show_facts(plan_facts(spec))


def plan_facts(spec: JobSpec) -> list[tuple[str, str]]:
    """Say what a job is going to do, one fact a line."""
    return [
        ("model", f"{spec.model.key}, {spec.model.dataset_size:,} samples"),
        ("target", spec.target_in_words),
        ("space", space_of(spec)),
        ("search", search_of(spec)),
        ("objective", spec.objective_in_words),
        *([("laws", "the paper's, whatever is measured")] if spec.laws == "paper" else []),
        ("cap", cap_of(spec)),
        ("runs", " ".join(spec.run.command)),
        ("in", spec.run.directory or "the worker's own directory"),
    ]


def space_of(spec: JobSpec) -> str:
    """Say how many configurations there are to choose from."""
    workers, batches = spec.space.workers, spec.space.global_batches
    size = counted(sum(1 for _ in spec.space), "configuration")
    return f"{size}: K {workers[0]}–{workers[-1]}, B {batches[0]}–{batches[-1]}"


def search_of(spec: JobSpec) -> str:
    """Say how the configuration will be found."""
    corners = counted(PartialSearch().probes(spec.space), "corner")
    match spec.search:
        case "auto":
            first = counted(FIRST.probes(spec.space), "corner")
            return f"auto: a stored model if one fits, or else probes of {first} and what pays"
        case "none":
            return f"none: the stored model; without one, probes of {corners}"
        case "partial":
            return f"partial: probes of {corners}"
        case "full":
            return f"full: probes of all {counted(sum(1 for _ in spec.space), 'configuration')}"
        case "universal":
            return f"universal: the average of all stored models; without any, probes of {corners}"


def cap_of(spec: JobSpec) -> str:
    """Say the most the job can spend."""
    limits = spec.limits
    cost = "no limit of cost" if limits.max_cost is None else format_money(limits.max_cost)
    time = "" if limits.max_time is None else f" · {span(limits.max_time)}"
    return f"{cost}{time} · {price_of(spec)}"


def price_of(spec: JobSpec) -> str:
    """Say what a worker is billed."""
    most = "at most " if isinstance(spec.price, ResourceTariff) else ""
    quantum = f", billed by {span(spec.quantum)}" if spec.quantum else ""
    return f"one worker costs {most}{format_price(spec.price_per_hour)}{quantum}"
