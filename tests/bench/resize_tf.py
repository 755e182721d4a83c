"""How long training with TensorFlow stops for a resize, by each way to train.

A session: two networks go from 1 worker to 2, 4, 3 and back to 1, again and again. Newcomers are
up before they are ordered in: what is timed is the change, not the boot of a process. No step may
be traced again.

Parameter servers under ``agent run``: a script goes from 1 worker to 2 and back, while it trains.

MultiWorkerMirroredStrategy under ``agent run``: two workers are restarted for another batch, in
turns with a next process that starts beside the old one, and without, as after a loss.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

from rich.console import Console

from tests.bench import diary
from tests.bench.resize import CHANGES, PLAN, Limit, Resize, durations, order, until
from tests.conductor import Conductor
from tests.integration.test_run import conduct, rows_of
from tests.tensorflow.test_instrumentation import SCRIPTS
from tests.tensorflow.test_servers import order as order_with_servers
from tests.tensorflow.test_servers import servers_and_workers

TARGETS = {"0.3 million": 0.15, "11 million": 0.5}  # seconds, of the slowest change's median
CYCLES = 4
MOST_GROWING, MOST_SHRINKING = 0.5, 0.1  # seconds, with parameter servers
MOST_OF_COLD = 0.5  # of a restart without a process beside the old one
RESTARTS = 8
STEPS_BETWEEN = 30  # of a generation before the next change
LONGEST = 200.0  # seconds that one network may take


def main() -> int:
    """Measure, print each result as it comes, and sum up; 1 if a target is missed."""
    console = Console(soft_wrap=True)
    verdicts = []
    with tempfile.TemporaryDirectory() as name:
        for workload, target in TARGETS.items():
            directory = Path(name) / workload.replace(" ", "-")
            resizes = []
            for one in until(LONGEST, partial(resize, directory, workload)):
                resizes.append(one)
                before, after = one.gap.change
                said = f"{one.gap.duration:.3f} s without training, reported {one.pause:.3f} s"
                console.print(f"{workload}: {before} → {after} workers: {said}", highlight=False)
            gaps = [each.gap for each in resizes]
            medians = [median(durations(gaps, c)) for c in CHANGES if durations(gaps, c)]
            traces = {
                path.stem: len(path.read_text().split()) for path in directory.glob("*.traces")
            }
            is_met = len(medians) == len(CHANGES) and max(medians) <= target
            is_traced_once = set(traces.values()) == {1}
            console.print(
                f"{workload}: slowest median {max(medians):.3f} s of {target} s over"
                f" {len(resizes)} changes, traces of the step: {sorted(traces.values())}:"
                f" {'met' if is_met and is_traced_once else 'missed'}",
                highlight=False,
            )
            verdicts.append(is_met and is_traced_once)
        for bench in (bench_servers, bench_restarts):
            place = Path(name) / bench.__name__
            place.mkdir()
            verdicts.append(bench(console, place))
    return int(not all(verdicts))


def bench_servers(console: Console, directory: Path) -> bool:
    """Measure how long workers of parameter servers wait for one that comes or leaves."""
    pauses: dict[str, list[float]] = {"grow": [], "shrink": []}
    with servers_and_workers(directory, 1) as conductor:
        follow(conductor, order_with_servers(conductor, ["w0"], 8))
        for number in range(1, CYCLES + 1):
            conductor.start(f"w{number}")
            for change, members in (("grow", ["w0", f"w{number}"]), ("shrink", ["w0"])):
                pause = follow(conductor, order_with_servers(conductor, members, 8))
                console.print(f"servers: {change} {pause:.3f} s", highlight=False)
                pauses[change].append(pause)
    limits = {"grow": MOST_GROWING, "shrink": MOST_SHRINKING}
    for change, most in limits.items():
        found = median(pauses[change])
        verdict = "met" if found <= most else "missed"
        console.print(f"servers: {change} {found:.3f} s of {most} s: {verdict}", highlight=False)
    return all(median(pauses[change]) <= most for change, most in limits.items())


def bench_restarts(console: Console, directory: Path) -> bool:
    """Measure restarts with the next process beside the old one, and cold ones, in turns."""
    pauses: dict[bool, list[float]] = {True: [], False: []}
    script = [sys.executable, str(SCRIPTS / "elastic.py"), "keras"]
    with conduct(directory, *script) as conductor:
        for worker in ("w0", "w1"):
            conductor.start(worker)
        follow(conductor, conductor.order(["w0", "w1"], 16))
        for number in range(RESTARTS):
            is_cold = number % 2 == 1
            batch = 32 if number % 4 < 2 else 16
            generation = conductor.order(["w0", "w1"], batch, repairs=is_cold)
            pauses[is_cold].append(follow(conductor, generation))
            way = "cold" if is_cold else "beside the old process"
            said = f"MWMS: restart, {way}: {pauses[is_cold][-1]:.2f} s"
            console.print(said, highlight=False)
    beside, cold = median(pauses[False]), median(pauses[True])
    verdict = "met" if beside <= MOST_OF_COLD * cold else "missed"
    console.print(
        f"MWMS: restart {beside:.2f} s, cold {cold:.2f} s: {beside / cold:.2f} of"
        f" {MOST_OF_COLD}: {verdict}",
        highlight=False,
    )
    return beside <= MOST_OF_COLD * cold


def follow(conductor: Conductor, generation: int) -> float:
    """Wait until a generation trains; returns the seconds in which no worker trained."""
    conductor.wait(lambda: rows_of(conductor.reports, generation) >= STEPS_BETWEEN)
    news = [report.regrouped for report in conductor.reports if report.regrouped]
    (pause,) = (each.pause for each in news if each.generation == generation)
    return pause


def resize(directory: Path, workload: str, limit: Limit) -> Iterator[Resize]:
    """Let workers that are up join, and others leave."""
    directory.mkdir()
    environment = {
        "BENCH_WORKLOAD": workload,
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    names = (f"w{number}" for number in count())
    script = ["-m", "tests.bench.keras_resized"]
    with Conductor(directory, script, environment=environment) as conductor:
        members: list[str] = []
        for workers in (*PLAN, *(PLAN[1:] * (CYCLES - 1))):
            newcomers = [next(names) for _ in range(workers - len(members))]
            for newcomer in newcomers:
                conductor.start(newcomer)
            members = [*members[:workers], *newcomers]
            generation = order(conductor, members, limit)
            if generation > 1:
                news = [report.regrouped for report in conductor.reports if report.regrouped]
                (pause,) = (each.pause for each in news if each.generation == generation)
                yield Resize(diary.gaps(diary.read(directory / "w0.jsonl"))[-1], pause)


if __name__ == "__main__":
    sys.exit(main())
