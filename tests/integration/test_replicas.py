"""Two controllers and their database are killed; ``make replicas`` plays it with 40 jobs."""

from __future__ import annotations

import pytest

from tests.replicas.play import IMMEDIATE, KILLED, Script, play

FEW = Script(
    replicas=2,
    jobs=4,
    kills=2,
    freezes=0,
    span=6.0,
    gaps=(3.5, 5.5),
    rounds=4,
    pause=0.5,
    kinds=(KILLED, IMMEDIATE),
)


@pytest.mark.slow
def test_jobs_end_right_and_no_machine_is_launched_twice_under_kills() -> None:
    outcome = play(FEW, seed=0)
    assert outcome.wrong == []
    assert outcome.machines == 1 + 2 + 3 + 1
