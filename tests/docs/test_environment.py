"""The page on the environment names every variable of the agent, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from scavenger.worker_env import WorkerEnv, variable

ROOT = Path(__file__).parents[2]
PREFIXES = ("SCAVENGER", "TORCHELASTIC", "PET", "MASTER", "GROUP", "ROLE", "LOCAL", "WORLD", "OMP")
VARIABLE = rf"(?:{'|'.join(PREFIXES)})_[A-Z_]+|RANK|PYTHONPATH"


def constants(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def test_the_page_on_the_environment_names_what_the_agent_reads_and_sets_and_no_more() -> None:
    texts = {t for file in (ROOT / "worker_agent").rglob("*.py") for t in constants(file)}
    used = {text for text in texts if re.fullmatch(VARIABLE, text)}
    used |= {variable(each) for each in fields(WorkerEnv)}
    page = (ROOT / "docs" / "environment.md").read_text()
    assert set(re.findall(rf"`({VARIABLE})`", page)) == used
    assert {"SCAVENGER_JOB", "SCAVENGER_ENABLE", "RANK"} <= used
