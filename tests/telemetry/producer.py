"""A machine that measures, as training does, and goes on where it stood after it was killed.

Its arguments: iterations in all, iterations a second, bytes its spool may hold. What it measures in
an iteration is known from the number, so that a judge knows it too. It ends well once its
controller has heard everything.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from scavenger.measurement.steps import COLUMN_KINDS, StepColumns, StepRow
from scavenger.protocol import Hello, Progress
from tests.spool import next_sequence_on_disk
from tests.telemetry.source import measured
from worker_agent.controller import ControllerClient
from worker_agent.errors import ControllerUnreachable
from worker_agent.settings import read_settings
from worker_agent.telemetry.reporter import PROBING_REPORT_INTERVAL, Reporter
from worker_agent.telemetry.spool import Spool, SpoolHeader

BLOCK = 100
GENERATIONS = 4


def main(total: int, pace: float, limit: int) -> int:
    """Measure what is left to measure; returns the exit code."""
    settings = read_settings()
    assert settings is not None
    assert settings.spool is not None
    client, directory = ControllerClient(settings), Path(settings.spool)
    hello = Hello(settings.worker, "127.0.0.1:1")
    start = max(expected(client, hello), next_sequence_on_disk(directory))

    def open_spool(hello: Hello) -> Spool:
        header = SpoolHeader(settings.job, settings.worker, settings.controller, hello.address)
        return Spool(directory, header, limit)

    reporter = Reporter(client, settings.worker, lambda directive: None, open_spool=open_spool)
    reporter.start(hello)
    reporter.set_interval(PROBING_REPORT_INTERVAL)
    began = time.monotonic()
    for number in range(start, total):
        block = block_of(settings.worker, number // BLOCK)
        reporter.record(row(block, number, total))
        if number % BLOCK == BLOCK - 1:
            reporter.update_progress(
                Progress(generation(number, total), number + 1, number + 1, 0.1, {})
            )
            time.sleep(max(0.0, began + (number - start) / pace - time.monotonic()))
    return 0 if reporter.close(Progress(GENERATIONS, total, total, 1.0, {}), "target", 5.0) else 1


def expected(client: ControllerClient, hello: Hello) -> int:
    """Return which row the controller expects, as soon as it answers."""
    while True:
        try:
            return client.hello(hello).next_sequence
        except ControllerUnreachable:
            time.sleep(0.1)


def generation(number: int, total: int) -> int:
    """Return in which generation an iteration is done."""
    return 1 + number * GENERATIONS // total


_blocks: dict[tuple[str, int], StepColumns] = {}


def block_of(worker: str, place: int) -> StepColumns:
    """Return the iterations of a block, drawn once."""
    key = (worker, place)
    if key not in _blocks:
        _blocks.clear()
        _blocks[key] = measured(place * BLOCK, BLOCK, int.from_bytes(worker.encode()[-6:]))
    return _blocks[key]


def row(block: StepColumns, number: int, total: int) -> StepRow:
    """Return one iteration."""
    return StepRow(
        generation(number, total), *(getattr(block, n)[number % BLOCK] for n in COLUMN_KINDS)
    )


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
