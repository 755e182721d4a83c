"""Runs of the state machine on one database."""

from __future__ import annotations

from collections import Counter

from hypothesis import HealthCheck, Phase, settings
from hypothesis import seed as seeded
from hypothesis.stateful import run_state_machine_as_test
from sqlalchemy import Engine, inspect

from service.db import prices
from tests.builders import NOW, spec
from tests.crash import virtual_time
from tests.fakecloud.emulator import Emulator
from tests.money import promises
from tests.money.purse import Purse
from tests.money.stage import Stage
from tests.money.world import Manners

STEPS = 60


def race(purse: Purse) -> None:
    """Let two machines ask at once for what is enough for one, which is seldom drawn."""
    limits = {"workers": "2..2", "batch": [96], "max_cost": "1.4 USD"}
    how = Manners(boot=0.0, spare=4.0, ending=6.0, lag=0.0, seed=0)
    purse.submit(spec(limits=limits, price="3.6 USD/h"), how, [])
    try:
        for _ in range(3):
            purse.tick(0)
        purse.wait(300.0)
        purse.renew_two_at_once(0)
        promises.check(purse.world)
    finally:
        purse.teardown()


def play(
    engine: Engine,
    runs: int,
    *,
    counts: Counter[str],
    seed: int | None = None,
    emulator: Emulator | None = None,
) -> None:
    """Play so many runs, and count them and what went wrong in them.

    Args:
        engine: A migrated database.
        emulator: Plays the cloud; None for the fake cloud as it is.

    Raises:
        AssertionError: Something that must stay true did not; its steps are printed.
    """
    stage = Stage(engine)
    if emulator is not None:
        prepare_price_watch(engine, emulator)

    def begin() -> Purse:
        return Purse(engine, stage, counts, emulator)

    how = settings(
        max_examples=runs,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        report_multiple_bugs=False,  # the first one ends the runs
        phases=[Phase.generate],  # making a failure smaller takes longer than reading it
        suppress_health_check=list(HealthCheck),
    )
    if emulator is None:
        race(begin())
    run_state_machine_as_test(begin if seed is None else seeded(seed)(begin), settings=how)


def prepare_price_watch(engine: Engine, emulator: Emulator) -> None:
    """Give the database what the controller's watch of spot prices reads: a clock, and prices."""
    if "virtual" not in inspect(engine).get_schema_names():
        virtual_time.install_clock(engine)
    with engine.begin() as connection:
        prices.store_prices(connection, emulator.habits.prices, NOW)
