"""A few seeds of ``make chaos``: under every fault, training is what it would have been."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import Pipe
from pathlib import Path

import pytest

from tests.chaos.draw import write
from tests.chaos.play import play
from tests.chaos.server import fork_coordinators
from tests.chaos.zygote import Zygote


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote


# Of 5 the layout is P=2 M=2; 26 is PipeDream, 12 Sandblaster. `make chaos` plays the other layouts.
@pytest.mark.parametrize("seed", [4, 5, 12, 26, pytest.param(66, marks=pytest.mark.slow)])
def test_a_job_under_faults_ends_with_the_weights_of_one_without(
    tmp_path: Path, zygote: Zygote, seed: int
) -> None:
    outcome = play(write(seed), tmp_path / "job", zygote)
    assert not outcome.wrong, (outcome.wrong, (tmp_path / "job" / "story.txt").read_text())


def test_what_forks_coordinators_ends_quietly_when_its_server_does() -> None:
    server, orders = Pipe()
    server.close()
    fork_coordinators(orders)
