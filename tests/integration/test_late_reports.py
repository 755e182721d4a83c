"""A report that was on its way for long, or waited in a controller that hung, comes too late."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from scavenger.protocol import Finished, Hello, Progress, StepReport
from service.db import workers
from tests.builders import NOW
from tests.telemetry.stage import set_up

BEFORE = Progress(1, 90, 2880, 5.0, {})
AT_END = Progress(1, 100, 3200, 6.0, {})


@pytest.mark.parametrize("word", ["target", "exhausted", "released"])
def test_it_does_not_undo_the_end_that_only_a_new_process_does(
    engine: Engine, word: Finished
) -> None:
    with engine.begin() as connection:
        (worker,) = set_up(connection, "job_1", 1)
        workers.note(connection, StepReport(worker, AT_END, finished=word), NOW)
        workers.note(connection, StepReport(worker, BEFORE), NOW)
        assert [one.finished for one in workers.of_job(connection, "job_1")] == [word]
        workers.greet(connection, "job_1", Hello(worker, "127.0.0.1:2"), NOW)
        workers.note(connection, StepReport(worker, BEFORE), NOW)
        assert [one.finished for one in workers.of_job(connection, "job_1")] == [None]
