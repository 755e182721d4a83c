"""Seconds to plan over 100 000 configurations with intervals, beside a naive loop.

Ten machine types in ten regions, 50 worker counts, 20 batches. Both find the knee within limits
that must be met with 90 %; the loop predicts one configuration after the other with the same laws,
the way a first version would. Then the same by an average of six laws, and a space with a front
of a thousand points. Run by ``make bench-plan``.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from itertools import product
from statistics import median

from scavenger.cluster import ClusterConfig, ConfigSpace, MachineType, config_columns
from scavenger.models.epochs import EpochsLaw
from scavenger.models.iteration_time import (
    Slowness,
    StepTimeLaw,
    StepTimeModel,
    Uncertainty,
    average_laws,
)
from scavenger.models.performance import PerformanceModel
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import curve_from_forecast, forecast_space
from scavenger.planning.knee import Knee
from scavenger.planning.objective import Choice
from scavenger.pricing import MachinePrice, PriceModel

KINDS, REGIONS = 10, 10
WORKERS = tuple(range(1, 51))
BATCHES = tuple(64 * step for step in range(1, 21))
ROUNDS = 5
NAIVE_SHARE = 50  # the loop plans one in so many, and its time is multiplied


def main() -> None:
    """Print seconds of both and their ratio."""
    space, model, price = question()
    limits = ConstrainedObjective(Knee(), max_cost=400.0, max_time=40 * 3600.0)
    count = KINDS * REGIONS * len(WORKERS) * len(BATCHES)
    plan(space, model, price, limits)  # imports kneed
    columns = clock_all(lambda: plan(space, model, price, limits))
    naive = clock(lambda: plan_naively(space, model, price)) * NAIVE_SHARE
    choice = plan(space, model, price, limits)
    print(f"{count} configurations with intervals: {choice.point.config}, {choice.why}")
    show("columns", columns)
    print(f"naive loop   {naive:8.1f} s  (measured on one in {NAIVE_SHARE}, without the knee)")
    print(f"ratio        {naive / median(columns):8.0f}")
    averaged = replace(model, parallel=average(model.parallel))
    show("six laws", clock_all(lambda: plan(space, averaged, price, limits)))
    show(
        "wide front",
        clock_all(lambda: plan(*wide_question(model), limits=ConstrainedObjective(Knee()))),
    )


def question() -> tuple[ConfigSpace, PerformanceModel, PriceModel]:
    """Return a space of 100 000 configurations, laws with uncertainty, and prices."""
    machines = tuple(
        MachineType(f"type-{kind}", 4, 16 * (kind + 1), region=f"region-{region}")
        for kind in range(KINDS)
        for region in range(REGIONS)
    )
    covariance = tuple(
        tuple(0.4 if row == column else 0.0 for column in range(5)) for row in range(5)
    )
    parallel = StepTimeLaw(
        0.2,
        0.01,
        0.1,
        0.02,
        overlap=2.0,
        slowness={f"type-{kind}": Slowness(2 / (kind + 2), 1.0) for kind in range(KINDS)},
        uncertainty=Uncertainty(0.05, covariance),
    )
    statistical = EpochsLaw(800.0, 800.0, critical_deviation=0.5)
    prices = {
        machine.key: 0.1 * (1 + index // REGIONS) ** 0.8 * (1 + 0.03 * (index % REGIONS))
        for index, machine in enumerate(machines)
    }
    model = PerformanceModel(parallel, statistical, 50_000, 64, 90.0)
    return ConfigSpace(WORKERS, BATCHES, machines), model, PriceModel(MachinePrice(0.1, prices))


def average(law: StepTimeModel) -> StepTimeModel:
    """Return six laws that disagree about synchronisation, averaged."""
    own = law.laws[0]
    laws = tuple(
        replace(own, growth=growth, overlap=overlap)
        for growth, overlap in product(("linear", "log"), (1.0, 2.0, 4.0))
    )
    return average_laws(laws, (6.0, 5.0, 4.0, 3.0, 2.0, 1.0))


def wide_question(model: PerformanceModel) -> tuple[ConfigSpace, PerformanceModel, PriceModel]:
    """Return a space in which every worker count is on the front, and laws that are sure of it."""
    own = model.parallel.laws[0]
    certain = Uncertainty(0.0005, tuple((0.0,) * n + (0.4,) + (0.0,) * (4 - n) for n in range(5)))
    free = replace(own, sync_fixed=0.01, sync_per_worker=1e-6, uncertainty=certain)
    far = EpochsLaw(80_000.0, 80_000.0, critical_deviation=0.5)
    batches = tuple(64 * step for step in range(1, 103))
    space = ConfigSpace(tuple(range(1, 1001)), batches)
    return space, replace(model, parallel=free, statistical=far), PriceModel(MachinePrice(0.1))


def plan(
    space: ConfigSpace, model: PerformanceModel, price: PriceModel, limits: ConstrainedObjective
) -> Choice:
    """Plan with columns, as ``decide`` does for spaces too large to draw."""
    forecast = forecast_space(space, model, price, ())
    return limits.choose(curve_from_forecast(forecast.select(limits.shortlist(forecast))))


def plan_naively(space: ConfigSpace, model: PerformanceModel, price: PriceModel) -> float:
    """Predict one configuration after the other, and return the least cost."""
    best = math.inf
    for config in list(space)[::NAIVE_SHARE]:
        best = min(best, naive_cost(config, model, price))
    return best


def naive_cost(config: ClusterConfig, model: PerformanceModel, price: PriceModel) -> float:
    """Upper end of the 80 % interval of one configuration's cost."""
    grid = config_columns([config])
    iterations = model.epochs_needed(config.global_batch) * model.dataset_size / config.global_batch
    seconds = iterations * model.parallel.step_time(config)
    deviation = float(model.deviations(grid, grid.workers < 0)[0])
    return float(price.costs(grid, grid.workers * 0 + seconds)[0]) * math.exp(1.28 * deviation)


def show(name: str, seconds: list[float]) -> None:
    """Print the median of a few rounds, and their span."""
    spread = f"{min(seconds):.3f} to {max(seconds):.3f} in {len(seconds)} rounds"
    print(f"{name:<12} {median(seconds):8.3f} s  ({spread})")


def clock_all(action: object) -> list[float]:
    """Return CPU seconds of an action in each of a few rounds."""
    return [clock(action) for _ in range(ROUNDS)]


def clock(action: object) -> float:
    """Return CPU seconds of an action, so that other programs do not count."""
    assert callable(action)
    began = time.process_time()
    action()
    return time.process_time() - began


if __name__ == "__main__":
    main()
