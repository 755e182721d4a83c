"""``scavenger agent audit`` names the lines that make the host wait, and no others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """\
import torch
from torch import nn

model = nn.Linear(4, 1)
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01{options})
scaler = torch.amp.GradScaler("cpu")
total = torch.zeros(())
for number in range(100):
    loss = model(torch.randn(8, 4)).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    total += loss.detach()
    if number % 2 == 0:
        print(loss.item())
    {line}
print("the script went on")
"""


def audit(directory: Path, script: str) -> subprocess.CompletedProcess[str]:
    (directory / "train.py").write_text(script)
    command = [sys.executable, "-m", "worker_agent", "audit", "--", sys.executable, "train.py"]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


def lines_of(ended: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in ended.stdout.splitlines() if line.startswith("train.py:")]


def test_each_line_that_reads_in_every_step_is_named(tmp_path: Path) -> None:
    reads = ["float(loss)", "loss.tolist()", "loss.cpu()", "bool(loss > 1)", "total.nonzero()"]
    script = SCRIPT.format(optimizer="Adam", options=", fused=True", line="\n    ".join(reads))
    ended = audit(tmp_path, script)
    assert ended.returncode == 1, ended.stderr
    assert lines_of(ended) == [
        f"train.py:{number} reads a device value in every step: {read}"
        for number, read in enumerate(reads, 17)
    ]
    assert "the script went on" not in ended.stdout


def test_a_scaler_that_reads_is_named_and_counters_of_optimizers_are_not(tmp_path: Path) -> None:
    ended = audit(tmp_path, SCRIPT.format(optimizer="RAdam", options="", line="pass"))
    (line,) = lines_of(ended)
    assert line.startswith("train.py:12 lets a GradScaler read a device value in every step")
    assert "fused=True" in ended.stdout


def test_a_script_without_such_lines_passes(tmp_path: Path) -> None:
    ended = audit(tmp_path, SCRIPT.format(optimizer="SGD", options=", fused=True", line="pass"))
    assert (ended.returncode, lines_of(ended)) == (0, [])
    assert "No line of the script reads a device value in every step." in ended.stdout


def test_what_cannot_be_audited_is_said(tmp_path: Path) -> None:
    ended = audit(tmp_path, "raise SystemExit(3)")
    assert ended.returncode == 3
    assert "exit code 3 before an optimizer of PyTorch had made 5 steps" in ended.stderr
    assert audit(tmp_path, "pass").returncode == 2
