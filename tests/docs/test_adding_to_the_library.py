"""The pages on adding a search strategy and an objective, followed literally in a copy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.test_docs import PYTEST, ROOT

BLOCK = re.compile(r"```python(?: title=(?P<path>[\w/.]+))?\n(?P<code>.*?)```", re.S)
PAGES = {
    "adding-a-search.md": ("scavenger/planning/search/registry.py", "UniversalSearch()"),
    "adding-an-objective.md": ("scavenger/planning/objectives.py", "Fastest, Weighted"),
}


@pytest.mark.parametrize("page", PAGES)
def test_a_reader_who_follows_the_page_adds_one(page: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "scavenger", tmp_path / "scavenger")
    registry, last = PAGES[page]
    blocks = list(BLOCK.finditer((ROOT / "docs" / page).read_text()))
    (imported,) = (block["code"].strip() for block in blocks if block["path"] is None)
    (entry,) = re.findall(r"add `(.*?)` to the tuple", (ROOT / "docs" / page).read_text())
    text = (tmp_path / registry).read_text()
    assert last in text
    text = text.replace(last, f"{last}, {entry}")
    (tmp_path / registry).write_text(
        text.replace("\nfrom scavenger", f"\n{imported}\nfrom scavenger", 1)
    )
    files = {block["path"]: block["code"] for block in blocks if block["path"] is not None}
    assert len(files) == 2
    (test,) = (Path(path) for path in files if path.startswith("tests/"))
    for path, code in files.items():
        # The test stands alone: a folder tests would hide the one with the conformance classes.
        (tmp_path / (test.name if path.startswith("tests/") else path)).write_text(code)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run(
        [*PYTEST, test.name],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
