"""How long training stops for a live resize, and when a worker dies, beside torchrun's restart.

The digits' CNN and ResNet18 with AdamW (134 MB of weights and optimizer state) go from 1 worker to
2, 4, 3 and back to 1, again and again. Newcomers are up before they are ordered in: what is timed
is the change, not the boot of a process. Then workers are killed, and no controller tells the
survivors what to do. Torchrun makes its changes with the digits' CNN. Every change is printed when
it was seen, and each part ends after a while: a busy computer gives fewer figures, but no silence.
"""

from __future__ import annotations

import math
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from pathlib import Path
from statistics import median
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from tests.bench import diary
from tests.bench.diary import Gap, Iteration
from tests.bench.resized import BATCH
from tests.bench.torchrun import RENDEZVOUS, Torchrun
from tests.conductor import Conductor, InVain

T = TypeVar("T")

TARGETS = {"digits": 0.05, "ResNet18": 0.3}
TARGET_AFTER_DEATH = 0.5
PAPER = 37.0  # seconds, the least that Table III of the paper has
PLAN = (1, 2, 4, 3, 1)
CHANGES = tuple(pairwise(PLAN))
RESTARTS = ((2, 4), (4, 1), (1, 2))
SETTLED = 10  # iterations between two changes
CYCLES = {"digits": 5, "ResNet18": 4}
DEATHS = 5
RESTART_CYCLES = 3
NO_GAP = Gap((0, 1), 0.0, 0.0, ())
POLL = 0.1
# Seconds that each part may take, 490 together; a busy computer measures fewer changes in them.
RESIZING, KILLING, RESTARTING = 120.0, 50.0, 150.0


@dataclass(frozen=True, slots=True)
class Resize:
    """A live resize: the gap in the leader's diary, and the pause that the leader reported."""

    gap: Gap
    pause: float


@dataclass(frozen=True, slots=True)
class Limit:
    """When one part of the measurements is over, complete or not."""

    end: float

    @property
    def left(self) -> float:
        """Seconds until then, not below 0."""
        return max(self.end - time.monotonic(), 0.0)


def main() -> int:
    """Measure, print each result as it comes, and sum up; 1 if a median misses its target."""
    console = Console(soft_wrap=True)
    live: dict[str, list[Resize]] = {}
    deaths: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        for each in TARGETS:
            live[each] = []
            for one in until(RESIZING, partial(resize, directory / each, each)):
                live[each].append(one)
                before, after = one.gap.change
                said = f"{one.gap.duration:.3f} s without training, reported {one.pause:.3f} s"
                console.print(f"{each}: {before} → {after} workers: {said}", highlight=False)
        for each in TARGETS:
            deaths[each] = []
            for seconds in until(KILLING, partial(recover, directory / f"{each}-deaths", each)):
                deaths[each].append(seconds)
                console.print(f"{each}: a worker killed: {seconds:.3f} s", highlight=False)
        restarts = []
        for gap in until(RESTARTING, partial(restart, directory / "torchrun")):
            restarts.append(gap)
            before, after = gap.change
            console.print(f"torchrun: {before} → {after} workers: {gap.duration:.2f} s")
    for workload, resizes in live.items():
        console.print(to_table(workload, resizes))
    console.print(to_restart_table(restarts))
    console.print(explain(live, deaths, restarts), highlight=False)
    return int(not all(verdicts(live, deaths)))


def until(seconds: float, measure: Callable[[Limit], Iterator[T]]) -> Iterator[T]:
    """Yield what is measured within so many seconds."""
    limit = Limit(time.monotonic() + seconds)
    try:
        yield from measure(limit)
    except (InVain, TimeoutError):
        if limit.left:
            raise


def conduct(directory: Path, workload: str) -> Conductor:
    directory.mkdir()
    environment = {"BENCH_WORKLOAD": workload, "GLOO_SOCKET_IFNAME": "lo"}
    return Conductor(directory, ["-m", "tests.bench.resized"], environment=environment)


def order(conductor: Conductor, members: list[str], limit: Limit) -> int:
    """Have these workers train, once every newcomer has said that it is up, until they settle."""
    told = {"report_after": SETTLED, "timeout": limit.left}
    generation = conductor.order(members, BATCH, **told)
    conductor.wait_applied(generation, SETTLED, limit.left)
    return generation


def resize(directory: Path, workload: str, limit: Limit) -> Iterator[Resize]:
    """Let workers that are up join, and others leave."""
    names = (f"w{number}" for number in count())
    with conduct(directory, workload) as conductor:
        members: list[str] = []
        for workers in (*PLAN, *(PLAN[1:] * (CYCLES[workload] - 1))):
            newcomers = [next(names) for _ in range(workers - len(members))]
            for newcomer in newcomers:
                conductor.start(newcomer)
            members = [*members[:workers], *newcomers]
            generation = order(conductor, members, limit)
            if generation > 1:
                news = [report.regrouped for report in conductor.reports if report.regrouped]
                (pause,) = (each.pause for each in news if each.generation == generation)
                yield Resize(diary.gaps(diary.read(directory / "w0.jsonl"))[-1], pause)


def recover(directory: Path, workload: str, limit: Limit) -> Iterator[float]:
    """Kill one of three workers, again and again; seconds until the two others train on."""
    names = (f"w{number}" for number in count())
    with conduct(directory, workload) as conductor:
        members = [next(names) for _ in range(2)]
        for name in members:
            conductor.start(name)
        for _ in range(DEATHS):
            victim = next(names)
            conductor.start(victim)
            order(conductor, [*members, victim], limit)
            killed_at = time.monotonic()
            conductor.processes[victim].send_signal(signal.SIGKILL)
            yield await_iteration(directory / "w0.jsonl", 2, killed_at, limit) - killed_at


def await_iteration(page: Path, workers: int, after: float, limit: Limit) -> float:
    """Wait for an iteration of so many workers after a moment, and return when it began."""
    while limit.left:
        for entry in diary.read(page):
            if isinstance(entry, Iteration) and entry.workers == workers and entry.began > after:
                return entry.began
        time.sleep(POLL)
    raise TimeoutError(f"no iteration of {workers} workers in {page}")


def restart(directory: Path, limit: Limit) -> Iterator[Gap]:
    """Let agents of torchrun join and leave; the keeper's is there from first to last."""
    directory.mkdir()
    page = directory / "keeper.jsonl"
    with Torchrun(directory, ["-m", "tests.bench.restarted"], most=3) as torchrun:
        torchrun.start("keeper", workers=1, environment={"BENCH_KEEPER": "1"})
        await_workers(page, 1, limit)
        for _ in range(RESTART_CYCLES):
            torchrun.start("second", workers=1)
            yield await_workers(page, 2, limit)
            torchrun.start("third", workers=2)
            yield await_workers(page, 4, limit)
            torchrun.stop("second", "third")
            yield await_workers(page, 1, limit)


def await_workers(page: Path, workers: int, limit: Limit) -> Gap:
    """Wait until so many workers have settled, and return the gap before them."""
    while limit.left:
        last = (entries := diary.read(page))[-SETTLED:]
        if len(last) == SETTLED and all(
            isinstance(entry, Iteration) and entry.workers == workers for entry in last
        ):
            return (diary.gaps(entries) or [NO_GAP])[-1]
        time.sleep(POLL)
    logs = [path.read_text(errors="replace")[-2000:] for path in page.parent.glob("*.log")]
    raise TimeoutError(f"torchrun does not train with {workers} workers:\n" + "\n".join(logs))


def to_table(workload: str, live: Sequence[Resize]) -> Table:
    """Lay out the live changes of one workload, a row for each."""
    table = Table(title=f"{workload}: seconds without training in a live resize")
    table.add_column("workers")
    for heading in ("median", "max", "n", "reported"):
        table.add_column(heading, justify="right")
    for change in CHANGES:
        ours = durations([each.gap for each in live], change)
        told = [each.pause for each in live if each.gap.change == change]
        if not ours:
            table.add_row(f"{change[0]} → {change[1]}", "–", "–", "0", "–")
            continue
        table.add_row(
            f"{change[0]} → {change[1]}",
            *(f"{median(ours):.3f}", f"{max(ours):.3f}", str(len(ours)), f"{median(told):.3f}"),
        )
    return table


def to_restart_table(restarts: Sequence[Gap]) -> Table:
    """Lay out torchrun's changes."""
    table = Table(title="digits: seconds without training when torchrun restarts")
    table.add_column("workers")
    for heading in ("median", "max", "n"):
        table.add_column(heading, justify="right")
    for change in RESTARTS:
        theirs = durations(restarts, change)
        if theirs:
            table.add_row(
                f"{change[0]} → {change[1]}",
                *(f"{median(theirs):.2f}", f"{max(theirs):.2f}", str(len(theirs))),
            )
    return table


def explain(
    live: Mapping[str, Sequence[Resize]],
    deaths: Mapping[str, Sequence[float]],
    restarts: Sequence[Gap],
) -> str:
    """Say what the numbers hold, and whether the targets are met."""
    theirs = median([gap.duration for gap in restarts]) if restarts else math.nan
    lines = [
        "From the end of the last iteration to the beginning of the next in the first worker's "
        "script; reported is the pause that its agent tells the controller. Nothing is saved, "
        "loaded or lost live.",
        "torchrun: newcomers' agents are up before they join, but every worker is a new process. "
        f"Its settings: {RENDEZVOUS}.",
    ]
    for workload, resizes in live.items():
        ours, target = slowest(resizes), TARGETS[workload]
        if math.isinf(ours):
            lines.append(f"{workload}: not every change was seen within {RESIZING:.0f} s: missed")
            continue
        lines.append(
            f"{workload}: slowest median {ours:.3f} s, target {target} s: "
            f"{'met' if ours <= target else 'missed'}; torchrun {theirs:.1f} s is "
            f"{theirs / ours:.0f} times that, the paper's {PAPER:.0f} s {PAPER / ours:.0f} times"
        )
    for workload, seconds in deaths.items():
        if not seconds:
            lines.append(f"{workload}: no death was seen within {KILLING:.0f} s: missed")
            continue
        lines.append(
            f"{workload}: after a worker's SIGKILL the others train again in "
            f"{median(seconds):.3f} s (at most {max(seconds):.3f}), target {TARGET_AFTER_DEATH} s: "
            f"{'met' if median(seconds) <= TARGET_AFTER_DEATH else 'missed'}"
        )
    return "\n".join(lines)


def verdicts(
    live: Mapping[str, Sequence[Resize]], deaths: Mapping[str, Sequence[float]]
) -> list[bool]:
    """Tell for each workload whether resizes, then recoveries, are quick enough."""
    resized = [slowest(resizes) <= TARGETS[workload] for workload, resizes in live.items()]
    recovered = (bool(each) and median(each) <= TARGET_AFTER_DEATH for each in deaths.values())
    return [*resized, *recovered]


def slowest(live: Sequence[Resize]) -> float:
    """Return the largest median over the kinds of changes; infinite where one was not measured."""
    by_change = [durations([each.gap for each in live], change) for change in CHANGES]
    return max(median(seconds) if seconds else math.inf for seconds in by_change)


def durations(gaps: Iterable[Gap], change: tuple[int, int]) -> list[float]:
    return [gap.duration for gap in gaps if gap.change == change]


if __name__ == "__main__":
    sys.exit(main())
