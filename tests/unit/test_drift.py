import numpy as np
import pytest

from scavenger.measurement.stability import (
    DRIFT_FACTOR,
    DRIFT_ROWS,
    MIN_DRIFT_ROWS,
    assess_stability,
    detect_drift,
)
from scavenger.measurement.steps import StepColumns

BATCH, SHARDS, SIZE = 64, 4, 100


def training(seed: int, scale: float, rows: int = DRIFT_ROWS) -> StepColumns:
    """Rows of a job with this noise scale: gradients of a fixed size, plus noise of each shard."""
    rng = np.random.default_rng(seed)
    gradient = np.zeros(SIZE)
    gradient[0] = 1.0
    spread = np.sqrt(scale / SIZE / (BATCH / SHARDS))
    shards = gradient + spread * rng.standard_normal((rows, SHARDS, SIZE))
    local = np.square(shards).sum(axis=2).mean(axis=1)
    mean = np.square(shards.mean(axis=1)).sum(axis=1)
    zeros = (0.0,) * rows
    return StepColumns(
        iteration=tuple(range(rows)),
        shards=(SHARDS,) * rows,
        local_norm_sq=tuple(local.tolist()),
        mean_norm_sq=tuple(mean.tolist()),
        compute_time=zeros,
        sync_time=zeros,
        step_time=zeros,
        loss=(None,) * rows,
    )


@pytest.mark.parametrize("scale", [5.0, 400.0])
def test_the_same_noise_scale_hardly_ever_counts_as_drifted(scale):
    drifts = [detect_drift(training(seed, scale), BATCH, scale) for seed in range(50)]
    assert sum(drift.has_drifted for drift in drifts) <= 2
    assert sum(drift.interval[0] <= scale <= drift.interval[1] for drift in drifts) >= 44


def test_noise_at_the_factor_that_matters_is_hardly_ever_an_alarm():
    planned = 64.0 / DRIFT_FACTOR
    alarms = [detect_drift(training(seed, 64.0), BATCH, planned).has_drifted for seed in range(30)]
    assert sum(alarms) <= 3


@pytest.mark.parametrize(("before", "word"), [(1 / 3, "grew"), (3, "fell")])
@pytest.mark.parametrize("scale", [20.0, 64.0, 200.0])
def test_a_tripled_noise_scale_is_noticed(scale, before, word):
    for seed in range(5):
        drift = detect_drift(training(seed, scale), BATCH, scale * before)
        assert drift.has_drifted
        assert f"φ {word} from" in drift.why
        low, high = drift.interval
        assert low <= drift.noise_scale <= high


def test_too_few_rows_wait_and_say_so():
    drift = detect_drift(training(1, 64.0, MIN_DRIFT_ROWS - 3), BATCH, 1.0)
    assert (drift.has_drifted, drift.noise_scale, drift.interval) == (False, None, None)
    assert drift.why == "3 more noise rows are needed to see a drift"


def test_only_the_newest_rows_count():
    old, new = training(1, 5.0), training(2, 300.0)
    both = StepColumns.concat((old, new))
    assert detect_drift(both, BATCH, 5.0) == detect_drift(new, BATCH, 5.0)


def test_noise_that_hides_the_gradient_is_no_drift():
    columns = training(3, 1e9, MIN_DRIFT_ROWS)
    drift = detect_drift(columns, BATCH, 64.0)
    assert not drift.has_drifted
    assert drift.why


def test_a_job_without_losses_settles_on_rows_alone_and_says_what_it_cannot_know():
    stability = assess_stability(training(4, 64.0, 400), BATCH)
    assert stability.is_stable
    assert stability.why.startswith("no loss is logged")
    assert stability.noise.noise_scale == pytest.approx(64.0, rel=0.4)
