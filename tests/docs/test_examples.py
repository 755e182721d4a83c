"""The pieces of Python on the pages are Python, and the whole script among them runs."""

from __future__ import annotations

import ast
import inspect
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from scavenger.job.spec import MetricTarget
from scavenger.job.validation import parse_job
from tests.docs.test_docs import DOCS, PAGES, ROOT, blocks, named
from worker_agent.session import Session

PIECES = [(named(page), code) for page in PAGES for code in blocks(page, "python")]


@pytest.mark.parametrize(("page", "code"), PIECES)
def test_a_piece_of_python_parses(page: str, code: str) -> None:
    ast.parse(code, filename=page)


def test_the_script_with_all_that_can_be_carried_runs_alone(tmp_path: Path) -> None:
    whole = [code for code in blocks(DOCS / "agent.md", "python") if "GradScaler" in code]
    (tmp_path / "train.py").write_text(whole[0])
    subprocess.run([sys.executable, "-W", "error", "train.py"], cwd=tmp_path, check=True)


def test_the_first_script_runs_as_it_stands_and_is_what_its_job_document_says(
    tmp_path: Path,
) -> None:
    """The script of the README, alone as a reader runs it first."""
    (script,) = blocks(ROOT / "README.md", "python")
    (document,) = blocks(ROOT / "README.md", "yaml")
    (tmp_path / "train.py").write_text(script)
    ran = subprocess.run(
        [sys.executable, "-W", "error", "train.py"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},  # as workers of this computer have
        check=True,
        capture_output=True,
        text=True,
    )
    job = parse_job(document)
    assert isinstance(job.target, MetricTarget)
    assert job.target.at_batch is not None
    reached = re.search(rf"^{job.target.metric} (0\.\d+) after (\d+) samples", ran.stdout, re.M)
    assert reached is not None, ran.stdout
    assert float(reached[1]) > 0.5, "it learns"
    epochs = int(re.findall(r"epochs=(\d+)", script)[0])
    iterations = math.ceil(epochs * job.model.dataset_size / job.target.at_batch)
    assert int(reached[2]) == iterations * job.target.at_batch
    assert f"job.log({job.target.metric}=" in script


@pytest.mark.parametrize("method", ["prepare", "batches"])
def test_what_a_session_takes_is_named_on_the_page(method: str) -> None:
    (row,) = re.findall(rf"^\| `job\.{method}\(([^`]*)\)`", (DOCS / "agent.md").read_text(), re.M)
    said = [argument.partition("=")[0].strip() for argument in row.split(",")]
    assert said == list(inspect.signature(getattr(Session, method)).parameters)[1:]
