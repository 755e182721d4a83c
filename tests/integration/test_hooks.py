"""Scripts that know nothing of the agent: what its hooks find is what each iteration really did."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from tests.integration import listened
from worker_agent.launcher.rank_aggregator import RankAggregator
from worker_agent.launcher.step_records import (
    MeasuredStep,
    RankStep,
    combine_ranks,
    from_line,
    pack_rank_steps,
    to_line,
    unpack_rank_steps,
)
from worker_agent.launcher.step_timer import PendingStep, StepMarks
from worker_agent.pytorch.instrumentation import GroupStore
from worker_agent.step_clock import HostClock

ROOT = Path(__file__).parents[2]
WORLD_SIZE = 3
NOTHING = RankStep(1, 8, 2.0, 1.0, 0.1, 0.2, 0.3)
MARKS = StepMarks(HostClock(), 0.0, 0.0, 1.0, 2.0, 3.0, [])


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[dict[str, Any], MeasuredStep]]:
    """Train once in all ways; returns what really happened beside what the hooks found."""
    directory = tmp_path_factory.mktemp("hooks")
    rows, truth = directory / "rows.jsonl", directory / "truth.json"
    script = str(ROOT / "tests/integration/listened.py")
    torchrun = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={WORLD_SIZE}"]
    subprocess.run(
        [*agent_run("--out", str(rows)), *torchrun, script, str(truth)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        check=True,
    )
    happened = [each for each in json.loads(truth.read_text()) if each["is_applied"]]
    found = [from_line(line) for line in rows.read_text().splitlines()]
    assert [row.iteration for row in found] == list(range(1, len(happened) + 1))
    return list(zip(happened, found, strict=True))


def agent_run(*options: str) -> list[str]:
    return [sys.executable, "-m", "worker_agent", "run", *options, "--"]


@pytest.mark.parametrize("way", [*listened.WAYS, "sharded"])
def test_the_norms_found_are_those_computed_by_hand(
    told: list[tuple[dict[str, Any], MeasuredStep]], way: str
) -> None:
    pairs = [(truth, row) for truth, row in told if truth["way"] == way]
    assert pairs
    for place, (truth, row) in enumerate(pairs):
        assert row.shards == WORLD_SIZE
        if is_blind(way, place):
            assert row.local_norm_sq is None
            continue
        # float16 rounds what the ranks tell each other, not what each computed.
        accuracy = 1e-2 if way in ("compressed", "views with a hook") else 1e-5
        assert row.local_norm_sq == pytest.approx(truth["local_norm_sq"], rel=1e-5)
        assert row.mean_norm_sq == pytest.approx(truth["mean_norm_sq"], rel=accuracy)


def is_blind(way: str, place: int) -> bool:
    """Whether the averages before it were never applied, and could as well have been accumulated;
    or a static graph was averaged before the hook was called."""
    return (way, place) in (("overflowing", 2), ("static", 0))


def test_measuring_never_reads_a_value_of_the_device(
    told: list[tuple[dict[str, Any], MeasuredStep]],
) -> None:
    # To find unused parameters DDP itself reads, once per parameter and iteration.
    listened_to = [truth for truth, _ in told if truth["way"] not in ("unused", "static")]
    assert {read for truth in listened_to for read in truth["reads"]} == set()


def test_times_are_those_of_the_slowest_and_of_who_waits_least(
    told: list[tuple[dict[str, Any], MeasuredStep]],
) -> None:
    for _, row in told[1:]:
        assert 0 <= row.fastest_compute_time <= row.mean_compute_time <= row.compute_time
        assert row.compute_time > 0
        assert row.sync_time >= 0
        assert row.step_time > 0


def test_samples_are_counted_over_all_ranks_and_passes(
    told: list[tuple[dict[str, Any], MeasuredStep]],
) -> None:
    samples = {truth["way"]: row.samples for truth, row in told}
    assert samples["plain"] == samples["sharded"] == 8 * WORLD_SIZE
    assert samples["accumulated"] == 3 * 8 * WORLD_SIZE


def test_rows_and_parts_survive_their_travels() -> None:
    assert unpack_rank_steps(pack_rank_steps([NOTHING, NOTHING])) == [NOTHING, NOTHING]
    row = combine_ranks([NOTHING, RankStep(1, 8, float("nan"), 1.0, 0.5, 0.1, 0.4)])
    assert from_line(to_line(row)) == row
    assert row.local_norm_sq is None
    assert (row.compute_time, row.sync_time, row.step_time) == (0.5, 0.1, 0.3)


def open_exchanges(
    workers: int, rows: list[MeasuredStep], stop_request: Path
) -> Sequence[RankAggregator]:
    store = Shared()
    connect = partial(GroupStore, store)
    return [
        RankAggregator(rank, workers, connect, rows.append, stop_request) for rank in range(workers)
    ]


class Shared(HashStore):
    """A store within one process, whose connections are all the same."""

    def clone(self) -> Shared:
        return self


def test_a_row_waits_for_the_part_of_every_rank_at_any_pace(tmp_path: Path) -> None:
    rows: list[MeasuredStep] = []
    exchanges = open_exchanges(3, rows, tmp_path / "wish")
    for iteration in range(1, 41):
        for exchange in exchanges[: 3 if iteration <= 30 else 2]:
            exchange.queue.put(PendingStep(iteration, 1, MARKS, None))
    closing = [threading.Thread(target=each.close) for each in reversed(exchanges)]
    for thread in closing:
        thread.start()
    for thread in closing:
        thread.join()
    assert [row.iteration for row in rows] == list(range(1, 31))


def test_all_ranks_stop_after_the_same_reduction(tmp_path: Path) -> None:
    exchanges = open_exchanges(3, [], tmp_path / "wish")
    stopped: dict[int, int] = {}
    reduction = threading.Barrier(3)

    def train(exchange: RankAggregator) -> None:
        for count in range(1_000_000):
            if exchange.is_time_to_stop(count):
                stopped[exchange.rank] = count
                return
            if count == 50 and exchange.rank == 0:
                (tmp_path / "wish").touch()
            reduction.wait()

    threads = [threading.Thread(target=train, args=(each,)) for each in exchanges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(stopped) == {0, 1, 2}
    assert len(set(stopped.values())) == 1
    for exchange in exchanges[::-1]:
        exchange.close()
