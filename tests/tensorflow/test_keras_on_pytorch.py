"""Scripts of Keras on PyTorch under `agent run`: an optimizer of Keras ends a step, too."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.conductor import Conductor
from tests.conformance.test_instrumentation import STEPS, InstrumentationContract
from tests.integration.test_run import (
    GROW_AND_SHRINK,
    conduct,
    confirmed,
    rows_of,
    shards_by_generation,
)
from tests.tensorflow.scripts.together import free_port
from tests.tensorflow.test_instrumentation import RUN, SCRIPTS, play, rows_in
from tests.tensorflow.test_warm_restart import steps_told

pytestmark = pytest.mark.slow

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
LOOP = [*TORCHRUN, str(SCRIPTS / "torch_loop.py")]

FIT = """
import os
os.environ["KERAS_BACKEND"] = "torch"
import keras, numpy as np

keras.utils.set_random_seed(1)
model = keras.Sequential([keras.layers.InputLayer((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
inputs = np.random.default_rng(1).normal(size=(96, 4)).astype("float32")
model.fit(inputs, inputs.sum(1), batch_size=8, verbose=0, epochs=EPOCHS)
print("trained")
"""


class TestKerasOnPyTorch(InstrumentationContract):
    alone = FIT.replace("EPOCHS", "1")
    together = (SCRIPTS / "torch_loop.py").read_text()

    def launch(self, script: Path) -> list[str]:
        return [*TORCHRUN, str(script)]


@pytest.mark.parametrize("kind", ["plain", "scaled"])
def test_weights_are_equal_to_the_last_bit_and_norms_those_of_the_gradients(
    tmp_path: Path, kind: str
) -> None:
    command = [*LOOP, kind, "gradients"]
    plain = play(command, tmp_path / "plain")
    watched = play([*RUN, "--out", "rows.jsonl", "--", *command], tmp_path / "watched")
    assert plain.returncode == watched.returncode == 0, plain.stderr + watched.stderr
    assert plain.stdout == watched.stdout
    assert plain.stdout.startswith("weights ")
    assert watched.stderr.count("scavenger: ") == 1
    assert "scavenger: measured: Keras on PyTorch, replicas: 2\n" in watched.stderr
    gradients = [np.load(tmp_path / "watched" / f"gradients.{rank}.npy") for rank in (0, 1)]
    rows = {row.iteration: row for row in rows_in(tmp_path / "watched" / "rows.jsonl")}
    assert sorted(rows) == list(range(1, STEPS + 1))
    for step, row in rows.items():
        own = [each[step - 1].astype(np.float64) for each in gradients]
        mean = np.mean(own, axis=0)
        assert row.local_norm_sq == pytest.approx(np.mean([each @ each for each in own]), rel=1e-5)
        assert row.mean_norm_sq == pytest.approx(mean @ mean, rel=1e-5)


def test_gradients_that_keras_accumulates_are_one_step(tmp_path: Path) -> None:
    ran = play([*RUN, "--out", "rows.jsonl", "--", *LOOP, "accumulated"], tmp_path)
    assert ran.returncode == 0, ran.stderr
    rows = rows_in(tmp_path / "rows.jsonl")
    assert [(row.iteration, row.samples) for row in rows] == [
        (number + 1, 2 * 2 * 8) for number in range(STEPS // 2)
    ]


def test_fit_trains_the_same_and_is_said_to_be_measured(tmp_path: Path) -> None:
    script = FIT.replace('"trained"', "model.history.history, model.get_weights()")
    script = script.replace("EPOCHS", "3").replace("verbose=0", "verbose=0, validation_split=0.25")
    command = [sys.executable, "-c", script]
    plain = play(command, tmp_path)
    watched = play([*RUN, "--out", "rows.jsonl", "--", *command], tmp_path)
    assert plain.returncode == watched.returncode == 0, plain.stderr + watched.stderr
    assert plain.stdout == watched.stdout
    assert watched.stderr.count("scavenger: ") == 1
    assert "scavenger: measured: Keras on PyTorch, replicas: 1\n" in watched.stderr
    metrics = [row.metrics for row in rows_in(tmp_path / "rows.jsonl") if row.metrics]
    assert metrics
    assert {name for each in metrics for name in each} == {"loss", "val_loss"}


def test_a_script_that_trains_nothing_is_said_to_be_unmeasured(tmp_path: Path) -> None:
    script = "import os; os.environ['KERAS_BACKEND'] = 'torch'; import keras, tensorflow"
    ran = play([*RUN, "--out", "rows.jsonl", "--", sys.executable, "-c", script], tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr.count("scavenger: ") == 1
    assert "scavenger: unmeasured: no step of an optimizer was seen\n" in ran.stderr


FORKED = """
import os
os.environ |= {"KERAS_BACKEND": "torch", "MASTER_ADDR": "localhost", "MASTER_PORT": "FREE"}
import keras, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

def train(rank, workers):
    dist.init_process_group("gloo", rank=rank, world_size=workers)
    model = keras.Sequential([keras.layers.InputLayer((4,)), keras.layers.Dense(1)])
    parallel, optimizer = DistributedDataParallel(model), keras.optimizers.SGD(0.1)
    for _ in range(12):
        parallel.zero_grad()
        parallel(torch.randn(8, 4)).square().mean().backward()
        variables = model.trainable_variables
        optimizer.apply([each.value.grad for each in variables], variables)
    dist.destroy_process_group()

torch.multiprocessing.start_processes(train, args=(2,), nprocs=2, start_method="fork")
"""


def test_processes_that_the_script_forks_are_measured(tmp_path: Path) -> None:
    with ExitStack() as kept:
        script = FORKED.replace("FREE", str(free_port(kept)))
        ran = play([*RUN, "--out", "rows.jsonl", "--", sys.executable, "-c", script], tmp_path)
    assert ran.returncode == 0, ran.stderr
    rows = rows_in(tmp_path / "rows.jsonl")
    assert [(row.iteration, row.shards) for row in rows] == [(n + 1, 2) for n in range(STEPS)]
    assert ran.stderr.count("scavenger: ") == 1
    assert "scavenger: measured: Keras on PyTorch, replicas: 2\n" in ran.stderr


def end(directory: Path, conductor: Conductor) -> tuple[list[int], str]:
    (directory / "end").touch()
    return [process.wait() for process in conductor.processes.values()], conductor.logs()


@pytest.mark.parametrize("kind", ["ddp", "alone"])
def test_a_restart_keeps_weights_slots_and_iterations(tmp_path: Path, kind: str) -> None:
    script = [sys.executable, str(SCRIPTS / "torch_elastic.py"), kind]
    plan = GROW_AND_SHRINK if kind == "ddp" else (["w0"], ["w0"])
    with conduct(tmp_path, *script) as conductor:
        for worker in {name for names in plan for name in names}:
            conductor.start(worker)
        try:
            for number, names in enumerate(plan):
                generation = conductor.order(list(names), 16 + 16 * number)
                conductor.wait(lambda it=generation: rows_of(conductor.reports, it) >= 20)
                conductor.wait(
                    lambda it=generation, n=names: confirmed(conductor.reports, it).issuperset(n)
                )
        finally:
            codes, said = end(tmp_path, conductor)
        shards = shards_by_generation(conductor.reports)
        iterations = [i for report in conductor.reports for i in report.steps.iteration]
    assert codes == [0] * len(codes), said
    assert shards == {number: {len(names)} for number, names in enumerate(plan, 1)}
    assert said.count("training continues from iteration") == len(plan) - 1, said
    told = steps_told(tmp_path)
    after = {step["iteration"]: step["after"] for step in told}
    # Alone, when a start's first iteration began is unknown.
    missing = set(range(1, max(iterations) + 1)) - set(iterations)
    assert len(missing) <= (0 if kind == "ddp" else len(plan)), (missing, said)
    for step in told:
        number = step["iteration"]
        assert step["after"] == after[number], "all workers have the same state"
        if step["before"] is not None:
            assert step["before"] == after[number - 1]
    for generation in range(2, len(plan) + 1):
        first = min(s["iteration"] for s in told if s["generation"] == generation)
        assert first == max(s["iteration"] for s in told if s["generation"] < generation)


def test_a_model_that_the_script_loads_comes_before_ours(tmp_path: Path) -> None:
    script = [sys.executable, str(SCRIPTS / "torch_elastic.py"), "ddp", "own.keras"]
    with conduct(tmp_path, *script) as conductor:
        conductor.start("w0")
        try:
            for batch in (16, 32):
                generation = conductor.order(["w0"], batch)
                conductor.wait(lambda it=generation: rows_of(conductor.reports, it) >= 25)
        finally:
            codes, said = end(tmp_path, conductor)
    assert codes == [0], said
    assert said.count("the script continues from its own checkpoint") == 1
    numbers = [each["iteration"] for each in steps_told(tmp_path) if each["generation"] == 2]
    assert numbers[0] % 10 == 1, "the step after the last one that the script saved"
