"""How long a TensorFlow session stops for a live resize, and whether its step is traced again.

Two networks go from 1 worker to 2, 4, 3 and back to 1, again and again. Newcomers are up before
they are ordered in: what is timed is the change, not the boot of a process.
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

TARGETS = {"0.3 million": 0.15, "11 million": 0.5}  # seconds, of the slowest change's median
CYCLES = 4
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
    return int(not all(verdicts))


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
