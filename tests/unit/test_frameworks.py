"""The core of the agent works without any framework, and finds the one that a script has loaded."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import worker_agent
from worker_agent.errors import UnsupportedModel
from worker_agent.frameworks import detach_tensor, find_framework
from worker_agent.pytorch.framework import FRAMEWORK

AGENT = Path(worker_agent.__file__).parent
BLOCKED = """
import sys

class Block:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "tensorflow", "keras", "tf_keras"):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Block)
"""
ALONE = """
import worker_agent

with worker_agent.session() as job:
    seen = list(job.batches(10, 4, epochs=1))
assert {type(indices).__module__ for indices in seen} == {"numpy"}, seen
assert {int(each) for indices in seen for each in indices} == set(range(10)), seen
"""


def run_without_frameworks(script: str) -> None:
    subprocess.run([sys.executable, "-c", BLOCKED + script], check=True, cwd=AGENT.parent)


def neutral_modules() -> list[str]:
    paths = [path.relative_to(AGENT.parent) for path in AGENT.rglob("*.py")]
    return sorted(
        ".".join(path.with_suffix("").parts).removesuffix(".__init__")
        for path in paths
        if path.parts[1] not in ("pytorch", "tensorflow", "integrations")
        and "boot" not in path.parts
    )


def test_every_module_outside_the_folders_of_frameworks_imports_without_any() -> None:
    run_without_frameworks("".join(f"import {module}\n" for module in neutral_modules()))


def test_a_script_alone_needs_no_framework() -> None:
    run_without_frameworks(ALONE)


def test_the_framework_of_a_model_is_found() -> None:
    assert find_framework(nn.Linear(1, 1)) is FRAMEWORK


def test_a_model_of_no_framework_is_refused_with_a_remedy() -> None:
    with pytest.raises(UnsupportedModel, match=r"builtins\.dict is no model of .*torch"):
        find_framework({})


def test_only_tensors_are_held_for_later() -> None:
    tensor = torch.tensor(2.0, requires_grad=True)
    held = detach_tensor(tensor)
    assert held is not None
    assert not held.requires_grad
    assert detach_tensor(2.0) is None
