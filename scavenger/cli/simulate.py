"""``scavenger simulate``: compares search strategies with an oracle on a simulated job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import TypeAdapter
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.text import Text

from scavenger.cli.options import OutputOption
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    FittedTable,
    OutputFormat,
    format_dollars,
    format_number,
    format_percent,
    format_seconds,
    get_terminal,
    name_column,
    number_column,
    pluralize,
    render_facts,
)
from scavenger.offline.simulator.paper import PaperJob, Perturbations, run_policy
from scavenger.offline.simulator.simulation import SimulationOutcome
from scavenger.offline.simulator.summary import SimulationSummary, summarise_outcomes
from scavenger.planning.objectives import make_objective, plain_objectives
from scavenger.planning.search.registry import SEARCHES


class SimulatedJobName(StrEnum):
    """A job of the paper's size."""

    RESNET18 = "resnet18"
    RESNET50 = "resnet50"
    TRANSFORMER = "transformer"


if TYPE_CHECKING:
    StrategyChoice = str
    ObjectiveChoice = str
else:  # typer lists the members of an enumeration in its help
    StrategyChoice = StrEnum("StrategyChoice", {name.upper(): name for name in SEARCHES})
    ObjectiveChoice = StrEnum(
        "ObjectiveChoice", {name.upper(): name for name in plain_objectives()}
    )


def parse_ascending_counts(text: str | None, option: str) -> tuple[int, ...] | None:
    """Read ascending whole numbers separated by commas, such as ``8,12,16,20``.

    Raises:
        typer.BadParameter: It is no such list; the message says what to write.
    """
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise typer.BadParameter(
            f"{text!r} is no list of whole numbers: write e.g. 8,12,16,20", param_hint=option
        )
    counts = tuple(int(part) for part in parts)
    if list(counts) != sorted(set(counts)) or counts[0] < 1:
        raise typer.BadParameter(
            f"{text!r} must ascend from at least 1: write e.g. 8,12,16,20", param_hint=option
        )
    return counts


SimulatedJobOption = Annotated[
    SimulatedJobName, typer.Option("--job", help="Which job of the paper's size to train.")
]
StrategiesOption = Annotated[
    list[StrategyChoice] | None,
    typer.Option(
        "--strategy",
        help="How to search; repeat it to compare. 'none' has trained the same job before, "
        "'universal' the others.",
        show_default="partial, full, auto",
    ),
]
SimulatedObjectiveOption = Annotated[
    ObjectiveChoice, typer.Option("--objective", help="What to choose by.")
]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, help="Worlds to repeat everything in.")]
JitterOption = Annotated[
    float, typer.Option("--jitter", min=0, max=1, help="Spread of iteration times, as a share.")
]
RoughnessOption = Annotated[
    float,
    typer.Option("--roughness", min=0, max=1, help="Spread of configurations around their law."),
]
StragglersOption = Annotated[
    float,
    typer.Option(
        "--stragglers", min=0, max=1, help="Share of iterations with a worker three times as slow."
    ),
]
NoiseGrowthOption = Annotated[
    float,
    typer.Option("--drift", min=0.1, max=10, help="Noise scale at the end over that at the start."),
]
WorkerCountsOption = Annotated[
    str | None,
    typer.Option("--workers", help="Worker counts to choose from, e.g. 8,12,16,20."),
]
BatchSizesOption = Annotated[
    str | None,
    typer.Option("--batches", help="Global batches to choose from, e.g. 384,512,768,1024."),
]


def simulate(
    context: typer.Context,
    job: SimulatedJobOption = SimulatedJobName.RESNET18,
    strategy: StrategiesOption = None,
    objective: SimulatedObjectiveOption = "knee",
    seeds: SeedsOption = 10,
    jitter: JitterOption = 0.05,
    roughness: RoughnessOption = 0.03,
    stragglers: StragglersOption = 0.01,
    drift: NoiseGrowthOption = 2.0,
    workers: WorkerCountsOption = None,
    batches: BatchSizesOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Compare search strategies with an oracle, on a job whose truth is known. Nothing is started.

    Every strategy makes the same decisions as in the controller; seconds and dollars are booked
    from the first iteration to the target.
    """
    # What simulates takes longer to import than every other command takes to run.
    from scavenger.offline.simulator.paper import PAPER_JOBS, Perturbations

    terminal = get_terminal(context)
    counts, sizes = (
        parse_ascending_counts(workers, "--workers"),
        parse_ascending_counts(batches, "--batches"),
    )
    try:
        setting = restrict_space(PAPER_JOBS[job.value], counts, sizes)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--workers with --batches") from None
    comparison = StrategyComparison(
        job=setting.name,
        objective=str(objective),
        strategies=tuple(map(str, strategy or ("partial", "full", "auto"))),
        seeds=seeds,
        hazards=Perturbations(jitter, roughness, stragglers, drift),
        workers=setting.space.workers,
        global_batches=setting.space.global_batches,
    )
    result = run_comparison(comparison, setting, terminal.stderr)
    if output is OutputFormat.JSON:
        terminal.write_line(comparison_to_json(result))
    else:
        terminal.stdout.print(render_comparison(result))


@dataclass(frozen=True, slots=True)
class StrategyComparison:
    """What to compare.

    Attributes:
        job: Name of the setting.
        objective: Name of the objective.
        strategies: Strategies, in the order of the rows.
        seeds: Worlds for each.
        hazards: How far these are from their laws.
        workers: Worker counts to choose from.
        global_batches: Batches to choose from, samples.
    """

    job: str
    objective: str
    strategies: tuple[str, ...]
    seeds: int
    hazards: Perturbations
    workers: tuple[int, ...]
    global_batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SpaceRange:
    """Time and cost of the configurations of a space, each run from the start to the target.

    Attributes:
        best: The least.
        median: Half of the configurations take more.
        worst: The most.
    """

    best: float
    median: float
    worst: float


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """What came out.

    Attributes:
        comparison: What was compared.
        summaries: By strategy.
        configurations: Configurations in the space.
        times: Seconds of the configurations in the first world.
        costs: Dollars of the configurations in the first world.
        oracle: What the oracle runs in the first world, in words.
        oracle_time: Seconds it takes.
        oracle_cost: Dollars it takes.
    """

    comparison: StrategyComparison
    summaries: Mapping[str, SimulationSummary]
    configurations: int
    times: SpaceRange
    costs: SpaceRange
    oracle: str
    oracle_time: float
    oracle_cost: float


def restrict_space(
    setting: PaperJob,
    workers: tuple[int, ...] | None,
    global_batches: tuple[int, ...] | None,
) -> PaperJob:
    """Return a setting with other choices; raises ValueError where there is none to make."""
    space = setting.space
    return replace(
        setting,
        space=replace(
            space,
            workers=workers or space.workers,
            global_batches=global_batches or space.global_batches,
        ),
    )


def run_comparison(
    comparison: StrategyComparison, setting: PaperJob, stderr: Console
) -> ComparisonResult:
    """Simulate every strategy in every world; a bar shows how far it is, on a terminal only."""
    objective = make_objective(comparison.objective)
    outcomes: dict[str, list[SimulationOutcome]] = {}
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        for strategy in dict.fromkeys(comparison.strategies):
            outcomes[strategy] = [
                run_policy(setting, comparison.hazards, strategy, objective, seed)
                for seed in bar.track(range(comparison.seeds), description=strategy)
            ]
    first = next(iter(outcomes.values()))[0]
    return ComparisonResult(
        comparison=comparison,
        summaries={strategy: summarise_outcomes(runs) for strategy, runs in outcomes.items()},
        configurations=len(first.truth.points),
        times=range_of([point.time for point in first.truth.points]),
        costs=range_of([point.cost for point in first.truth.points]),
        oracle=str(first.oracle.config),
        oracle_time=first.oracle.time,
        oracle_cost=first.oracle.cost,
    )


def range_of(values: list[float]) -> SpaceRange:
    """Return the least, the middle and the largest value."""
    return SpaceRange(min(values), median(values), max(values))


def comparison_to_json(result: ComparisonResult) -> str:
    """Write a result as JSON."""
    return TypeAdapter(ComparisonResult).dump_json(result, indent=2).decode()


def render_comparison(result: ComparisonResult) -> RenderableType:
    """Show one row for each strategy, and what it is compared with."""
    rows = [(strategy, *summary_cells(summary)) for strategy, summary in result.summaries.items()]
    return Group(
        FittedTable(COMPARISON_COLUMNS, rows), Text(), render_facts(comparison_facts(result))
    )


COMPARISON_COLUMNS = (
    name_column("STRATEGY"),
    number_column("PROBES", 3),
    number_column("ERROR", 5),
    number_column("REGRET", 1),
    number_column("SEARCH", 2),
    number_column("VS ORACLE", 4),
    number_column("VS MEDIAN", 6),
)


def summary_cells(summary: SimulationSummary) -> tuple[str, ...]:
    """Return the figures of one strategy, medians over its runs."""
    overheads = (summary.time_overhead.median, summary.cost_overhead.median)
    speedup, saving = summary.speedup.median.median, summary.saving.median.median
    return (
        format_number(summary.probes),
        UNKNOWN_VALUE if summary.error is None else format_percent(summary.error.median),
        format_change(summary.regret.median),
        f"{format_delay(summary.search_time.median)} {format_dollars(summary.search_cost.median)}",
        " ".join(map(format_change, overheads)),
        f"×{format_number(speedup)} {format_change(-saving)}",
    )


def format_change(share: float) -> str:
    """Write a share with its sign."""
    return f"{100 * share:+.1f} %"


def format_delay(seconds: float) -> str:
    """Write seconds that may be less than none."""
    return f"-{format_seconds(-seconds)}" if seconds < 0 else format_seconds(seconds)


def comparison_facts(result: ComparisonResult) -> list[tuple[str, str]]:
    """Say what the rows are compared with, and what they mean."""
    comparison, hazards = result.comparison, result.comparison.hazards
    size = pluralize(result.configurations, "configuration")
    oracle = f"{format_seconds(result.oracle_time)}, {format_dollars(result.oracle_cost)}"
    times = " · ".join(
        format_seconds(value)
        for value in (result.times.best, result.times.median, result.times.worst)
    )
    costs = " · ".join(
        format_dollars(value)
        for value in (result.costs.best, result.costs.median, result.costs.worst)
    )
    return [
        ("job", f"{comparison.job}, objective {comparison.objective}"),
        ("worlds", f"{pluralize(comparison.seeds, 'seed')}: {describe_perturbations(hazards)}"),
        ("oracle", f"{result.oracle}: {oracle}"),
        ("space", f"{size}, best · median · worst: {times}; {costs}"),
        ("error", "of predicted time to target, mean over all configurations"),
        ("regret", "of the choice against the oracle's, by the objective, both from the start"),
        ("search", "time and cost until the choice first trains, beyond what it takes so far"),
        ("vs oracle", "time and cost to target, search included, against the oracle's choice"),
        ("vs median", "how many times faster than the median configuration, and its cost"),
    ]


def describe_perturbations(hazards: Perturbations) -> str:
    """Say how far the worlds are from their laws."""
    shares = (hazards.jitter, hazards.roughness, hazards.stragglers)
    jitter, roughness, stragglers = map(format_percent, shares)
    growth = format_number(hazards.noise_growth)
    return (
        f"jitter {jitter}, roughness {roughness}, stragglers in {stragglers} of iterations, "
        f"φ grows ×{growth}"
    )
