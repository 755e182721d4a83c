"""Runs: what training the small tasks showed, summary figures only, kept beside the scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from pydantic import TypeAdapter

from scavenger.measurement.profiling import Observation

FILE = Path(__file__).with_name("runs.json")
DIGITS = 4

# Some seeds are the jobs that ran before, the others those whose time is to be predicted.
EARLIER, ACTUAL = (0, 1, 2), (3, 4, 5)
SEARCHED = ACTUAL[:2]


@dataclass(frozen=True, slots=True)
class Level:
    """A value of the metric, when it was reached.

    Attributes:
        goal: Value of the metric.
        epochs: Passes over the data until then.
        iterations: Iterations until then.
    """

    goal: float
    epochs: float
    iterations: int


@dataclass(frozen=True, slots=True)
class Training:
    """One run from the first iteration on; ``levels`` holds those it reached."""

    recipe: str
    global_batch: int
    seed: int
    levels: tuple[Level, ...]


@dataclass(frozen=True, slots=True)
class Trajectory:
    """Noise followed through a run (Fig. 6).

    Attributes:
        workers: Workers.
        global_batch: Samples per iteration.
        settled_after: Iterations after which its noise counts as settled; None if never.
        iterations: Where the noise is noted.
        noise: Smoothed γ.
    """

    workers: int
    global_batch: int
    settled_after: int | None
    iterations: tuple[int, ...]
    noise: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Search:
    """What a search measured."""

    strategy: Literal["full", "partial"]
    seed: int
    observations: tuple[Observation, ...]


@dataclass(frozen=True, slots=True)
class Runs:
    """Everything one workload was trained for.

    Attributes:
        dataset_size: Samples of one epoch.
        trainings: Runs to the target.
        same_samples: Iterations to the target by worker count, with one batch and one seed.
        trajectories: Noise through long runs.
        searches: What searches measured.
        frozen: Noise of every configuration, all with the same weights, without seconds.
        minutes: Minutes of one core that all of it took.
    """

    dataset_size: int
    trainings: tuple[Training, ...]
    same_samples: Mapping[int, int]
    trajectories: tuple[Trajectory, ...]
    searches: tuple[Search, ...]
    frozen: tuple[Observation, ...]
    minutes: float

    def of(self, recipe: str, global_batch: int) -> tuple[Training, ...]:
        """Return the runs of one recipe at one batch."""
        return tuple(
            run
            for run in self.trainings
            if (run.recipe, run.global_batch) == (recipe, global_batch)
        )

    def epochs(
        self, recipe: str, global_batch: int, goal: float, seeds: Sequence[int] = EARLIER + ACTUAL
    ) -> float | None:
        """Return the median epochs to a level; None where half of the runs never reached it."""
        runs = [run for run in self.of(recipe, global_batch) if run.seed in seeds]
        reached = [level.epochs for run in runs for level in run.levels if level.goal == goal]
        return median(reached) if 2 * len(reached) > len(runs) else None

    def search(self, strategy: str, seed: int) -> tuple[Observation, ...]:
        """Return what one search measured."""
        return next(
            found.observations
            for found in self.searches
            if (found.strategy, found.seed) == (strategy, seed)
        )


AllRuns = dict[str, Runs]
ADAPTER = TypeAdapter(AllRuns)


def load(file: Path = FILE) -> AllRuns:
    """Read the runs of all workloads, by name of the setting."""
    return ADAPTER.validate_json(file.read_bytes())


def save(runs: AllRuns, file: Path = FILE) -> None:
    """Write the runs, floats to a few digits, one line per run."""
    document = rounded(json.loads(ADAPTER.dump_json(runs, exclude_defaults=True)))
    file.write_text(json.dumps(document, indent=None, separators=(",", ":")) + "\n")


def rounded(value: object) -> object:
    """Return a document with floats of few digits."""
    match value:
        case float():
            return float(f"{value:.{DIGITS}g}")
        case list():
            return [rounded(entry) for entry in value]
        case dict():
            return {key: rounded(entry) for key, entry in value.items()}
        case _:
            return value
