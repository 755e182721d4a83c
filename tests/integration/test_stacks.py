"""Real processes change their stack while they train; the trajectory must not notice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from scavenger.stack import StackCheck
from tests.conductor import Conductor
from tests.integration import stacked
from tests.integration.forked import fork
from tests.integration.test_elastic import (
    assert_each_epoch_holds_every_sample_once,
    replay,
    trajectory,
)
from tests.integration.trainee import SAMPLES

SCRIPT = str(Path(stacked.__file__))
COMPILED = "compiled_whole+fused"


def conduct(directory: Path, **environment: str) -> Conductor:
    return Conductor(
        directory,
        [SCRIPT],
        dataset_size=SAMPLES,
        purpose="probe",
        environment={"PACE": "0.002", **environment},
        launch=fork,
    )


def checks_of(conductor: Conductor, worker: str) -> tuple[StackCheck, ...]:
    """Return what a worker has found out about stacks by its last report."""
    own = [report for report in conductor.reports if report.worker == worker]
    return own[-1].progress.stack_checks


@pytest.mark.slow  # `make chaos` changes stacks, too
def test_the_trajectory_over_stacks_and_resizes_is_that_of_one_eager_process(
    tmp_path: Path,
) -> None:
    plan = [(1, "eager"), (1, COMPILED), (2, COMPILED), (2, "fused"), (3, COMPILED), (1, COMPILED)]
    with conduct(tmp_path) as conductor:
        for number in range(3):
            conductor.start(f"w{number}")
        for workers, stack in plan:
            names = [f"w{number}" for number in range(workers)]
            generation = conductor.order(names, 24, stack=stack)
            conductor.wait_applied(generation, iterations=12)
        regrouped = [report.regrouped for report in conductor.reports if report.regrouped]
        found = {worker: checks_of(conductor, worker) for worker in ("w0", "w1", "w2")}
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)
    assert len(losses) > 60
    assert all(change.iterations_lost == 0 for change in regrouped)
    assert_each_epoch_holds_every_sample_once(order)
    assert all(check.refusal == "" for checks in found.values() for check in checks)
    # Each local batch once, though the job came back to the first.
    assert [check.local_batch for check in found["w0"]] == [24, 12, 8]
    assert [check.local_batch for check in found["w1"]] == [12, 8]


@pytest.mark.parametrize("victim", ["w0", pytest.param("w1", marks=pytest.mark.slow)])
def test_a_worker_that_dies_in_its_rehearsal_is_left_behind(tmp_path: Path, victim: str) -> None:
    other = "w1" if victim == "w0" else "w0"
    with conduct(tmp_path, DIES_IN_REHEARSAL=victim) as conductor:
        for name in ("w0", "w1"):
            conductor.start(name)
        conductor.wait_applied(conductor.order(["w0", "w1"], 24), iterations=10)
        conductor.order(["w0", "w1"], 24, stack=COMPILED)
        conductor.wait(lambda: conductor.processes[victim].poll() is not None)
        before = max(report.progress.iteration for report in conductor.reports)
        conductor.wait(
            lambda: any(
                report.worker == other and report.progress.iteration > before + 10
                for report in conductor.reports
            )
        )
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)


def test_a_newcomer_rehearses_before_it_says_hello_and_not_again(tmp_path: Path) -> None:
    told = {"SCAVENGER_STACK": COMPILED, "SCAVENGER_LOCAL_BATCH": "12"}
    with conduct(tmp_path) as conductor:
        conductor.start("w0")
        conductor.wait_applied(conductor.order(["w0"], 24), iterations=10)
        conductor.environment = {**conductor.environment, **told}
        conductor.start("w1")
        conductor.wait(lambda: "w1" in conductor.hellos)
        rehearsed = conductor.rows("w1")
        generation = conductor.order(["w0", "w1"], 24, stack=COMPILED)
        conductor.wait_applied(generation, iterations=10)
        found = {worker: checks_of(conductor, worker) for worker in ("w0", "w1")}
    order, losses = trajectory(conductor)
    assert np.allclose(losses, replay(order), rtol=0, atol=1e-10)
    assert [len(row["indices"]) for row in rehearsed] == [12]
    assert [check.local_batch for check in found["w0"]] == [12]
    assert [check.local_batch for check in found["w1"]] == [12]
