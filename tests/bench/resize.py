"""How long training stops for a live resize, beside the same change made by torchrun.

Both train the digits' CNN and go from 2 workers to 4, to 1 and back to 2, again and again. The live
half is measured before and after torchrun's, so that a computer that gets busier meanwhile favours
neither.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from tests.bench import diary
from tests.bench.diary import Gap, Iteration
from tests.bench.digits import BATCH
from tests.bench.torchrun import RENDEZVOUS, Torchrun
from tests.conductor import Conductor

TARGET = 0.25
CHANGES = ((2, 4), (4, 1), (1, 2))
SETTLED = 10  # iterations between two changes
CYCLES_BEFORE, CYCLES_AFTER = 3, 2
RESTART_CYCLES = 5
LAST_RESTARTS = 150.0  # seconds after which torchrun begins no other cycle
PATIENCE = 90.0
POLL = 0.1


@dataclass(frozen=True, slots=True)
class Resize:
    """A live resize: the gap in the leader's diary, and the pause that the leader reported."""

    gap: Gap
    pause: float


def main() -> int:
    """Measure and print; 1 if the median of any live resize misses the target."""
    console = Console()
    end = time.monotonic() + LAST_RESTARTS
    with tempfile.TemporaryDirectory() as name, console.status("resizing live") as status:
        directory = Path(name)
        live = resize(directory / "before", CYCLES_BEFORE)
        status.update("restarting with torchrun, which takes minutes")
        restarts = restart(directory / "torchrun", end)
        status.update("resizing live once more")
        live += resize(directory / "after", CYCLES_AFTER)
    console.print(to_table(live, restarts))
    console.print(explain(live, restarts), highlight=False)
    return int(slowest(live) > TARGET)


def resize(directory: Path, cycles: int) -> list[Resize]:
    """Let workers that are up join, and others leave."""
    directory.mkdir()
    names = (f"w{number}" for number in count())
    with Conductor(directory, ["-m", "tests.bench.digits"]) as conductor:
        # A worker that is killed in the end breaks its connection, which is no news.
        members: list[str] = []
        for workers in (2, *(after for _, after in CHANGES * cycles)):
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


def to_table(live: Sequence[Resize], restarts: Sequence[Gap]) -> Table:
    """Lay the two beside each other, a row for each change."""
    table = Table(title="Seconds without training while the number of workers changes")
    table.add_column("workers")
    for heading in ("live", "max", "n", "reported", "torchrun", "max", "n", "ratio"):
        table.add_column(heading, justify="right")
    for change in CHANGES:
        ours = durations([each.gap for each in live], change)
        theirs = durations(restarts, change)
        told = [each.pause for each in live if each.gap.change == change]
        table.add_row(
            f"{change[0]} → {change[1]}",
            *(f"{median(ours):.3f}", f"{max(ours):.3f}", str(len(ours)), f"{median(told):.3f}"),
            *(f"{median(theirs):.2f}", f"{max(theirs):.2f}", str(len(theirs))),
            f"{median(theirs) / median(ours):.0f}",
        )
    return table


def explain(live: Sequence[Resize], restarts: Sequence[Gap]) -> str:
    """Say what the numbers hold, and whether the target is met."""
    boots = [(gap, gap.boots[-1]) for gap in restarts]
    meeting = median(boot.started - gap.began for gap, boot in boots)
    imports = median(boot.imported - boot.started for _, boot in boots)
    joining = median(gap.began + gap.duration - boot.imported for gap, boot in boots)
    verdict = "missed" if slowest(live) > TARGET else "met"
    return (
        "Medians, from the end of the last iteration to the beginning of the next in the first "
        "worker's script; reported is the pause that its agent tells the controller.\n"
        "live: newcomers are up before they are ordered in; nothing is saved, loaded or lost.\n"
        "torchrun: newcomers' agents are up before they join, but every worker is a new process; "
        f"{meeting:.1f} s to save, end, meet and start, {imports:.1f} s of imports, "
        f"{joining:.1f} s to form the group, load and wrap; nothing is lost. "
        f"Its settings: {RENDEZVOUS}.\n"
        f"target: every median under {TARGET} s; the largest is {slowest(live):.3f} s: {verdict}"
    )


def slowest(live: Sequence[Resize]) -> float:
    return max(median(durations([each.gap for each in live], change)) for change in CHANGES)


def durations(gaps: Iterable[Gap], change: tuple[int, int]) -> list[float]:
    return [gap.duration for gap in gaps if gap.change == change]


if __name__ == "__main__":
    sys.exit(main())
