"""No job costs more than its cap, under any fault, in any cloud.

MONEY_RUNS sets the number of runs and MONEY_CLOUD one cloud: ``fake``, ``aws`` or ``google``.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from sqlalchemy import Engine

from tests.fakecloud.emulator import open_emulator
from tests.money.runs import play

# The fake cloud's own provider is the quickest, so it plays most of the runs of ``make test``.
USUAL_RUNS = {"fake": 8, "aws": 2, "google": 2}
WANTED = os.environ.get("MONEY_CLOUD")


@pytest.mark.parametrize("cloud", [WANTED] if WANTED else USUAL_RUNS)
@pytest.mark.timeout(60 + 10 * int(os.environ.get("MONEY_RUNS", "25")))
def test_no_job_costs_more_than_its_cap(engine: Engine, cloud: str) -> None:
    runs = int(os.environ.get("MONEY_RUNS", USUAL_RUNS[cloud]))
    counts: Counter[str] = Counter()
    with open_emulator(cloud) as emulator:
        play(engine, runs, counts=counts, emulator=emulator)
    print(f"{dict(counts)}")
    assert counts["runs"] >= runs
