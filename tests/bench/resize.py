"""How long training stops for a live resize, and when a worker dies, beside torchrun's restart.

The digits' CNN and ResNet18 with AdamW (134 MB of weights and optimizer state) go from 1 worker to
2, 4, 3 and back to 1, again and again. Newcomers are up before they are ordered in: what is timed
is the change, not the boot of a process. Then workers are killed, and nobody tells the survivors
what to do. Torchrun makes its changes with the digits' CNN.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench import diary
from tests.bench.diary import Gap, Iteration
from tests.bench.resized import BATCH
from tests.bench.torchrun import RENDEZVOUS, Torchrun
from tests.conductor import Conductor

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
LAST_RESTARTS = 150.0  # seconds after which torchrun begins no other cycle
PATIENCE = 90.0
POLL = 0.1


@dataclass(frozen=True, slots=True)
class Resize:
    """A live resize: the gap in the leader's diary, and the pause that the leader reported."""

    gap: Gap
    pause: float


def main() -> int:
    """Measure and print; 1 if a median misses its target."""
    console = Console()
    end = time.monotonic() + LAST_RESTARTS
    with tempfile.TemporaryDirectory() as name, console.status("resizing live") as status:
        directory = Path(name)
        live = {each: resize(directory / each, each) for each in TARGETS}
        status.update("killing workers")
        deaths = {each: recover(directory / f"{each}-deaths", each) for each in TARGETS}
        status.update("restarting with torchrun, which takes minutes")
        restarts = restart(directory / "torchrun", end)
    for workload, resizes in live.items():
        console.print(to_table(workload, resizes))
    console.print(to_restart_table(restarts))
    console.print(explain(live, deaths, restarts), highlight=False)
    return int(not all(verdicts(live, deaths)))


def conduct(directory: Path, workload: str) -> Conductor:
    directory.mkdir()
    environment = {"BENCH_WORKLOAD": workload, "GLOO_SOCKET_IFNAME": "lo"}
    return Conductor(directory, ["-m", "tests.bench.resized"], environment=environment)


def resize(directory: Path, workload: str) -> list[Resize]:
    """Let workers that are up join, and others leave."""
    names = (f"w{number}" for number in count())
    with conduct(directory, workload) as conductor:
        members: list[str] = []
        for workers in (*PLAN, *(PLAN[1:] * (CYCLES[workload] - 1))):
            newcomers = [next(names) for _ in range(workers - len(members))]
            for newcomer in newcomers:
                conductor.start(newcomer)
            members = [*members[:workers], *newcomers]
            # The order goes out when every newcomer has said that it is up.
            generation = conductor.order(members, BATCH, report_after=SETTLED)
            conductor.wait_applied(generation, SETTLED)
        news = [report.regrouped for report in conductor.reports if report.regrouped]
    pauses = {each.generation: each.pause for each in news}
    gaps = diary.gaps(diary.read(directory / "w0.jsonl"))
    return [Resize(gap, pauses[generation]) for generation, gap in enumerate(gaps, start=2)]


def recover(directory: Path, workload: str) -> list[float]:
    """Kill one of three workers, again and again; seconds until the two others train on."""
    names = (f"w{number}" for number in count())
    seconds = []
    with conduct(directory, workload) as conductor:
        members = [next(names) for _ in range(2)]
        for name in members:
            conductor.start(name)
        for _ in range(DEATHS):
            victim = next(names)
            conductor.start(victim)
            generation = conductor.order([*members, victim], BATCH, report_after=SETTLED)
            conductor.wait_applied(generation, SETTLED)
            killed_at = time.monotonic()
            conductor.processes[victim].send_signal(signal.SIGKILL)
            seconds.append(await_iteration(directory / "w0.jsonl", 2, killed_at) - killed_at)
    return seconds


def await_iteration(page: Path, workers: int, after: float) -> float:
    """Wait for an iteration of so many workers after a moment, and return when it began."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        for entry in diary.read(page):
            if isinstance(entry, Iteration) and entry.workers == workers and entry.began > after:
                return entry.began
        time.sleep(POLL)
    raise TimeoutError(f"no iteration of {workers} workers in {page}")


def restart(directory: Path, end: float) -> list[Gap]:
    """Let agents of torchrun join and leave; the keeper's is there from first to last."""
    directory.mkdir()
    page = directory / "keeper.jsonl"
    with Torchrun(directory, ["-m", "tests.bench.restarted"], most=3) as torchrun:
        torchrun.start("keeper", workers=1, environment={"BENCH_KEEPER": "1"})
        await_workers(page, 1)
        for _ in range(RESTART_CYCLES):
            torchrun.start("second", workers=1)
            await_workers(page, 2)
            torchrun.start("third", workers=2)
            await_workers(page, 4)
            torchrun.stop("second", "third")
            await_workers(page, 1)
            if time.monotonic() > end:
                break
    return diary.gaps(diary.read(page))


def await_workers(page: Path, workers: int) -> None:
    """Wait until so many workers have settled."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        last = diary.read(page)[-SETTLED:]
        if len(last) == SETTLED and all(
            isinstance(entry, Iteration) and entry.workers == workers for entry in last
        ):
            return
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
    theirs = median(gap.duration for gap in restarts)
    lines = [
        "From the end of the last iteration to the beginning of the next in the first worker's "
        "script; reported is the pause that its agent tells the controller. Nothing is saved, "
        "loaded or lost live.",
        "torchrun: newcomers' agents are up before they join, but every worker is a new process. "
        f"Its settings: {RENDEZVOUS}.",
    ]
    met = iter(verdicts(live, deaths))
    for workload, resizes in live.items():
        ours = slowest(resizes)
        lines.append(
            f"{workload}: slowest median {ours:.3f} s, target {TARGETS[workload]} s: "
            f"{'met' if next(met) else 'missed'}; torchrun {theirs:.1f} s is {theirs / ours:.0f} "
            f"times that, the paper's {PAPER:.0f} s {PAPER / ours:.0f} times"
        )
    for workload, seconds in deaths.items():
        lines.append(
            f"{workload}: after a worker's SIGKILL the others train again in "
            f"{median(seconds):.3f} s (at most {max(seconds):.3f}), target {TARGET_AFTER_DEATH} s: "
            f"{'met' if next(met) else 'missed'}"
        )
    return "\n".join(lines)


def verdicts(
    live: Mapping[str, Sequence[Resize]], deaths: Mapping[str, Sequence[float]]
) -> list[bool]:
    """Tell for each workload whether resizes, then recoveries, are quick enough."""
    resized = [slowest(resizes) <= TARGETS[workload] for workload, resizes in live.items()]
    return [*resized, *(median(each) <= TARGET_AFTER_DEATH for each in deaths.values())]


def slowest(live: Sequence[Resize]) -> float:
    return max(median(durations([each.gap for each in live], change)) for change in CHANGES)


def durations(gaps: Iterable[Gap], change: tuple[int, int]) -> list[float]:
    return [gap.duration for gap in gaps if gap.change == change]


if __name__ == "__main__":
    sys.exit(main())
