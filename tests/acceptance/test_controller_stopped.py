"""A controller that is told to end ends in order."""

from __future__ import annotations

from pathlib import Path

from tests.controller import Controller


def test_the_database_ends_with_its_controller(open_directory: Path) -> None:
    with Controller(open_directory / "stopped" / "home") as controller:
        controller.stop()
        assert controller.process is not None
        assert controller.process.returncode == 0
        assert not (controller.home / "postgres" / "data" / "postmaster.pid").exists()
        controller.start()
