"""``scavenger agent selftest``: what it shows is what was measured, and it never shows a stack."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scavenger.cli.errors import ExtraNotInstalled
from scavenger.errors import ExitCode
from scavenger.protocol import Hello, Reply
from worker_agent import fake_controller
from worker_agent.cli import MAX_RESIZE_PAUSE, SelftestCheck, run_checks
from worker_agent.fake_controller import _HELLO, _REPLY, FakeController
from worker_agent.pytorch.selftest import measure_noise_error

SCAVENGER = "from scavenger.cli.main import main; main()"
ROW = re.compile(r"│ (.+?) +│ (.+?) +│ (.+?) +│ ([✔✘]) │")


def run(directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    ours = {"OMP_NUM_THREADS": "1", "COLUMNS": "160", "TMPDIR": str(directory)}
    return subprocess.run(
        [sys.executable, "-c", SCAVENGER, "agent", "selftest", *words],
        env={**os.environ, **ours},
        capture_output=True,
        text=True,
    )


def test_the_selftest_shows_what_the_agent_costs_measures_and_can_do(tmp_path: Path) -> None:
    ended = run(tmp_path)
    rows = {name: (figure, mark) for name, figure, _, mark in ROW.findall(ended.stdout)}
    assert list(rows) == [
        "overhead",
        "gradient noise",
        "grow 1 → 2",
        "shrink 2 → 1",
        "weights afterwards",
    ], ended.stdout + ended.stderr
    figures = {name: numbers(figure) for name, (figure, _) in rows.items()}
    share, iteration, added = figures["overhead"]
    assert -50 < share < 100
    assert 0.1 < iteration < 1000
    assert added == pytest.approx(share / 100 * iteration * 1000, rel=0.1, abs=iteration)
    assert figures["gradient noise"][0] < 1e-5
    assert 0 < figures["grow 1 → 2"][0] < MAX_RESIZE_PAUSE
    assert 0 < figures["shrink 2 → 1"][0] < MAX_RESIZE_PAUSE
    difference, iterations = figures["weights afterwards"]
    assert difference < 1e-9
    assert iterations >= 12
    # How much is added depends on what else runs beside the tests; all else must be as it should.
    failed = [name for name, (_, mark) in rows.items() if mark == "✘"]
    assert set(failed) <= {"overhead"}
    assert ended.returncode == (ExitCode.FAILED if failed else ExitCode.SUCCESS)
    assert ("1 of these checks failed" if failed else "All checks passed") in ended.stdout
    assert list(tmp_path.glob("tmp*")) == []


def numbers(figure: str) -> list[float]:
    return [float(number) for number in re.findall(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?", figure)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--rounds", "3"], "No such option: --rounds"),
        (["twice"], "(twice)"),
        (["--framework", "jax"], "'jax' is not one of 'pytorch', 'tensorflow'"),
    ],
)
def test_a_word_it_does_not_know_is_answered_with_a_sentence(
    tmp_path: Path, words: list[str], sentence: str
) -> None:
    ended = run(tmp_path, *words)
    assert ended.returncode == ExitCode.USAGE
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "Not installed: torch, tensorflow"),
        (["--framework", "tensorflow"], "Not installed: tensorflow"),
    ],
)
def test_without_a_framework_it_says_what_to_install(words: list[str], sentence: str) -> None:
    hidden = "import sys; sys.modules |= {'torch': None, 'tensorflow': None}"
    command = f"{hidden}; from worker_agent.__main__ import main; main()"
    ended = subprocess.run(
        [sys.executable, "-c", command, "selftest", *words],
        env={**os.environ, "COLUMNS": "160"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == ExtraNotInstalled.exit_code
    assert sentence in ended.stderr
    assert "pip install 'scavenger[" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.parametrize(
    "error",
    [
        ImportError("no module named torch"),
        PermissionError(13, "Permission denied"),
        RuntimeError("a worker of the rehearsal ended with code 1"),
        TimeoutError("the workers of the rehearsal do not answer"),
    ],
)
def test_what_cannot_be_tried_is_a_check_that_failed_and_keeps_those_before_it(
    error: Exception,
) -> None:
    before = SelftestCheck("grow 1 → 2", "0.009 s", "at most 2 s", is_met=True)

    def examine() -> Iterator[SelftestCheck]:
        yield before
        raise error

    figure = f"{type(error).__name__}: {error}"
    failed = SelftestCheck("rehearsing a resize", figure, "possible", is_met=False)
    assert list(run_checks("rehearsing a resize", examine)) == [before, failed]


def test_the_noise_is_that_of_a_direct_computation() -> None:
    assert measure_noise_error() < 1e-12  # in float64


def test_a_rehearsal_whose_workers_do_not_come_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake_controller, "SELFTEST_TIMEOUT", 0.05)
    stand_in = FakeController()
    try:
        with pytest.raises(TimeoutError, match="do not answer"):
            stand_in.publish_generation(["first"], 48, 1.0, 0.05)
    finally:
        stand_in.close()


def test_the_stand_in_counts_generations_and_lets_the_leader_before_hand_over() -> None:
    stand_in = FakeController()
    try:
        for worker in ("first", "second"):
            hello = _HELLO.dump_json(Hello(worker, f"{worker}:1"))
            answered = _REPLY.validate_json(stand_in.answer("/hello", hello))
            assert answered == Reply(None, 0)
        assert stand_in.publish_generation(["first"], 48, 1.0, 0.05) == 1
        assert stand_in.publish_generation(["second", "first"], 48, 1.0, 0.05) == 2
        published = stand_in.directive
        assert published is not None
        assert [member.address for member in published.members] == ["second:1", "first:1"]
        assert published.handover is not None
        assert published.handover.worker == "first"
        assert _REPLY.validate_json(stand_in.answer("/hello", hello)).directive == published
    finally:
        stand_in.close()
