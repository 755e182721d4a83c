"""The pieces of Python on the pages are Python, and the whole script among them runs."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.test_docs import DOCS, PAGES, blocks, named
from worker_agent.session import Session

PIECES = [(named(page), code) for page in PAGES for code in blocks(page, "python")]


@pytest.mark.parametrize(("page", "code"), PIECES)
def test_a_piece_of_python_parses(page: str, code: str) -> None:
    ast.parse(code, filename=page)


def test_the_script_with_all_that_can_be_carried_runs_alone(tmp_path: Path) -> None:
    whole = [code for code in blocks(DOCS / "agent.md", "python") if "GradScaler" in code]
    (tmp_path / "train.py").write_text(whole[0])
    subprocess.run([sys.executable, "-W", "error", "train.py"], cwd=tmp_path, check=True)


@pytest.mark.parametrize("method", ["prepare", "batches"])
def test_what_a_session_takes_is_named_on_the_page(method: str) -> None:
    (row,) = re.findall(rf"^\| `job\.{method}\(([^`]*)\)`", (DOCS / "agent.md").read_text(), re.M)
    said = [argument.partition("=")[0].strip() for argument in row.split(",")]
    assert said == list(inspect.signature(getattr(Session, method)).parameters)[1:]
