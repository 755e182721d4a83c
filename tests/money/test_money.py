"""No job costs more than its cap, under any fault; MONEY_RUNS sets the number of runs."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from sqlalchemy import Engine

from tests.money.runs import play

RUNS = int(os.environ.get("MONEY_RUNS", "25"))


@pytest.mark.timeout(60 + 10 * RUNS)
def test_no_job_costs_more_than_its_cap(engine: Engine) -> None:
    counts: Counter[str] = Counter()
    play(engine, RUNS, counts=counts)
    print(f"{dict(counts)}")
    assert counts["runs"] >= RUNS
