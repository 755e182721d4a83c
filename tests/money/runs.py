"""Runs of the state machine on one database."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import Engine, create_engine

from tests.money.purse import Purse
from tests.money.stage import Stage

STEPS = 60


def play(engine: Engine, runs: int, *, counts: Counter[str], seed: int | None = None) -> None:
    """Play so many runs, and count them and what went wrong in them.

    Raises:
        AssertionError: Something that must stay true did not; its steps are printed.
    """
    # A crash of the database is another test; its disk would take most of the time here.
    hasty = create_engine(engine.url, connect_args={"options": "-c synchronous_commit=off"})
    stage = Stage(hasty)

    def begin() -> Purse:
        return Purse(hasty, stage, counts)

    how = settings(
        max_examples=runs,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=[Phase.generate],  # making a failure smaller takes longer than reading it
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(begin if seed is None else seeded(seed)(begin), settings=how)
    finally:
        hasty.dispose()
