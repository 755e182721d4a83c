"""The agent works where no framework is installed: its modules outside their folders load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("torch", "tensorflow", "keras", "tf_keras", "safetensors")
OF_A_FRAMEWORK = ("pytorch", "tensorflow", "integrations")

LOAD = """
import importlib, sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {frameworks!r}:
            raise ImportError(name + " is blocked")

sys.meta_path.insert(0, Block())
for module in {modules!r}:
    importlib.import_module(module)
print(len({modules!r}))
"""


def test_modules_load_with_all_frameworks_blocked() -> None:
    files = sorted((ROOT / "worker_agent").rglob("*.py"))
    parts = [file.relative_to(ROOT).with_suffix("").parts for file in files]
    modules = [
        ".".join(part for part in each if part != "__init__")
        for each in parts
        if each[1] not in OF_A_FRAMEWORK and each[-1] not in ("__main__", "sitecustomize")
    ]
    code = LOAD.format(frameworks=FRAMEWORKS, modules=modules)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
