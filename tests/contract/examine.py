"""An examination: schemathesis asks a controller everything its description allows, and more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.contract.host import KEYS, WORKER, Host

HERE = Path(__file__).parent
CONFIGURATION = HERE / "schemathesis.toml"
PHASES = "examples,coverage,fuzzing,stateful"


def examine(host: Host, directory: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Ask a controller everything; what it fails is in the output."""
    description = directory / "openapi.json"
    description.write_text(json.dumps(host.app.openapi()))
    command = [
        sys.executable,
        "-m",
        "schemathesis.cli",
        "--config-file",
        HERE / "schemathesis.toml",
    ]
    return subprocess.run(
        [*command, "run", description, "--url", host.url, "--phases", PHASES, *options],
        cwd=directory,
        env={
            **os.environ,
            "PYTHONPATH": f"{HERE.parents[1]}:{os.environ.get('PYTHONPATH', '')}",
            "PERSON": KEYS.home_token,
            "MACHINE": KEYS.issue_worker_token(WORKER),
            "COLUMNS": "120",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
