"""``scavenger doctor`` beside a real controller, with it away, and with the door open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from secrets import token_hex

from scavenger.schemas.diagnostics import DiagnosticsView
from tests.controller import Controller


def ask(home: Path, expected: int, **environment: str) -> dict[str, str]:
    """Ask the doctor; the state of every check by name."""
    code = "from scavenger.cli.main import main; main()"
    known = {name: value for name, value in os.environ.items() if not name.startswith("SCAVENGER")}
    ended = subprocess.run(
        [sys.executable, "-c", code, "doctor", "-o", "json"],
        env={**known, "SCAVENGER_HOME": str(home), **environment},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == expected, ended.stdout + ended.stderr
    checkup = DiagnosticsView.model_validate_json(ended.stdout)
    return {check.name: check.state for check in checkup.checks}


def test_the_doctor_finds_what_is_wrong(open_directory: Path) -> None:
    home = open_directory / token_hex(4) / "home"
    with Controller(home) as controller:
        controller.wait(lambda: controller.ask("GET", "/v1/sweeps").json()["sweeps"])
        well = ask(home, 0)
        assert set(well.values()) == {"ok"}
        assert {
            *("connection", "controller", "token", "versions", "clock", "database", "durability"),
            *("migrations", "database clock", "cloud", "installation", "loops", "disk"),
            *("permissions", "tensorflow"),
        } == set(well)
        job = controller.submit(
            {
                "model": {"key": "tests/open-servers", "dataset_size": 100},
                "target": {"epochs": 1, "at_batch": 8},
                "limits": {"workers": 1, "batch": 8, "max_time": "1h"},
                "framework": "tensorflow",
                "price": "0.36 USD/h",
                "run": {"command": ["scavenger", "agent", "run", "--", "sleep", "3600"]},
            }
        )
        assert ask(home, 0)["tensorflow"] == "warning"
        controller.ask("POST", f"/v1/jobs/{job}/actions/cancel")
        stranger = ask(home, 1, SCAVENGER_TOKEN="scv_of_a_stranger")
        assert stranger["token"] == "failed"
    (home / "token").chmod(0o644)
    away = ask(home, 1)
    assert (away["controller"], away["permissions"], away["disk"]) == ("failed", "failed", "ok")
