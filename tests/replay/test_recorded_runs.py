import json
import math
from dataclasses import fields, replace
from functools import cache
from pathlib import Path
from statistics import fmean, median

import pytest

from scavenger.cluster import ClusterConfig
from scavenger.measurement.noise import estimate_noise, shard_norms
from scavenger.measurement.profiling import ProbeComplete, ProbeIncomplete, evaluate_probe
from scavenger.measurement.stability import assess_stability
from scavenger.measurement.steps import StepColumns

RUNS = sorted(path.stem for path in (Path(__file__).parent / "data").glob("*.json"))
REPORT_EVERY = 10

every_run = pytest.mark.parametrize("name", RUNS)


@cache
def recorded(name: str) -> tuple[ClusterConfig, StepColumns]:
    run = json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text())
    columns = StepColumns(
        **{field.name: tuple(run.get(field.name, ())) for field in fields(StepColumns)}
    )
    return ClusterConfig(run["recipe"]["workers"], run["recipe"]["global_batch"]), columns


def leaves_plateau(columns: StepColumns) -> int:
    """Return the row around which ten classes are told apart better than by chance."""
    chance = math.log(10)
    smoothed = (fmean(columns.loss[row - 10 : row + 10]) for row in range(10, len(columns)))
    return next(row for row, loss in enumerate(smoothed, start=10) if loss < 0.8 * chance)


def without_losses(columns: StepColumns) -> StepColumns:
    return replace(columns, loss=(None,) * len(columns))


@cache
def settled(name: str) -> tuple[int, ProbeComplete]:
    """Replay a run as a first probe and return at which row it settled, and on what."""
    config, columns = recorded(name)
    for count in range(REPORT_EVERY, len(columns) + 1, REPORT_EVERY):
        answer = evaluate_probe(columns[:count], config, measures="noise")
        if isinstance(answer, ProbeComplete):
            return count, answer
    raise AssertionError(f"{name} never settled")


@every_run
def test_noise_never_settles_on_the_plateau(name):
    config, columns = recorded(name)
    began = leaves_plateau(columns)
    for count in range(1, began + 1, REPORT_EVERY):
        assert isinstance(
            evaluate_probe(columns[:count], config, measures="noise"), ProbeIncomplete
        )


@every_run
def test_noise_settles_within_150_noise_rows_of_takeoff(name):
    count, _ = settled(name)
    _, columns = recorded(name)
    began = leaves_plateau(columns)
    assert count > began
    assert len(shard_norms(columns[:count], start=began)) <= 150


@every_run
def test_the_settled_noise_scale_is_near_that_of_the_iterations_around_it(name):
    count, answer = settled(name)
    config, columns = recorded(name)
    began = max(leaves_plateau(columns), count - 100)
    around = columns[: count + 200][began:]
    long_window = estimate_noise(around, config.global_batch).noise_scale
    # φ rises for the rest of the training, so no early window can do better than about this.
    assert 0.5 < answer.observation.indicators.noise_scale / long_window < 2


@every_run
def test_the_noise_scale_of_the_plateau_would_mislead(name):
    config, columns = recorded(name)
    began = leaves_plateau(columns)
    plateau = estimate_noise(columns[: began - 20], config.global_batch)
    after = estimate_noise(columns[began:], config.global_batch)
    if plateau.noise_scale is not None:
        assert not 0.8 < plateau.noise_scale / after.noise_scale < 1.25


def test_without_losses_more_rows_are_asked_for_and_the_sentence_says_why():
    config, columns = recorded("k4-b64-momentum-lr0.01")
    blind = without_losses(columns)
    few = assess_stability(blind[:159], config.global_batch)
    assert few.why.startswith(
        "no loss is logged, so a plateau cannot be told from training; 1 more"
    )
    assert few.loss_drop is None
    enough = [
        assess_stability(blind[:count], config.global_batch)
        for count in range(160, len(blind), REPORT_EVERY)
    ]
    assert any(stability.is_stable for stability in enough)


@every_run
def test_later_probes_need_only_twenty_warm_timed_iterations(name):
    config, columns = recorded(name)
    counts = [
        count
        for count in range(200)
        if isinstance(evaluate_probe(columns[:count], config, measures="time"), ProbeIncomplete)
    ]
    timed = [row for row, shards in enumerate(columns.shards) if shards == config.workers]
    warm = [row for row in timed if row >= 3]
    assert counts == list(range(warm[19] + 1))


@every_run
def test_times_are_medians_that_add_up_to_the_iteration(name):
    config, columns = recorded(name)
    indicators = evaluate_probe(columns, config, measures="time").observation.indicators
    rows = zip(columns.step_time, columns.shards, strict=True)
    unsplit = [step_time for step_time, shards in rows if shards == config.workers]
    assert indicators.step_time == pytest.approx(median(unsplit), rel=0.1)
    assert (indicators.sync_time == 0) == (config.workers == 1)
