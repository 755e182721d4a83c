"""Hugging Face's and Lightning's trainers, resized while they train: 1 worker, 2, and 1 again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scavenger.protocol import StopAtProgress
from tests.conductor import Conductor
from tests.integrations import trainer_scripts
from tests.integrations.trainer_scripts import BATCH, EPOCHS, ITERATIONS, SAMPLES

SCRIPT = str(Path(trainer_scripts.__file__))
# And what their evaluation is called in the job.
TRAINERS = {"transformers": "eval_loss", "lightning": "val_loss"}


def facts(directory: Path, worker: str) -> Any:
    return json.loads((directory / f"{worker}.json").read_text())


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_that_is_resized_ends_as_one_that_is_alone(trainer: str, tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, SCRIPT, trainer]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    alone = facts(tmp_path, "alone")
    assert alone["iteration"] == ITERATIONS
    with Conductor(
        tmp_path,
        [SCRIPT, trainer],
        stop=StopAtProgress(max_progress=EPOCHS),
        dataset_size=SAMPLES,
        environment={"PACE": "0.01", "HF_HUB_OFFLINE": "1"},
    ) as conductor:
        for worker in ("w0", "w1"):
            conductor.start(worker)
        for workers in (["w0"], ["w0", "w1"], ["w0"]):
            generation = conductor.order(workers, BATCH)
            conductor.wait_applied(generation, iterations=1)
        conductor.wait(lambda: all(p.poll() is not None for p in conductor.processes.values()))
        said = {worker: (tmp_path / f"{worker}.log").read_text() for worker in ("w0", "w1")}
        assert [process.wait() for process in conductor.processes.values()] == [0, 0], said
        losses = [one for report in conductor.reports for one in report.steps.loss]
        metrics = conductor.reports[-1].progress.metrics
    resized = facts(tmp_path, "w0")
    assert resized["iteration"] == alone["iteration"]
    assert np.allclose(resized["weights"], alone["weights"], rtol=0, atol=1e-9)
    # The first iterations of a generation are not measured.
    assert len(losses) > ITERATIONS / 2
    assert 0 < metrics["loss"] < losses[0]
    assert 0 < metrics[TRAINERS[trainer]] < losses[0]
