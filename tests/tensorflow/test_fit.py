"""`fit` of Keras 3 and tf_keras under `agent run`: measured, at the job's batch, up to a metric."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from scavenger.protocol import StopAtMetric
from tests.integration.test_run import conduct
from tests.tensorflow.test_instrumentation import LIBRARIES, RUN, SCRIPTS, TOGETHER, play, rows_in

EPOCHS, STEPS = 3, 5


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("rebatch", [pytest.param(None, marks=pytest.mark.slow), 8])
def test_steps_and_metrics_of_all_epochs_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str, rebatch: int | None
) -> None:
    if rebatch is not None:
        monkeypatch.setenv("SCAVENGER_REBATCH", str(rebatch))
    script = [str(SCRIPTS / "fitting.py"), library, str(EPOCHS)]
    ran = play([*RUN, "--out", "rows.jsonl", "--", *TOGETHER, *script], tmp_path)
    assert ran.returncode == 0, ran.stderr
    told = json.loads(ran.stdout)
    rows = rows_in(tmp_path / "rows.jsonl")
    assert [row.iteration for row in rows] == list(range(1, EPOCHS * STEPS + 1))
    assert {(row.shards, row.samples) for row in rows} == {(2, rebatch or 16)}
    assert all(row.local_norm_sq and row.mean_norm_sq for row in rows)
    metrics = [row.metrics for row in rows if row.metrics]
    assert 0 < metrics[-1]["accuracy"] <= 1
    # tf_keras adds the metrics of its workers up, Keras 3 averages them.
    parts = 2 if library == "tf_keras" else 1
    assert {name: value / parts for name, value in told.items()} == pytest.approx(metrics[-1])


@pytest.mark.slow
def test_a_job_ends_when_a_metric_of_fit_reaches_its_goal(tmp_path: Path) -> None:
    script = [sys.executable, str(SCRIPTS / "fitting.py"), "keras", "100000"]
    goal = StopAtMetric("accuracy", 0.9, "at_least", 100_000.0)
    with conduct(tmp_path, *script) as conductor:
        conductor.stop = goal
        conductor.start("w0")
        conductor.order(["w0"], 32)
        code = conductor.processes["w0"].wait()
        last = conductor.reports[-1]
    assert code == 0, conductor.logs()
    assert last.finished == "target"
    assert last.progress.metrics["accuracy"] >= 0.9
    assert last.progress.samples == 32 * last.progress.iteration
