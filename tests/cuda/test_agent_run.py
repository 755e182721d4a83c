"""The hooks of ``agent run`` on a GPU: right times and norms, the same weights, and no waits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from tests.cuda.load import (
    STEPS,
    WARM_UP,
    HeavyTask,
    group_of_one,
    refuse_waits,
    synchronised_times,
)
from worker_agent.launcher.step_records import MeasuredStep, from_line
from worker_agent.pytorch.instrumentation import Instrumentation

ROOT = Path(__file__).parents[2]
RANKS = 2


class MeasuredTask(HeavyTask):
    """The same network in DDP, measured as ``agent run`` does it."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[MeasuredStep] = []
        self.attached = Instrumentation(0, self.rows.append)
        self.parallel = DistributedDataParallel(self.model)
        self.attached.parallel.listen(self.parallel)
        self.optimizer.register_step_post_hook(self.attached.after_step)

    def iterate(self, steps: int) -> None:
        for _ in range(steps):
            self.step(self.parallel)


@contextmanager
def measured_task() -> Iterator[MeasuredTask]:
    with group_of_one():
        task = MeasuredTask()
        yield task
        task.attached.close()
    assert [row.iteration for row in task.rows] == list(range(1, len(task.rows) + 1))


def test_times_are_those_of_the_device() -> None:
    computing, whole = synchronised_times()
    with measured_task() as task:
        task.iterate(WARM_UP + STEPS)
    assert len(task.rows) == WARM_UP + STEPS
    rows = task.rows[WARM_UP:]
    assert median(row.compute_time for row in rows) == pytest.approx(computing, rel=0.2)
    assert median(row.step_time for row in rows) == pytest.approx(whole, rel=0.2)


def test_no_step_waits_for_the_device() -> None:
    with measured_task() as task:
        task.iterate(WARM_UP)
        with refuse_waits():
            task.iterate(STEPS)
    assert len(task.rows) == WARM_UP + STEPS


def test_weights_are_those_without_the_agent() -> None:
    with measured_task() as task:
        task.iterate(2 * WARM_UP)
    with group_of_one():
        plain = HeavyTask()
        parallel = DistributedDataParallel(plain.model)
        for _ in range(2 * WARM_UP):
            plain.step(parallel)
    assert torch.equal(plain.weights(), task.weights())


def test_the_norms_found_are_those_computed_by_hand(tmp_path: Path) -> None:
    rows, truth = tmp_path / "rows.jsonl", tmp_path / "truth.json"
    run = [sys.executable, "-m", "worker_agent", "run", "--out", str(rows), "--"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={RANKS}"]
    subprocess.run(
        [*run, *torchrun, str(ROOT / "tests/integration/listened.py"), str(truth), "cuda"],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        check=True,
    )
    happened = [each for each in json.loads(truth.read_text()) if each["is_applied"]]
    found = [from_line(line) for line in rows.read_text().splitlines()]
    assert [row.iteration for row in found] == list(range(1, len(happened) + 1))
    for each, row in zip(happened, found, strict=True):
        assert each["reads"] == [] or each["way"] in ("unused", "static")
        if row.local_norm_sq is not None:
            assert row.local_norm_sq == pytest.approx(each["local_norm_sq"], rel=1e-3)
            assert row.mean_norm_sq == pytest.approx(each["mean_norm_sq"], rel=1e-2)
    assert sum(row.local_norm_sq is not None for row in found) >= len(found) - 2
