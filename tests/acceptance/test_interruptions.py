"""Cells of `make interruptions`: what a machine that is taken back costs a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.interruptions.cells import find_cell
from tests.interruptions.play import play
from tests.interruptions.stage import Stage, open_stage


@pytest.fixture(scope="module")
def stage(open_directory: Path) -> Iterator[Stage]:
    with open_stage("aws", open_directory / "interruptions") as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train:notice:leader", "train:none:other", "drain:none:other"])
def test_a_machine_that_is_taken_back_costs_no_more_than_promised(stage: Stage, name: str) -> None:
    verdict = play(stage, find_cell(name))
    assert verdict.wrong == (), stage.controller.log()
