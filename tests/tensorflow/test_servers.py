"""Scripts with TensorFlow's parameter servers: measured, while their workers come and go."""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scavenger.protocol import Member, StepColumns, StopAtProgress
from tests.conductor import Conductor
from tests.integration.test_run import conduct, rows_of
from tests.tensorflow.test_instrumentation import SCRIPTS
from tests.tensorflow.test_warm_restart import children_named

HOSTS = [
    "--ps_hosts={ps_hosts}",
    "--worker_hosts={worker_hosts}",
    "--job_name={job_name}",
    "--task_index={task_index}",
]


@contextmanager
def servers_and_workers(
    directory: Path, workers: int, *flags: str, **environment: str
) -> Iterator[Conductor]:
    """Conduct a job with two servers and so many workers, which have said hello."""
    script = [sys.executable, str(SCRIPTS / "servers.py"), *HOSTS, *flags]
    with conduct(directory, *script, **environment) as conductor:
        for number in range(2):
            conductor.environment = {**conductor.environment, "SCAVENGER_ROLE": "server"}
            conductor.start(f"s{number}")
        conductor.environment = {**conductor.environment, "SCAVENGER_ROLE": "worker"}
        for number in range(workers):
            conductor.start(f"w{number}")
        conductor.wait(lambda: all(f"s{number}" in conductor.hellos for number in range(2)))
        yield conductor


def order(conductor: Conductor, workers: list[str], local_batch: int, **changes: Any) -> int:
    """Publish a Directive with the servers that there are."""
    servers = tuple(Member(f"s{n}", conductor.hellos[f"s{n}"].address) for n in range(2))
    batch = local_batch * len(workers)
    return conductor.order(workers, batch, servers=servers, strategy="parameter_server", **changes)


def gradients_told(directory: Path) -> list[dict[str, Any]]:
    """Return what the workers wrote of each gradient that they gave."""
    texts = [file.read_text() for file in directory.glob("*-*-*.jsonl")]
    return [json.loads(line) for text in texts for line in text.splitlines() if line[-1:] == "}"]


def steps_told(directory: Path) -> dict[int, dict[int, dict[str, Any]]]:
    """Return the same by step and task; no task may have given two for a step."""
    told: dict[int, dict[int, dict[str, Any]]] = defaultdict(dict)
    for gradient in gradients_told(directory):
        assert gradient["task"] not in told[gradient["step"]], "a step counted one twice"
        told[gradient["step"]][gradient["task"]] = gradient
    return told


def replay(told: dict[int, dict[int, dict[str, Any]]], steps: range) -> None:
    """Check that each step is the one of gradient descent that its gradients make.

    The rate and the momentum are those of the script.
    """
    momentum: Any = 0.0
    for step in steps:
        weights = [np.array(worker["weights"]) for worker in told[step].values()]
        assert all(np.array_equal(weights[0], each) for each in weights), f"weights of step {step}"
        mean = np.mean([worker["gradient"] for worker in told[step].values()], axis=0)
        momentum = 0.9 * momentum + mean
        if step + 1 in told:
            after = np.array(next(iter(told[step + 1].values()))["weights"])
            np.testing.assert_allclose(after, weights[0] - 0.02 * momentum, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "flags",
    [
        ["--session=monitored"],
        pytest.param(["--session=supervisor", "--variables=reference"], marks=pytest.mark.slow),
    ],
    ids=["monitored", "supervisor"],
)
def test_workers_come_and_go_while_it_trains(tmp_path: Path, flags: list[str]) -> None:
    plan = (["w0", "w1"], ["w0", "w1", "w2"], ["w0", "w2"])
    with servers_and_workers(tmp_path, 3, *flags) as conductor:
        for names in plan:
            generation = order(conductor, list(names), 8)
            conductor.wait(lambda it=generation: rows_of(conductor.reports, it) >= 30)
        conductor.wait(lambda: conductor.processes["w1"].poll() is not None)
        conductor.stop = StopAtProgress(max_progress=0.001)
        order(conductor, ["w0", "w2"], 8)
        chief = conductor.processes["w0"]
        conductor.wait(lambda: chief.poll() is not None)
        rows = [
            {**row, "generation": report.progress.generation}
            for report in conductor.reports
            for row in columns(report.steps)
        ]
        said = conductor.logs()
    told = steps_told(tmp_path)
    assert conductor.processes["w1"].returncode == 0, said
    assert chief.wait() == 0, "it ends with the job's epochs, of which the script knows none"
    assert [row["iteration"] for row in rows] == list(range(1, len(rows) + 1)), said
    replay(told, range(len(rows)))
    tasks = {1: {0, 1}, 2: {0, 1, 2}, 3: {0, 2}, 4: {0, 2}}
    for row in rows:
        step = told[row["iteration"] - 1]
        assert set(step) == tasks[row["generation"]], "one gradient of each worker, and no other"
        gradients = [np.array(worker["gradient"]) for worker in step.values()]
        local = np.mean([gradient @ gradient for gradient in gradients])
        mean = np.mean(gradients, axis=0)
        assert row["shards"] == len(gradients)
        assert row["local_norm_sq"] == pytest.approx(local, rel=1e-5)
        assert row["mean_norm_sq"] == pytest.approx(mean @ mean, rel=1e-5)


def columns(steps: StepColumns) -> list[dict[str, Any]]:
    """Return the rows of a report."""
    names = [each.name for each in fields(steps)]
    values = zip(*(getattr(steps, name) for name in names), strict=True)
    return [dict(zip(names, row, strict=True)) for row in values]


@pytest.mark.slow
def test_another_batch_per_worker_restarts_all_from_a_checkpoint(tmp_path: Path) -> None:
    with servers_and_workers(tmp_path, 2) as conductor:
        for local_batch in (8, 16):
            generation = order(conductor, ["w0", "w1"], local_batch)
            conductor.wait(lambda it=generation: rows_of(conductor.reports, it) >= 30)
        iterations = [i for report in conductor.reports for i in report.steps.iteration]
        samples = conductor.reports[-1].progress.samples
        said = conductor.logs()
    told = steps_told(tmp_path)
    assert iterations == list(range(1, len(iterations) + 1)), said
    assert all(set(told[number - 1]) == {0, 1} for number in iterations)
    replay(told, range(len(iterations)))
    last = rows_of(conductor.reports, generation)
    assert samples == 16 * (len(iterations) - last) + 32 * last


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["w0", "w1", "s0"], ids=["chief", "worker", "server"])
def test_a_process_that_is_killed_is_left_behind(tmp_path: Path, victim: str) -> None:
    with servers_and_workers(tmp_path, 2, SCAVENGER_CHECKPOINT_EVERY="1") as conductor:
        generation = order(conductor, ["w0", "w1"], 8)
        conductor.wait(lambda: rows_of(conductor.reports, generation) >= 60)
        before = conductor.reports[-1].progress.iteration
        (process,) = children_named(conductor.processes[victim].pid, "servers.py")
        process.kill()
        conductor.wait(lambda: conductor.processes[victim].poll() is not None)
        assert conductor.processes[victim].returncode == -9
        if victim == "s0":  # as the supervisor does
            hello = conductor.hellos.pop("s0")
            conductor.environment = {**conductor.environment, "SCAVENGER_ROLE": "server"}
            conductor.start("s0")
            conductor.wait(lambda: conductor.hellos.get("s0", hello).address != hello.address)
        names = [name for name in ("w0", "w1") if name != victim]
        after = order(conductor, names, 8, repairs=True)
        conductor.wait(lambda: rows_of(conductor.reports, after) >= 30)
        iterations = [i for report in conductor.reports for i in report.steps.iteration]
        said = conductor.logs()
    assert iterations[-1] > before, said
    if victim == "w1":
        assert iterations == list(range(1, len(iterations) + 1)), "no restart, and nothing lost"
        of_chief = Counter(each["step"] for each in gradients_told(tmp_path) if each["task"] == 0)
        # The chief gave one for the worker that was gone; a token that was left made it give more.
        assert sum(of_chief.values()) - len(of_chief) <= 2
