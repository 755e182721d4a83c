"""A few seeds of ``make chaos``: under every fault, training is what it would have been."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.draw import write
from tests.chaos.play import play
from tests.chaos.zygote import Zygote


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


@pytest.mark.parametrize("seed", [4, 11, 22, 24, 66])  # 11, 22 and 24: P = 2, S = 2, T = 2
def test_a_job_under_faults_ends_with_the_weights_of_one_without(
    tmp_path: Path, zygote: Zygote, seed: int
) -> None:
    outcome = play(write(seed), tmp_path / "job", zygote)
    assert not outcome.wrong, (outcome.wrong, (tmp_path / "job" / "story.txt").read_text())
