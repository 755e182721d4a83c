"""``scavenger agent selftest`` with TensorFlow: the same checks as with PyTorch."""

from __future__ import annotations

from pathlib import Path

import pytest

from scavenger.errors import ExitCode
from tests.integration.test_selftest import ROW, numbers, run
from worker_agent.cli import MAX_RESIZE_PAUSE
from worker_agent.selftest import installed_frameworks
from worker_agent.tensorflow.selftest import measure_noise_error

pytestmark = pytest.mark.slow


def test_the_selftest_checks_tensorflow_too(tmp_path: Path) -> None:
    ended = run(tmp_path, "--framework", "tensorflow")
    rows = {name: (figure, mark) for name, figure, _, mark in ROW.findall(ended.stdout)}
    assert "with tensorflow" in ended.stdout, ended.stderr
    failed = [name for name, (_, mark) in rows.items() if mark == "✘"]
    # How much is added depends on what else runs beside the tests; all else must be as it should.
    assert set(failed) <= {"overhead"}, ended.stdout + ended.stderr
    assert ended.returncode == (ExitCode.FAILED if failed else ExitCode.SUCCESS)
    assert numbers(rows["gradient noise"][0])[0] < 1e-5
    assert 0 < numbers(rows["grow 1 → 2"][0])[0] < MAX_RESIZE_PAUSE
    assert 0 < numbers(rows["shrink 2 → 1"][0])[0] < MAX_RESIZE_PAUSE
    difference, iterations = numbers(rows["weights afterwards"][0])
    assert difference < 1e-9
    assert iterations >= 12
    assert list(tmp_path.glob("tmp*")) == []


def test_the_noise_is_that_of_a_direct_computation() -> None:
    assert measure_noise_error() < 1e-12  # in float64


def test_pytorch_is_tested_where_both_are_installed() -> None:
    assert installed_frameworks() == ["pytorch", "tensorflow"]
