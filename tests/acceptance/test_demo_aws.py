"""``make demo-aws`` is interrupted at any time: it ends what it started, and says so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controller_double import until
from tests.machines.computer import processes_of


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param("Starting", id="controller", marks=pytest.mark.slow),
        pytest.param("launches i-00000001", id="launch", marks=pytest.mark.slow),
        pytest.param("is ready", id="training", marks=pytest.mark.slow),
        pytest.param("launches i-00000002", id="resize", marks=pytest.mark.slow),
    ],
)
def test_an_interrupted_demo_leaves_no_process(open_directory: Path, moment: str) -> None:
    root = open_directory / f"demo-{moment.split()[-1]}"
    root.mkdir()
    output = root / "output"
    with output.open("wb") as file:
        demo = subprocess.Popen(
            [sys.executable, "-u", "-m", "tests.machines"],
            env={**os.environ, "TMPDIR": str(root)},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        until(lambda: moment in output.read_text() or demo.poll() is not None)
        # A terminal tells all processes of its foreground, and a user presses twice.
        os.killpg(demo.pid, signal.SIGINT)
        os.killpg(demo.pid, signal.SIGINT)
        assert demo.wait() == 128 + signal.SIGINT, output.read_text()
    finally:
        demo.kill()
    assert "No machine and no process of the demo is left" in output.read_text()
    assert not list(processes_of(root))
    assert list(root.iterdir()) == [output]
