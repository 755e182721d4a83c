"""Scripts of ParameterServerStrategy: rows, staleness and noise, and weights as without them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.tensorflow.test_instrumentation import LIBRARIES, RUN, SCRIPTS, play, rows_in

CLUSTER = [sys.executable, str(SCRIPTS / "cluster.py")]
SCRIPT = str(SCRIPTS / "asynchronous.py")
WORKERS, STEPS, BATCH = 2, 60, 8
NEARBY = 30  # the coordinator hears of gradients in another order than the server


@pytest.mark.slow
@pytest.mark.parametrize("library", LIBRARIES)
def test_each_push_is_in_one_row_and_the_noise_is_that_of_the_gradients(
    tmp_path: Path, library: str
) -> None:
    command = [*CLUSTER, str(WORKERS), SCRIPT, library, str(STEPS)]
    ran = play([*RUN, "--out", "rows.jsonl", "--", *command], tmp_path)
    assert ran.returncode == 0, ran.stderr
    said = "scavenger: measured: ParameterServerStrategy, asynchronous, workers: 2"
    assert ran.stderr.count("scavenger: ") == ran.stderr.count(said) == 1, ran.stderr
    rows = rows_in(tmp_path / "rows.jsonl")
    assert [row.iteration for row in rows] == list(range(1, STEPS // WORKERS + 1))
    assert {row.samples for row in rows} == {WORKERS * BATCH}
    assert all(0 <= row.metrics["staleness"] < STEPS for row in rows)
    assert all(row.compute_time > 0 and row.step_time > 0 for row in rows)
    gradients = np.load(tmp_path / "gradients.npy").astype(np.float64)
    own = np.sum(gradients**2, axis=1)
    ones, others = np.triu_indices(STEPS, 1)
    errors = []
    for row in rows:
        if row.local_norm_sq is None or row.mean_norm_sq is None:
            continue
        assert row.shards == WORKERS
        place = row.iteration * WORKERS
        near = (abs(ones - place) < NEARBY) & (abs(others - place) < NEARBY)
        exact = (own[ones[near]] + own[others[near]]) / 2
        found = np.argmin(abs(exact - row.local_norm_sq))
        assert row.local_norm_sq == pytest.approx(exact[found], rel=1e-5)
        mean = (gradients[ones[near][found]] + gradients[others[near][found]]) / 2
        errors.append(row.mean_norm_sq / (mean @ mean) - 1)
    assert len(errors) > len(rows) / 3
    assert np.median(np.abs(errors)) < 0.03


def test_weights_of_one_worker_are_equal_to_the_last_bit(tmp_path: Path) -> None:
    command = [*CLUSTER, "1", SCRIPT, "keras", "40"]
    plain = play(command, tmp_path / "plain")
    watched = play([*RUN, "--out", "rows.jsonl", "--", *command], tmp_path / "watched")
    assert plain.returncode == watched.returncode == 0, plain.stderr + watched.stderr
    assert plain.stdout == watched.stdout
    assert plain.stdout.startswith("weights ")
    rows = rows_in(tmp_path / "watched" / "rows.jsonl")
    assert [(row.samples, row.shards, row.local_norm_sq) for row in rows] == 40 * [(8, 1, None)]
