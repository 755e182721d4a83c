"""``python -m tests.chaos --seeds 200``: plays seeds and prints what came out."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from statistics import median, quantiles

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.chaos.draw import kinds_of, write
from tests.chaos.networks import NETWORKS
from tests.chaos.outcome import Outcome
from tests.chaos.play import play
from tests.chaos.script import Kind
from tests.chaos.zygote import Zygote

SIDE_BY_SIDE = 2
ENOUGH = 40  # seeds from which on every kind of fault must have struck


def main() -> int:
    """Play the seeds asked for; 1 when one failed, or when a kind of fault never struck."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, help="play this one alone, and keep what it wrote")
    parser.add_argument("--framework", choices=sorted(NETWORKS), default="pytorch")
    parser.add_argument("--keep", type=Path, help="directory that failed seeds' files go to")
    options = parser.parse_args()
    seeds = [options.seed] if options.seed is not None else None
    seeds = seeds or list(range(options.first, options.first + options.seeds))
    keep = options.keep or (
        Path(tempfile.mkdtemp(prefix="chaos-")) if options.seed is not None else None
    )
    console = Console()
    outcomes = []
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    with progress:
        task = progress.add_task("seeds", total=len(seeds))
        for outcome in play_all(seeds, keep, options.framework):
            outcomes.append(outcome)
            progress.advance(task)
            for sentence in outcome.wrong:
                progress.console.print(f"seed {outcome.seed}: {sentence}", highlight=False)
    for table in to_tables(outcomes):
        console.print(table)
    failed = sorted(outcome.seed for outcome in outcomes if outcome.wrong)
    for seed in failed:
        again = f"python -m tests.chaos --framework {options.framework} --seed {seed}"
        console.print(f"failed; to repeat it: {again}")
    kinds = kinds_of(options.framework)
    missing = [kind.value for kind in kinds if not sum(o.fired[kind] for o in outcomes)]
    if missing and len(outcomes) >= ENOUGH:
        console.print(f"never struck: {', '.join(missing)}")
    if keep is not None:
        console.print(f"diaries and logs are in {keep}")
    return int(bool(failed) or (bool(missing) and len(outcomes) >= ENOUGH))


def play_all(seeds: Sequence[int], keep: Path | None, framework: str) -> Iterator[Outcome]:
    """Play seeds side by side; yields outcomes as they come."""
    with (
        tempfile.TemporaryDirectory() as name,
        Zygote(framework) as zygote,
        ThreadPoolExecutor(SIDE_BY_SIDE) as pool,
    ):
        directory = Path(name)
        started = [
            pool.submit(play, write(seed, framework), directory / f"seed{seed}", zygote)
            for seed in seeds
        ]
        for future in as_completed(started):
            outcome = future.result()
            files = directory / f"seed{outcome.seed}"
            if keep is not None and (outcome.wrong or len(seeds) == 1):
                shutil.copytree(files, keep / files.name, dirs_exist_ok=True)
            shutil.rmtree(files)
            yield outcome


def to_tables(outcomes: Sequence[Outcome]) -> tuple[Table, Table, Table]:
    """Lay out what was played, what struck and what came of it."""
    plans = Table(title="What was played")
    plans.add_column("plan")
    plans.add_column("seeds", justify="right")
    plans.add_column("failed", justify="right")
    for plan, seeds in sorted(Counter(outcome.plan for outcome in outcomes).items()):
        failed = sum(bool(outcome.wrong) for outcome in outcomes if outcome.plan == plan)
        plans.add_row(plan, str(seeds), str(failed))
    fired: Counter[Kind] = sum((outcome.fired for outcome in outcomes), Counter())
    faults = Table(title="What struck")
    faults.add_column("fault")
    faults.add_column("times", justify="right")
    for kind in Kind:
        faults.add_row(kind.value, str(fired[kind]))
    results = Table(title="What came of it")
    results.add_column("")
    results.add_column("", justify="right")
    for name, value in summary(outcomes):
        results.add_row(name, value)
    return plans, faults, results


def summary(outcomes: Sequence[Outcome]) -> Iterator[tuple[str, str]]:
    """Yield the figures of all seeds together."""

    def total(name: str) -> str:
        return str(sum(getattr(outcome, name) for outcome in outcomes))

    yield "seeds", str(len(outcomes))
    yield "failed", str(sum(bool(outcome.wrong) for outcome in outcomes))
    yield "iterations", total("iterations")
    yield "generations entered after the first", total("resizes")
    yield "repairs by the survivors", total("repairs")
    yield "partings from workers told to end", total("parted")
    yield "repairs by the controller", total("ordered")
    yield "changes called off by all", total("aborts")
    yield "changes refused by the leader", total("refusals")
    yield "silent workers given up", total("silenced")
    yield "times begun anew", total("restarts")
    yield "times gone on from a checkpoint", total("resumed")
    yield "workers back from standing by", total("returned")
    yield "longest pause", f"{max(outcome.pause for outcome in outcomes):.2f} s"
    yield "a seed takes, median", f"{median(outcome.duration for outcome in outcomes):.1f} s"
    own = [seconds for outcome in outcomes for seconds in outcome.recoveries]
    helped = [seconds for outcome in outcomes for seconds in outcome.helped]
    yield "killed to going on, by the survivors", spread(own)
    yield "killed to going on, by the controller", spread(helped)


def spread(values: Sequence[float]) -> str:
    """Say the median, the 90 % quantile and the largest of some durations."""
    if len(values) < 2:
        return ", ".join(f"{value:.2f} s" for value in values) or "none"
    high = quantiles(values, n=10)[-1]
    return f"{median(values):.2f} s, 90 % {high:.2f} s, max {max(values):.2f} s, n = {len(values)}"


if __name__ == "__main__":
    sys.exit(main())
