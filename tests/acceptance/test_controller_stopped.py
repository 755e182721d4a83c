"""A controller that is told to end ends in order, and one that cannot start says why."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

from tests.controller import Controller


def test_the_database_ends_with_its_controller(open_directory: Path) -> None:
    with Controller(open_directory / "stopped" / "home") as controller:
        controller.stop()
        assert controller.process is not None
        assert controller.process.returncode == 0
        assert not (controller.home / "postgres" / "data" / "postmaster.pid").exists()
        controller.start()


def test_a_port_that_is_taken_is_named_with_the_remedy(open_directory: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        home = str(open_directory / "taken")
        command = [sys.executable, "-m", "service", "--home", home, "--port", port]
        run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; choose" in run.stderr
