"""A controller that cannot start says why in words."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.telemetry.stage import free_port


def test_a_database_that_does_not_answer_ends_it_with_a_sentence(tmp_path: Path) -> None:
    url = f"postgres://scavenger:canary-word@127.0.0.1:{free_port()}/none"
    ended = subprocess.run(
        [sys.executable, "-m", "service", "--home", tmp_path / "home", "--port", "0"],
        capture_output=True,
        text=True,
        env={**os.environ, "SCAVENGER_DATABASE_URL": url},
    )
    assert ended.returncode == 1
    assert "the database does not answer: connection failed" in ended.stderr
    assert "put --database-url right" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert "canary-word" not in ended.stderr
