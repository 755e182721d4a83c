"""Trainers of Hugging Face, Lightning and Keras, resized in training: 1 worker, 2, and 1 again."""

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
# And what their evaluation is called in the job, and how exactly the weights agree. The gradients
# that Keras makes of two halves differ by 1e-8 from those of the whole, without any agent.
TRAINERS = {
    "transformers": ("eval_loss", 1e-9),
    "lightning": ("val_loss", 1e-9),
    "keras": ("val_loss", 1e-7),
}


def facts(directory: Path, worker: str) -> Any:
    return json.loads((directory / f"{worker}.json").read_text())


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_that_is_resized_ends_as_one_that_is_alone(trainer: str, tmp_path: Path) -> None:
    evaluated, tolerance = TRAINERS[trainer]
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
    assert np.allclose(resized["weights"], alone["weights"], rtol=0, atol=tolerance)
    # The first iterations of a generation are not measured.
    assert len(losses) > ITERATIONS / 2
    assert 0 < metrics["loss"] < losses[0]
    assert 0 < metrics[evaluated] < losses[0]


OPTIONS = {
    "jit_compile": {"jit_compile": True},
    "gradient_accumulation_steps": {"optimizer": {"gradient_accumulation_steps": 2}},
    "schedule": {"optimizer": {"learning_rate": {"initial_learning_rate": 1, "decay_steps": 9}}},
    "scaled": {"optimizer": {"loss_scale_factor": 8.0}},
    "no optimizer": None,
}


@pytest.mark.parametrize(("word", "options"), OPTIONS.items())
def test_keras_refuses_what_a_job_cannot_follow(word: str, options: dict[str, Any] | None) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras

    from worker_agent.integrations.keras import check_model

    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    if options is not None:
        given = dict(options.get("optimizer", {}))
        if isinstance(rate := given.get("learning_rate"), dict):
            given["learning_rate"] = keras.optimizers.schedules.CosineDecay(**rate)
        others = {name: value for name, value in options.items() if name != "optimizer"}
        model.compile(keras.optimizers.SGD(**given), "mse", **others)
    with pytest.raises(ValueError, match=word):
        check_model(model)
