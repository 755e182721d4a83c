"""A session on a GPU: its times are the device's, its noise the CPU's, and no step waits."""

from __future__ import annotations

from pathlib import Path
from statistics import median

import pytest
import torch

from tests.alone import attach_alone
from tests.cuda.load import (
    STEPS,
    WARM_UP,
    HeavyTask,
    queueing_time,
    refuse_waits,
    synchronised_times,
)
from tests.played_session import PLAYED_ITERATIONS, play
from worker_agent.frameworks import NO_FLAGS, WHOLE_BATCH, BatchSlice, LateMeasurement
from worker_agent.training.recorder import StepRecorder

HALVES = [BatchSlice(0.5, 1.0, is_last=False), BatchSlice(0.5, 1.0, is_last=True)]


class AttachedTask(HeavyTask):
    """The same network under the agent, one worker alone."""

    def __init__(self, parts: list[BatchSlice]) -> None:
        super().__init__()
        self.parts, self.iteration = parts, 0
        self.strategy = attach_alone(self.model, self.optimizer)
        self.recorder = StepRecorder()
        self.late: list[LateMeasurement] = []

    def iterate(self) -> None:
        """Do what a session does in one iteration and at its end."""
        self.iteration += 1
        for part in self.parts:
            self.strategy.begin(part, NO_FLAGS)
            loss = self.step(self.model)
            self.recorder.log({"loss": loss}, self.iteration)
        assert self.strategy.end()
        summary = self.strategy.previous_summary
        self.recorder.read_tensors()
        self.recorder.record(1, self.iteration, 0.0, summary)
        if summary is not None and summary.late is not None:
            self.late += summary.late


def train(parts: list[BatchSlice], steps: int) -> AttachedTask:
    """Train so long, and then until the device has finished what was measured."""
    task = AttachedTask(parts)
    for _ in range(steps):
        task.iterate()
    torch.cuda.synchronize()
    task.iterate()
    task.iterate()
    task.strategy.close()
    return task


def test_times_are_those_of_the_device() -> None:
    computing, whole = synchronised_times()
    task = train([WHOLE_BATCH], WARM_UP + STEPS)
    assert [each.place for each in task.late] == list(range(len(task.late)))
    assert len(task.late) >= WARM_UP + STEPS - 1
    measured = task.late[WARM_UP : WARM_UP + STEPS - 1]
    print(f"queued in {queueing_time():.4f} s, computed in {computing:.4f} s of {whole:.4f} s")
    assert median(each.compute_time for each in measured) == pytest.approx(computing, rel=0.2)
    assert median(each.step_time for each in measured) == pytest.approx(whole, rel=0.2)


@pytest.mark.parametrize("parts", [[WHOLE_BATCH], HALVES], ids=["whole", "in halves"])
def test_no_step_waits_for_the_device(parts: list[BatchSlice]) -> None:
    task = AttachedTask(parts)
    for _ in range(WARM_UP):
        task.iterate()
    with refuse_waits():
        with pytest.raises(RuntimeError, match="synchronizing"):
            task.inputs.sum().item()
        for _ in range(STEPS):
            task.iterate()
    torch.cuda.synchronize()
    task.iterate()
    task.strategy.close()
    assert len(task.late) >= WARM_UP + STEPS - 1
    assert task.recorder.metrics["loss"] > 0
    norms = [each.local_norm_sq for each in task.late]
    assert all((norm is not None) == (len(parts) > 1) for norm in norms)


def test_weights_are_those_without_the_agent() -> None:
    plain, watched = HeavyTask(), train([WHOLE_BATCH], WARM_UP)
    for _ in range(watched.iteration):
        plain.step(plain.model)
    assert torch.equal(plain.weights(), watched.weights())


@pytest.mark.parametrize("strategy", ["all_reduce", "parameter_server"])
@pytest.mark.parametrize(("workers", "split_every"), [(1, 2), (2, 0)])
def test_a_job_tells_what_it_tells_on_a_cpu(
    tmp_path: Path, strategy: str, workers: int, split_every: int
) -> None:
    options = {"workers": workers, "split_every": split_every, "strategy": strategy}
    on_cpu = play(tmp_path / "cpu", **options)
    on_gpu = play(tmp_path / "gpu", **options, device="cuda")
    assert len(on_gpu.rows) >= PLAYED_ITERATIONS // 2
    for iteration in on_cpu.rows.keys() & on_gpu.rows.keys():
        shards, local, mean, _ = on_cpu.rows[iteration]
        expected = pytest.approx((shards, local, mean), rel=1e-3, nan_ok=True)
        assert on_gpu.rows[iteration][:3] == expected
    if strategy == "all_reduce":
        assert on_gpu.reads == []
        for iteration in on_cpu.rows.keys() & on_gpu.rows.keys():
            loss = on_cpu.rows[iteration][3]
            assert on_gpu.rows[iteration][3] == pytest.approx(loss, rel=1e-3)
    assert torch.allclose(on_gpu.weights, on_cpu.weights, rtol=0, atol=1e-9)
