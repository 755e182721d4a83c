"""What the agent requires of the instrumentation of a framework; each inherits the contract."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from worker_agent.launcher.step_records import MeasuredStep, from_line

STEPS = 12


class InstrumentationContract:
    """Run scripts of the framework under ``agent run --out`` and read what was measured.

    Attributes:
        alone: A script of one process; it trains 12 steps of 8 samples and prints "trained".
        together: A script of two processes that average gradients, each with 8 samples a step.
    """

    alone: str
    together: str

    @staticmethod
    def run(directory: Path, command: list[str]) -> tuple[str, list[MeasuredStep]]:
        rows = directory / "rows.jsonl"
        agent = [sys.executable, "-m", "worker_agent", "run", "--out", str(rows), "--", *command]
        ran = subprocess.run(agent, capture_output=True, text=True, cwd=directory, timeout=300)
        assert ran.returncode == 0, ran.stdout + ran.stderr
        return ran.stdout, [from_line(line) for line in rows.read_text().splitlines()]

    def launch(self, script: Path) -> list[str]:
        """Return the command that runs a script in two processes."""
        raise NotImplementedError

    def test_a_script_alone_is_measured_and_prints_what_it_prints_without(
        self, tmp_path: Path
    ) -> None:
        said, rows = self.run(tmp_path, [sys.executable, "-c", self.alone])
        assert said == "trained\n"
        # When a loop without averaging began its first step is unknown.
        numbers = [row.iteration for row in rows]
        assert numbers in (list(range(1, STEPS + 1)), list(range(2, STEPS + 1)))
        for row in rows:
            assert (row.shards, row.local_norm_sq, row.mean_norm_sq) == (1, None, None)
            assert 0 <= row.compute_time <= row.step_time

    def test_two_processes_measure_noise_times_and_samples(self, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        script.write_text(self.together)
        _, rows = self.run(tmp_path, self.launch(script))
        assert len(rows) >= STEPS - 1
        for row in rows:
            assert row.shards == 2
            assert row.samples == 16
            assert row.local_norm_sq is not None
            assert row.mean_norm_sq is not None
            # The mean of gradients is at most as long as they are (Eq. 2: noise is at least 1).
            assert row.local_norm_sq >= row.mean_norm_sq * (1 - 1e-6) > 0
            assert row.fastest_compute_time <= row.mean_compute_time <= row.compute_time


ALONE = """
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).sum().backward()
    optimizer.step()
print("trained")
"""
# PyTorch aborts once in some forty such scripts as the interpreter ends, with or without the agent.
TOGETHER = """
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(dist.get_rank())
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
os._exit(0)
"""


class TestPyTorch(InstrumentationContract):
    alone = ALONE
    together = TOGETHER

    def launch(self, script: Path) -> list[str]:
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return [sys.executable, *torchrun, str(script)]
