"""Each patch of the agent may be missing, as in another version, and training is the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from tests.tensorflow.test_instrumentation import SCRIPTS


@pytest.mark.slow
def test_without_any_single_patch_the_same_weights_are_trained(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPTS / "omitted.py")]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    trained: dict[str, dict[str | None, list[str]]] = defaultdict(dict)
    for line in ran.stdout.splitlines():
        told = json.loads(line)
        trained[told["way"]][told["omitted"]] = told["weights"]
    assert set(trained) == {"keras", "tf_keras", "servers"}
    for way, by_omitted in trained.items():
        plain = by_omitted[None]
        assert plain
        assert len(by_omitted) > 4
        differing = [name for name, weights in by_omitted.items() if weights != plain]
        assert not differing, way
