"""``scavenger simulate``: compares search strategies with an oracle on a simulated job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Annotated, Literal, Self

import typer
from pydantic import TypeAdapter
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.text import Text

from scavenger.cli.options import OutputOption, choice_parser
from scavenger.cli.output import (
    UNKNOWN_VALUE,
    OutputFormat,
    ResponsiveTable,
    format_change,
    format_dollars,
    format_number,
    format_percent,
    format_seconds,
    get_terminal,
    number_column,
    pluralize,
    render_facts,
    word_column,
)
from scavenger.offline.simulator.paper import PAPER_JOBS, PaperJob, Perturbations, simulate_strategy
from scavenger.offline.simulator.simulation import SimulationOutcome
from scavenger.offline.simulator.summary import SimulationSummary, summarise_outcomes
from scavenger.planning.objectives import make_objective, plain_objectives
from scavenger.planning.search.registry import SEARCHES

SimulatedJobOption = Annotated[
    Literal["resnet18", "resnet50", "transformer"],
    typer.Option("--job", help="Job of the paper's size to simulate."),
]
StrategiesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--strategy",
        parser=choice_parser(SEARCHES),
        metavar="|".join(SEARCHES),
        help="Search strategy; repeat the option to compare several. 'none' starts with a stored "
        "model of the same job, 'universal' with those of the other jobs.",
        show_default="partial, full, auto",
    ),
]
SimulatedObjectiveOption = Annotated[
    str,
    typer.Option(
        "--objective",
        parser=choice_parser(plain_objectives()),
        metavar="|".join(plain_objectives()),
        help="What to optimize.",
    ),
]
SeedsOption = Annotated[int, typer.Option("--seeds", min=1, help="Number of simulated runs each.")]
JitterOption = Annotated[
    float, typer.Option("--jitter", min=0, max=1, help="Relative spread of iteration times.")
]
RoughnessOption = Annotated[
    float,
    typer.Option(
        "--roughness", min=0, max=1, help="Relative spread of configurations around the model."
    ),
]
StragglersOption = Annotated[
    float,
    typer.Option(
        "--stragglers", min=0, max=1, help="Share of iterations with a worker three times slower."
    ),
]
NoiseGrowthOption = Annotated[
    float,
    typer.Option("--drift", min=0.1, max=10, help="Noise scale at the end, relative to the start."),
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
    job: SimulatedJobOption = "resnet18",
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
    """Compare search strategies with an oracle on a simulated job. Starts no machine.

    Strategies decide with the code that the controller runs. Time and cost count from the first
    iteration to the target.
    """
    terminal = get_terminal(context)
    counts = parse_ascending_counts(workers, "--workers")
    sizes = parse_ascending_counts(batches, "--batches")
    try:
        paper_job = restrict_space(PAPER_JOBS[job], counts, sizes)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--workers with --batches") from None
    comparison = StrategyComparison(
        job=paper_job.name,
        objective=objective,
        strategies=tuple(strategy or ("partial", "full", "auto")),
        seeds=seeds,
        hazards=Perturbations(jitter, roughness, stragglers, drift),
        workers=paper_job.space.workers,
        global_batches=paper_job.space.global_batches,
    )
    result = run_comparison(comparison, paper_job, terminal.stderr)
    document = TypeAdapter(ComparisonResult).dump_python(result, mode="json")
    terminal.print_document(document, output, render_comparison(result), comparison.strategies)


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


@dataclass(frozen=True, slots=True)
class StrategyComparison:
    """Strategies to compare, and the job to compare them on.

    Attributes:
        job: Name of the job.
        objective: Name of the objective.
        strategies: Strategies, in the order of the rows.
        seeds: Runs of each strategy.
        hazards: How far runs deviate from the model.
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
class BestMedianWorst:
    """Time or cost to target over the configurations of a space.

    Attributes:
        best: The least.
        median: Half of the configurations take more.
        worst: The most.
    """

    best: float
    median: float
    worst: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Return the range of values."""
        return cls(min(values), median(values), max(values))

    def write(self, write: Callable[[float], str]) -> str:
        """Write the three values."""
        return " · ".join(map(write, (self.best, self.median, self.worst)))


@dataclass(frozen=True, slots=True)
class ComparisonResult:
    """Result of a comparison.

    Attributes:
        comparison: What was compared.
        summaries: By strategy.
        configurations: Configurations in the space.
        times: Seconds of the configurations in the first run.
        costs: Dollars of the configurations in the first run.
        oracle: Configuration that the oracle chooses in the first run.
        oracle_time: Seconds it takes.
        oracle_cost: Dollars it takes.
    """

    comparison: StrategyComparison
    summaries: Mapping[str, SimulationSummary]
    configurations: int
    times: BestMedianWorst
    costs: BestMedianWorst
    oracle: str
    oracle_time: float
    oracle_cost: float


def restrict_space(
    job: PaperJob,
    workers: tuple[int, ...] | None,
    global_batches: tuple[int, ...] | None,
) -> PaperJob:
    """Return a job with other choices; raises ValueError where no configuration is left."""
    space = job.space
    return replace(
        job,
        space=replace(
            space,
            workers=workers or space.workers,
            global_batches=global_batches or space.global_batches,
        ),
    )


def run_comparison(
    comparison: StrategyComparison, job: PaperJob, stderr: Console
) -> ComparisonResult:
    """Simulate every strategy with every seed; a terminal shows a progress bar."""
    objective = make_objective(comparison.objective)
    outcomes: dict[str, list[SimulationOutcome]] = {}
    with Progress(console=stderr, transient=True, disable=not stderr.is_terminal) as bar:
        for strategy in dict.fromkeys(comparison.strategies):
            outcomes[strategy] = [
                simulate_strategy(job, comparison.hazards, strategy, objective, seed)
                for seed in bar.track(range(comparison.seeds), description=strategy)
            ]
    first = next(iter(outcomes.values()))[0]
    return ComparisonResult(
        comparison=comparison,
        summaries={strategy: summarise_outcomes(runs) for strategy, runs in outcomes.items()},
        configurations=len(first.truth.points),
        times=BestMedianWorst.of([point.time for point in first.truth.points]),
        costs=BestMedianWorst.of([point.cost for point in first.truth.points]),
        oracle=str(first.oracle.config),
        oracle_time=first.oracle.time,
        oracle_cost=first.oracle.cost,
    )


def render_comparison(result: ComparisonResult) -> RenderableType:
    """Render a row for each strategy, and what it is compared with."""
    rows = [(strategy, *_summary_cells(summary)) for strategy, summary in result.summaries.items()]
    return Group(
        ResponsiveTable(COMPARISON_COLUMNS, rows), Text(), render_facts(comparison_facts(result))
    )


COMPARISON_COLUMNS = (
    word_column("STRATEGY"),
    number_column("PROBES", 3),
    number_column("ERROR", 5),
    number_column("REGRET", 1),
    number_column("SEARCH", 2),
    number_column("VS ORACLE", 4),
    number_column("VS MEDIAN", 6),
)


def _summary_cells(summary: SimulationSummary) -> tuple[str, ...]:
    overheads = (summary.time_overhead.median, summary.cost_overhead.median)
    speedup, saving = summary.speedup.median.median, summary.saving.median.median
    # A search may train faster than the final configuration does, so it can take less than no time.
    delay = summary.search_time.median
    search_time = f"{'-' if delay < 0 else ''}{format_seconds(abs(delay))}"
    return (
        format_number(summary.probes),
        UNKNOWN_VALUE if summary.error is None else format_percent(summary.error.median),
        format_change(summary.regret.median),
        f"{search_time} {format_dollars(summary.search_cost.median)}",
        " ".join(map(format_change, overheads)),
        f"×{format_number(speedup)} {format_change(-saving)}",
    )


def comparison_facts(result: ComparisonResult) -> list[tuple[str, str]]:
    """Return what the rows are compared with, and what the columns mean."""
    comparison, hazards = result.comparison, result.comparison.hazards
    size = pluralize(result.configurations, "configuration")
    oracle = f"{format_seconds(result.oracle_time)}, {format_dollars(result.oracle_cost)}"
    times, costs = result.times.write(format_seconds), result.costs.write(format_dollars)
    return [
        ("job", f"{comparison.job}, objective {comparison.objective}"),
        ("worlds", f"{pluralize(comparison.seeds, 'seed')}: {describe_perturbations(hazards)}"),
        ("oracle", f"{result.oracle}: {oracle}"),
        ("space", f"{size}, best · median · worst: {times}; {costs}"),
        ("error", "of predicted time to target, mean over all configurations"),
        ("regret", "of the choice against the oracle's, by the objective, both from the start"),
        (
            "search",
            "extra time and cost of the search, against training on the choice from the start",
        ),
        ("vs oracle", "time and cost to target, search included, against the oracle's choice"),
        ("vs median", "how many times faster than the median configuration, and its cost"),
    ]


def describe_perturbations(hazards: Perturbations) -> str:
    """Write how far runs deviate from the model."""
    shares = (hazards.jitter, hazards.roughness, hazards.stragglers)
    jitter, roughness, stragglers = map(format_percent, shares)
    growth = format_number(hazards.noise_growth)
    return (
        f"jitter {jitter}, roughness {roughness}, stragglers in {stragglers} of iterations, "
        f"φ grows ×{growth}"
    )
