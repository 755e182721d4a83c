"""Scripts of TensorFlow under `agent run`: what is measured, and that nothing else changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.conformance.test_instrumentation import STEPS, InstrumentationContract
from worker_agent.launcher.step_records import MeasuredStep, from_line
from worker_agent.tensorflow.instrumentation import is_too_old

SCRIPTS = Path(__file__).parent / "scripts"
TOGETHER = [sys.executable, str(SCRIPTS / "together.py")]
RUN = [sys.executable, "-m", "worker_agent", "run"]
LIBRARIES = ["keras", pytest.param("tf_keras", marks=pytest.mark.slow)]

ALONE = """
import KERAS as keras
import tensorflow as tf

model = keras.Sequential([keras.layers.InputLayer((4,)), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)
optimizer.build(model.trainable_variables)

@tf.function
def step(inputs):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs, training=True))
    variables = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

for _ in range(12):
    step(tf.random.normal((8, 4)))
print("trained")
"""


class TensorFlowContract(InstrumentationContract):
    library: str

    def launch(self, script: Path) -> list[str]:
        return [*TOGETHER, str(script), self.library]


class TestKeras3(TensorFlowContract):
    library = "keras"
    alone = ALONE.replace("KERAS", "keras")
    together = (SCRIPTS / "loop.py").read_text()


@pytest.mark.slow
class TestTfKeras(TensorFlowContract):
    library = "tf_keras"
    alone = ALONE.replace("KERAS", "tf_keras")
    together = (SCRIPTS / "loop.py").read_text()


def play(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    directory.mkdir(exist_ok=True)
    return subprocess.run(command, capture_output=True, text=True, cwd=directory, timeout=300)


def rows_in(path: Path) -> list[MeasuredStep]:
    return [from_line(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_are_equal_to_the_last_bit_and_norms_those_of_the_gradients(
    tmp_path: Path, library: str
) -> None:
    command = [*TOGETHER, str(SCRIPTS / "loop.py"), library, "gradients"]
    plain = play(command, tmp_path / "plain")
    watched = play([*RUN, "--out", "rows.jsonl", "--", *command], tmp_path / "watched")
    assert plain.returncode == watched.returncode == 0, plain.stderr + watched.stderr
    assert plain.stdout == watched.stdout
    assert plain.stdout.startswith("weights ")
    assert watched.stderr.count("scavenger: measured: ") == 1
    gradients = [np.load(tmp_path / "watched" / f"gradients.{rank}.npy") for rank in (0, 1)]
    rows = {row.iteration: row for row in rows_in(tmp_path / "watched" / "rows.jsonl")}
    assert sorted(rows) == list(range(1, STEPS + 1))
    for step, row in rows.items():
        own = [each[step - 1].astype(np.float64) for each in gradients]
        local = np.mean([each @ each for each in own])
        mean = np.mean(own, axis=0)
        assert row.framework == "tensorflow"
        assert row.local_norm_sq == pytest.approx(local, rel=1e-5)
        assert row.mean_norm_sq == pytest.approx(mean @ mean, rel=1e-5)


@pytest.mark.slow
def test_a_script_that_trains_nothing_of_keras_is_said_to_be_unmeasured(tmp_path: Path) -> None:
    script = "import tensorflow as tf; print(int(tf.constant(1) + 1))"
    ran = play([*RUN, "--out", "rows.jsonl", "--", sys.executable, "-c", script], tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "2\n"), ran.stderr
    assert ran.stderr.count("scavenger: unmeasured: no step of a Keras optimizer or of") == 1
    assert not (tmp_path / "rows.jsonl").exists()


@pytest.mark.slow
def test_a_step_that_xla_compiles_is_said_to_be_unmeasured(tmp_path: Path) -> None:
    script = ALONE.replace("KERAS", "keras").replace("@tf.function", "@tf.function(jit_compile=1)")
    ran = play([*RUN, "--out", "rows.jsonl", "--", sys.executable, "-c", script], tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "trained\n"), ran.stderr
    assert "scavenger: unmeasured: steps that XLA compiles: remove jit_compile=True" in ran.stderr


@pytest.mark.parametrize(
    ("version", "is_old"),
    [("2.9.1", True), ("2.20.0", True), ("2.21.0", False), ("2.22.0rc0", False)],
)
def test_versions_before_2_21_are_not_measured(version: str, is_old: bool) -> None:
    assert is_too_old(version) == is_old
