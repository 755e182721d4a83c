"""Records through kills, cuts, losses and repeats; ``make telemetry`` plays a million."""

from __future__ import annotations

import pytest

from tests.telemetry.play import Script, play

FEW = Script(
    rows=5_000,
    pace=5_000,
    agents=1,
    controllers=1,
    databases=1,
    share=0.25,
    tight=200_000,
    away=0.5,
)


@pytest.mark.slow  # `make telemetry` has more of all
def test_each_row_is_stored_once_under_kills() -> None:
    outcome = play(FEW, seed=0)
    assert outcome.wrong == []
    assert outcome.stored + outcome.dropped == 20_000
