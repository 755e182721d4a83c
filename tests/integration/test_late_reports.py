"""A report that was on its way for long, or waited in a controller that hung, comes too late."""

from __future__ import annotations

import pytest
from sqlalchemy import Connection, Engine

from scavenger.protocol import FinishReason, Hello, Progress, StepReport
from service.api.telemetry import store_report, validate_rows
from service.db import workers
from service.db.workers import WorkerRow
from tests.builders import NOW
from tests.telemetry.source import measured
from tests.telemetry.stage import set_up

BEFORE = Progress(1, 90, 2880, 5.0, {"loss": 0.6})
AT_END = Progress(1, 100, 3200, 6.0, {"loss": 0.5})


@pytest.mark.parametrize("word", ["target", "exhausted", "released"])
def test_it_does_not_undo_the_end_that_only_a_new_process_does(
    engine: Engine, word: FinishReason
) -> None:
    with engine.begin() as connection:
        (worker,) = set_up(connection, "job_1", 1)
        hear(connection, StepReport(worker, AT_END, finished=word))
        assert hear(connection, StepReport(worker, BEFORE)).finished == word
        workers.record_hello(connection, "job_1", Hello(worker, "127.0.0.1:2"), NOW)
        assert hear(connection, StepReport(worker, BEFORE)).finished is None


def test_it_does_not_set_back_where_its_worker_stands(engine: Engine) -> None:
    with engine.begin() as connection:
        (worker,) = set_up(connection, "job_1", 1)
        old = StepReport(worker, BEFORE, 0, measured(0, 10), broken=1)
        new = StepReport(worker, AT_END, 10, measured(10, 10))
        assert hear(connection, old).broken == 1
        stands = hear(connection, new)
        assert hear(connection, old) == stands
        assert (stands.iteration, stands.metrics, stands.broken) == (100, {"loss": 0.5}, None)


def test_the_newest_may_come_twice_and_rows_may_be_missing_before_it(engine: Engine) -> None:
    with engine.begin() as connection:
        (worker,) = set_up(connection, "job_1", 1)
        hear(connection, StepReport(worker, BEFORE, 0, measured(0, 10)))
        new = StepReport(worker, AT_END, 30, measured(30, 10), refused=2)
        stands = hear(connection, new)
        assert (stands.iteration, stands.refused, stands.next_sequence) == (100, 2, 40)
        assert hear(connection, new) == stands


def hear(connection: Connection, report: StepReport) -> WorkerRow:
    """Take a report in; returns what is known of its worker then."""
    store_report(connection, validate_rows(report, {}), NOW)
    (worker,) = workers.of_job(connection, "job_1")
    return worker
