"""The page on adding a framework is followed literally: its toy trains in a job."""

from __future__ import annotations

import os
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from tests.docs.test_docs import DOCS, PYTEST, ROOT

BLOCK = re.compile(r"```python title=(\S+)\n(.*?)```", re.DOTALL)


def test_a_framework_is_added_by_following_the_page(tmp_path: Path) -> None:
    files: dict[str, list[str]] = defaultdict(list)
    for title, code in BLOCK.findall((DOCS / "adding-a-framework.md").read_text()):
        files[title].append(code)
    registry = "\n".join(files.pop("registry"))
    files["conftest.py"] = [f"from worker_agent.frameworks import FRAMEWORKS\n\n{registry}"]
    assert set(files) == {"conftest.py", "tiny.py", "tiny_agent.py", "test_tiny.py"}
    for name, parts in files.items():
        (tmp_path / name).write_text("\n\n".join(parts))
    ran = subprocess.run(
        [*PYTEST, "test_tiny.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "6 passed" in ran.stdout, ran.stdout
