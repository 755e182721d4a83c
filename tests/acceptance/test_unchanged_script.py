"""A script that knows nothing of the agent, as a job whose search may leave it on one worker."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.controller import Controller

# It learns so slowly that its noise stays the same. A step takes as long on two workers as on one,
# so one is cheaper.
SCRIPT = """
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
samples = torch.Generator().manual_seed(dist.get_rank())
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
while True:
    x = torch.randn(64 // dist.get_world_size(), 4, generator=samples)
    y = x.sum(1, keepdim=True) + 1
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    time.sleep(0.02)
"""


@pytest.mark.slow
def test_noise_of_a_script_settles_on_two_workers_though_one_is_cheaper(
    controller: Controller, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "worker_agent", "run", "--", sys.executable, "train.py"]
    job = controller.submit(
        {
            "model": {"key": "tests/unchanged-script", "dataset_size": 1797},
            "target": {"epochs": 100_000, "at_batch": 64},
            "objective": "cheapest",
            "limits": {"workers": "1..2", "batch": [64], "max_time": "1000h"},
            "search": "partial",
            "price": "0.36 USD/h",
            "run": {
                "command": command,
                "directory": str(tmp_path),
                "env": {"GLOO_SOCKET_IFNAME": "lo"},
            },
        }
    )
    chosen = controller.wait(lambda: controller.curve(job).chosen)
    probes = controller.curve(job).probes
    told = "\n".join(event.message for event in controller.events(job))
    controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")
    controller.finished(job)
    assert chosen.workers == 1, told
    noisy = [(probe.workers, probe.noise is not None) for probe in probes]
    assert noisy == [(1, False), (2, True), (2, True)], told
    assert "noise rows: settled" in told
