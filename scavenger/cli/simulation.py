"""What ``scavenger simulate`` runs, and how it shows what came out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median

from pydantic import TypeAdapter
from rich.console import Console, Group, RenderableType
from rich.progress import Progress
from rich.text import Text

from scavenger.cli.figures import UNKNOWN, counted, dollars, number, percent, span
from scavenger.cli.fitted_table import FittedTable, figure, name
from scavenger.cli.job_table import show_facts
from scavenger.decision import StrategyName
from scavenger.objective import Cheapest, Fastest, Knee, Objective
from scavenger.simulator.paper import Hazards, Setting, run_policy
from scavenger.simulator.race import Outcome
from scavenger.simulator.summary import Summary, summarise

OBJECTIVES: dict[str, Objective] = {
    "knee": Knee(),
    "fastest": Fastest(),
    "cheapest": Cheapest(),
}


@dataclass(frozen=True, slots=True)
class Comparison:
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
    strategies: tuple[StrategyName, ...]
    seeds: int
    hazards: Hazards
    workers: tuple[int, ...]
    global_batches: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Spread:
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
class Result:
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

    comparison: Comparison
    summaries: Mapping[str, Summary]
    configurations: int
    times: Spread
    costs: Spread
    oracle: str
    oracle_time: float
    oracle_cost: float


def narrow(
    setting: Setting,
    workers: tuple[int, ...] | None,
    global_batches: tuple[int, ...] | None,
) -> Setting:
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


def run_all(comparison: Comparison, setting: Setting, chatter: Console) -> Result:
    """Simulate every strategy in every world; a bar shows how far it is, on a terminal only."""
    objective = OBJECTIVES[comparison.objective]
    outcomes: dict[str, list[Outcome]] = {}
    with Progress(console=chatter, transient=True, disable=not chatter.is_terminal) as bar:
        for strategy in dict.fromkeys(comparison.strategies):
            outcomes[strategy] = [
                run_policy(setting, comparison.hazards, strategy, objective, seed)
                for seed in bar.track(range(comparison.seeds), description=strategy)
            ]
    first = next(iter(outcomes.values()))[0]
    return Result(
        comparison=comparison,
        summaries={strategy: summarise(runs) for strategy, runs in outcomes.items()},
        configurations=len(first.truth.points),
        times=spread([point.time for point in first.truth.points]),
        costs=spread([point.cost for point in first.truth.points]),
        oracle=str(first.oracle.config),
        oracle_time=first.oracle.time,
        oracle_cost=first.oracle.cost,
    )


def spread(values: list[float]) -> Spread:
    """Return the least, the middle and the largest value."""
    return Spread(min(values), median(values), max(values))


def write(result: Result) -> str:
    """Write a result as JSON."""
    return TypeAdapter(Result).dump_json(result, indent=2).decode()


def show_comparison(result: Result) -> RenderableType:
    """Show one row for each strategy, and what it is compared with."""
    rows = [(strategy, *cells(summary)) for strategy, summary in result.summaries.items()]
    return Group(FittedTable(COLUMNS, rows), Text(), show_facts(facts(result)))


COLUMNS = (
    name("STRATEGY"),
    figure("PROBES", 3),
    figure("ERROR", 5),
    figure("REGRET", 1),
    figure("SEARCH", 2),
    figure("VS ORACLE", 4),
    figure("VS MEDIAN", 6),
)


def cells(summary: Summary) -> tuple[str, ...]:
    """Return the figures of one strategy, medians over its runs."""
    return (
        number(summary.probes),
        UNKNOWN if summary.error is None else percent(summary.error.median),
        signed(summary.regret.median),
        f"{span_of(summary.search_time.median)} {dollars(summary.search_cost.median)}",
        f"{signed(summary.time_overhead.median)} {signed(summary.cost_overhead.median)}",
        f"×{number(summary.speedup.median.median)} {signed(-summary.saving.median.median)}",
    )


def signed(share: float) -> str:
    """Write a share with its sign."""
    return f"{100 * share:+.1f} %"


def span_of(seconds: float) -> str:
    """Write seconds that may be less than none."""
    return f"-{span(-seconds)}" if seconds < 0 else span(seconds)


def facts(result: Result) -> list[tuple[str, str]]:
    """Say what the rows are compared with, and what they mean."""
    comparison, hazards = result.comparison, result.comparison.hazards
    size = counted(result.configurations, "configuration")
    times = " · ".join(
        span(value) for value in (result.times.best, result.times.median, result.times.worst)
    )
    costs = " · ".join(
        dollars(value) for value in (result.costs.best, result.costs.median, result.costs.worst)
    )
    return [
        ("job", f"{comparison.job}, objective {comparison.objective}"),
        ("worlds", f"{counted(comparison.seeds, 'seed')}: {world_in_words(hazards)}"),
        ("oracle", f"{result.oracle}: {span(result.oracle_time)}, {dollars(result.oracle_cost)}"),
        ("space", f"{size}, best · median · worst: {times}; {costs}"),
        ("error", "of predicted time to target, mean over all configurations"),
        ("regret", "of the choice against the oracle's, by the objective, both from the start"),
        ("search", "time and cost until the choice first trains, beyond what it takes so far"),
        ("vs oracle", "time and cost to target, search included, against the oracle's choice"),
        ("vs median", "how many times faster than the median configuration, and its cost"),
    ]


def world_in_words(hazards: Hazards) -> str:
    """Say how far the worlds are from their laws."""
    return (
        f"jitter {percent(hazards.jitter)}, roughness {percent(hazards.roughness)}, stragglers in "
        f"{percent(hazards.stragglers)} of iterations, φ grows ×{number(hazards.noise_growth)}"
    )
