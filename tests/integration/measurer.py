"""A process that measures so many iterations, as training does, without any framework.

Its arguments: iterations, seconds of each, and seconds that its end may take. It says on
standard output when it has measured all, and whether its controller heard everything.
"""

import logging
import sys
import time

from scavenger.measurement.steps import StepRow
from scavenger.protocol import Hello, Progress
from worker_agent.settings import read_settings
from worker_agent.telemetry.reporter import DEFAULT_REPORT_INTERVAL, open_reporter


def main(iterations: int, seconds: float, patience: float) -> None:
    """Measure, then end as a session does."""
    settings = read_settings()
    assert settings is not None
    reporter = open_reporter(settings, lambda directive: None)
    reporter.start(Hello(settings.worker, "127.0.0.1:1"))
    reporter.set_interval(DEFAULT_REPORT_INTERVAL)
    for iteration in range(iterations):
        reporter.record(StepRow(1, iteration, 2, 1.0, 1.0, 0.1, 0.1, 0.2, 0.5, 0.1, 0.1))
        reporter.update_progress(Progress(1, iteration, iteration, 0.1, {}))
        time.sleep(seconds)
    print("measured", flush=True)
    if sys.stdin.readline():
        is_told = reporter.close(Progress(1, iterations, 0, 1.0, {}), "target", patience)
        print("told" if is_told else "left", flush=True)


if __name__ == "__main__":
    logging.basicConfig()
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
