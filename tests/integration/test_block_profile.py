"""``scavenger agent profile`` measures the blocks of a model, and its layouts follow from that."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scavenger.cli.main import app

SCRIPT = """\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(64, width), nn.Linear(width, 64)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(100, 64)
        self.blocks = nn.ModuleList([Block(64), Block(4096)])
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x):
        x = self.table(x)
        for block in self.blocks:
            x = block(x)
        return self.norm(x.mean(1)) @ self.table.weight.T


torch.set_num_threads(1)
model = Model()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=0.01)
for number in range({steps}):
    places = torch.randint(0, 100, (12, 7))
    loss = nn.functional.cross_entropy(model(places), places[:, 0])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print("the script went on")
"""


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "worker_agent", "profile", *words]
    return subprocess.run(command, cwd=directory, capture_output=True, text=True)


def test_a_profile_has_the_blocks_of_the_model_and_its_layouts_follow(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(optimizer="Adam", steps=100))
    ended = run(tmp_path, "--gigabits", "1", "--", sys.executable, "train.py")
    assert ended.returncode == 0, ended.stderr
    assert "profile.json: 4 blocks" in ended.stdout
    assert "the script went on" not in ended.stdout
    found = json.loads((tmp_path / "profile.json").read_text())
    before, small, large, after = found["blocks"]
    names = ["before", "blocks.0", "blocks.1", "after"]
    assert [block["name"] for block in found["blocks"]] == names
    assert before["weight_bytes"] == 4 * (100 * 64 + 2 * 64), "the rest of the model"
    assert small["weight_bytes"] == 4 * (64 * 64 * 2 + 64 + 64)
    assert large["weight_bytes"] == 4 * (64 * 4096 * 2 + 4096 + 64)
    assert after["weight_bytes"] == 0
    assert [block["output_bytes"] for block in (before, small, large)] == [4 * 7 * 64] * 3
    assert after["output_bytes"] == 4 * 100
    # The inner activation, of float32, and what goes into the block.
    assert small["saved_bytes"] == 4 * 7 * (64 + 64)
    assert large["saved_bytes"] == 4 * 7 * (4096 + 64)
    took = [block["fixed_seconds"] + 12 * block["seconds_per_sample"] for block in (small, large)]
    assert 0 < 4 * took[0] < took[1], "one of them computes 64 times as much"
    assert found["optimizer_slots"] == 2
    assert found["optimizer_seconds"] > 0
    assert found["has_batch_statistics"] is True
    assert found["across"] == {"latency_seconds": 1e-4, "bytes_per_second": 1.25e8}
    assert 0 <= found["inside"]["latency_seconds"] < 0.1
    assert found["inside"]["bytes_per_second"] > 1e6, "measured between two members of a group"
    program, *words = shlex.split(ended.stdout.splitlines()[-1].removeprefix("Next: "))
    assert program == "scavenger"
    words[words.index("profile.json")] = str(tmp_path / "profile.json")
    planned = CliRunner().invoke(app, [*words, "-o", "json"])
    assert planned.exit_code == 0, planned.output
    layouts = json.loads(planned.output)["layouts"]
    assert {each["micro_batches"] for each in layouts} == {1}, "of a batch normalisation"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--", sys.executable, "train.py"], 2, "so nothing was profiled"),
        (["--", sys.executable, "-c", "raise SystemExit(3)"], 3, "exit code 3 before a model"),
        (["--patience", "0.2", "--", "sleep", "60"], 2, "was killed after 0.2 s, before a model"),
        (["--", "no-such-program"], 127, "cannot start no-such-program"),
        (["--gigabits", "0", "--", "true"], 2, "0 must be above 0"),
        ([], 2, "the training command is missing"),
    ],
)
def test_what_cannot_be_profiled_says_why(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(optimizer="SGD", steps=1))
    ended = run(tmp_path, *words)
    assert ended.returncode == code
    assert said in " ".join(ended.stderr.split())
    assert not (tmp_path / "profile.json").exists()


SESSION = """\
import torch
from torch import nn

import worker_agent


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(48, 96), nn.Linear(96, 48)

    def forward(self, x):
        # It counts heads of 24 values by what it gets, so that 8 processes cannot share them.
        return x + self.down(torch.relu(self.up(x)).unflatten(-1, (-1, 24)).flatten(-2))


model = nn.Sequential(nn.Embedding(100, 48), nn.Sequential(Block(), Block()), nn.Linear(48, 100))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
plan = {"0": "embedding", "*.up": "column", "*.down": "row"}


def loss(scores, targets):
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


with worker_agent.session() as job:
    job.prepare(model, optimizer, loss=loss, tensor_plan=plan)
    for indices in job.batches(640, global_batch=16, epochs=1):
        places = indices.unsqueeze(1).repeat(1, 7) % 100
        optimizer.zero_grad()
        job.step(places, places)
        optimizer.step()
"""


def test_a_profile_says_how_many_processes_can_share_the_weights(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SESSION)
    ended = run(tmp_path, "--quiet", "--", sys.executable, "train.py")
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    found = json.loads((tmp_path / "profile.json").read_text())
    sums = {block["name"]: block.get("all_reduces", 0) for block in found["blocks"]}
    assert (sums["1.0"], sums["1.1"]) == (2, 2)
    assert sums["before"] == 1, "the embedding, which is outside the repeated blocks"
    assert found["heads"] == 4
    assert (found["most_stages"], found["uncut_reason"][:26]) == (3, "3 blocks cannot be cut int")
    starts = [b["name"] for b in found["blocks"] if not b.get("begins_no_stage")]
    assert starts == ["1.0"], "the parts of the sequence are its blocks"
    assert found["start_seconds"] > 0
    assert "has_own_passes" not in found, "job.step makes them"


def test_a_profile_tells_of_a_script_that_makes_its_own_passes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT.format(optimizer="Adam", steps=100))
    assert run(tmp_path, "--quiet", "--", sys.executable, "train.py").returncode == 0
    found = json.loads((tmp_path / "profile.json").read_text())
    assert found["has_own_passes"]
    assert found["most_stages"] == 1
    assert "table.weight is shared by stages 0 and 1" in found["uncut_reason"]
