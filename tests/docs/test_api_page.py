"""The page about the API is true: its examples run against a real controller."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from sqlalchemy import Engine

from tests.contract.host import KEYS, host
from tests.docs.test_docs import DOCS, blocks

API = DOCS / "api.md"


def test_the_page_about_the_api_runs_as_written(engine: Engine, tmp_path: Path) -> None:
    steps = [f"set -eu\necho '# step {n}'\n{step}" for n, step in enumerate(blocks(API, "sh"))]
    with host(engine) as controller:
        environment = {
            "PATH": os.defpath,
            "SCAVENGER_URL": controller.url,
            "SCAVENGER_TOKEN": KEYS.home_token,
        }
        shell = subprocess.run(
            ["bash", "-c", "\n".join(steps)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    assert shell.returncode == 0, shell.stdout + shell.stderr
    _, *said = shell.stdout.split("# step ")
    assert '"id":"job_4"' in said[0]
    assert '"code":"not_found"' in said[1]
    assert 'did you mean \\"limit\\"?' in said[1]
    assert "idempotent-replayed: true" in said[2].lower()
    assert said[3].splitlines()[1] == "304"
    assert '"code":"precondition_failed"' in said[3]
    assert said[3].count('"phase":"pending"') == 2  # as it is now, and once it is cancelled
    assert said[4].count('"jobs":[') == 1
    assert '"kind":"cancel"' in said[5]
    assert said[6].splitlines()[1] == "retry: 2000"
    assert "event: event" in said[6]
