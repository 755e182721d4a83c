"""The learning curve of a job whose progress was counted anew, on a real database."""

from __future__ import annotations

import threading

import pytest
from sqlalchemy import Connection, Engine, text

from scavenger.protocol import Directive, Progress
from service.db import directives, measurements
from service.reconciler.actions import PublishDirective
from service.reconciler.apply import record_action
from service.state.loader import load_job_state
from tests.builders import NOW, directive
from tests.integration.life import Life

# Also the lock of a row shows as a wait for the transaction that holds it.
WAITING = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
EARLY = directive(2, 128, generation=1, is_provisional=True)


def settled(correction: float, generation: int = 2) -> Directive:
    return directive(2, 128, generation=generation, correction=correction)


def logged(generation: int, epochs: float, value: float) -> Progress:
    return Progress(generation, 0, 0, epochs, {"accuracy": value})


def begin(engine: Engine) -> None:
    with engine.begin() as connection:
        job = Life(connection).job
        directives.publish(connection, job, EARLY, NOW)
        for epochs, value in ((1.0, 0.3), (2.0, 0.5), (4.0, 0.6)):
            measurements.record_reading(connection, job, EARLY, logged(1, epochs, value))


def tell(connection: Connection, told: Directive) -> None:
    record_action(
        connection,
        "local",
        load_job_state(connection, "local", "job_1", NOW),
        PublishDirective(told, "the knee"),
    )


def publish(engine: Engine, told: Directive) -> None:
    with engine.begin() as connection:
        tell(connection, told)


def curve(engine: Engine) -> tuple[tuple[float, float], ...]:
    with engine.connect() as connection:
        return measurements.readings_of_jobs(connection, ["job_1"])["job_1"]


@pytest.mark.parametrize("correction", [0.25, 1.0, 2.0])
def test_readings_are_counted_anew_with_the_progress_they_were_taken_at(
    engine: Engine, correction: float
) -> None:
    begin(engine)
    told = settled(correction)
    publish(engine, told)
    scaled = tuple((c * correction, value) for c, value in ((1.0, 0.3), (2.0, 0.5), (4.0, 0.6)))
    assert curve(engine) == scaled
    publish(engine, settled(correction, 3))  # says the same correction again
    assert curve(engine) == scaled
    next_epochs = 4.0 * correction + 0.6
    with engine.begin() as connection:
        measurements.record_reading(
            connection, "job_1", settled(correction, 3), logged(3, next_epochs, 0.7)
        )
    assert curve(engine) == (*scaled, (next_epochs, 0.7))


def test_a_reading_in_progress_that_is_still_to_be_corrected_is_left_out(engine: Engine) -> None:
    begin(engine)
    publish(engine, settled(0.25))
    with engine.begin() as connection:
        measurements.record_reading(connection, "job_1", settled(0.25), logged(1, 8.0, 0.7))
    assert curve(engine)[-1] == (1.0, 0.6)


def test_a_report_that_comes_while_progress_is_counted_anew_mixes_no_scales(
    engine: Engine,
) -> None:
    """Its transaction knows the old Directive, and writes after the new one was published."""
    begin(engine)

    def report() -> None:
        with engine.begin() as connection:
            measurements.record_reading(connection, "job_1", EARLY, logged(1, 8.0, 0.7))

    thread = threading.Thread(target=report)
    with engine.begin() as connection, engine.connect() as watching:
        tell(connection, settled(0.25))
        thread.start()
        while thread.is_alive() and not watching.scalar(WAITING):
            thread.join(0.01)
    thread.join()
    assert curve(engine)[-1] == (1.0, 0.6)
