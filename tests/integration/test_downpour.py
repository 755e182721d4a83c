"""Workers at their own pace: the slow, the dead and the late change nothing for the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scavenger.protocol import ExchangeInterval, Member, StopAtMetric, StopAtProgress, StopRule
from tests.conductor import FOREVER, Conductor
from tests.integration import streamed
from tests.integration.forked import fork
from tests.integration.test_parameter_server import start_servers

SERVERS = ["s0", "s1"]


def conduct(directory: Path, stop: StopRule = FOREVER, **paces: float) -> Conductor:
    environment = {f"PACE_{worker}": str(pace) for worker, pace in paces.items()}
    return Conductor(
        directory,
        [str(Path(streamed.__file__))],
        stop=stop,
        dataset_size=streamed.SAMPLES,
        environment={
            "SCAVENGER_JOB_SECRET": "ours",
            "SCAVENGER_STRATEGY": "downpour",
            **environment,
        },
        launch=fork,
    )


def order(conductor: Conductor, workers: Sequence[str], **changes: Any) -> int:
    conductor.wait(lambda: all(name in conductor.hellos for name in SERVERS))
    servers = tuple(Member(name, conductor.hellos[name].address) for name in SERVERS)
    batch = 32 * len(workers)
    return conductor.order(list(workers), batch, strategy="downpour", servers=servers, **changes)


def begin(conductor: Conductor, *workers: str) -> None:
    start_servers(conductor, *SERVERS)
    for name in workers:
        conductor.start(name)


def rows(conductor: Conductor, worker: str) -> list[dict[str, Any]]:
    page = conductor.directory / f"{worker}.jsonl"
    return conductor.rows(worker) if page.exists() else []


def wait_for_rows(conductor: Conductor, worker: str, more: int) -> list[dict[str, Any]]:
    """Wait until a worker has begun so many more iterations; returns these."""
    before = len(rows(conductor, worker))
    conductor.wait(lambda: len(rows(conductor, worker)) >= before + more)
    return rows(conductor, worker)[before:]


def test_no_replica_waits_for_one_that_is_ten_times_slower(tmp_path: Path) -> None:
    with conduct(tmp_path, w0=0.04, w1=0.4) as conductor:
        begin(conductor, "w0", "w1")
        order(conductor, ["w0", "w1"])
        conductor.wait(lambda: rows(conductor, "w1"))
        together = wait_for_rows(conductor, "w0", 60)
        slow = [row for row in rows(conductor, "w1") if row["at"] > together[0]["at"]]
        conductor.wait(lambda: conductor.reports[-1].progress.metrics.get("staleness") is not None)
    # Iterations are counted, not timed: a busy computer slows both. 6 are expected, and as many as
    # the other's if that waited.
    assert 0 < len(slow) < len(together) / 2


def test_a_killed_replicas_samples_are_handed_out_again(tmp_path: Path) -> None:
    epochs = 3
    with conduct(tmp_path, StopAtProgress(epochs), w0=0.005, w1=0.005) as conductor:
        begin(conductor, "w0", "w1", "w2")
        order(conductor, ["w0", "w1", "w2"])
        wait_for_rows(conductor, "w1", 5)
        conductor.processes["w1"].kill()
        conductor.processes["w1"].wait()
        ends = conductor.wait(
            lambda: (
                {r.worker: r for r in conductor.reports if r.finished is not None}
                if {r.worker for r in conductor.reports if r.finished} >= {"w0", "w2"}
                else None
            )
        )
    written = {name: rows(conductor, name) for name in ("w0", "w1", "w2")}
    used = Counter(i for entries in written.values() for row in entries for i in row["indices"])
    used.subtract(again := Counter(used) - Counter(dict.fromkeys(range(streamed.SAMPLES), epochs)))
    assert used == Counter(dict.fromkeys(range(streamed.SAMPLES), epochs))
    assert set(again) <= set(written["w1"][-1]["indices"])  # it died before their push was heard
    assert ends["w0"].progress.samples == epochs * streamed.SAMPLES
    assert {report.finished for report in ends.values()} == {"target"}


@pytest.mark.slow  # the tests above find what it could
def test_digits_reach_97_percent_with_a_slow_replica_a_dead_one_and_a_late_one(
    tmp_path: Path,
) -> None:
    stop = StopAtMetric("accuracy", 0.97, "at_least", max_progress=60)
    with conduct(tmp_path, stop, w1=0.1) as conductor:
        begin(conductor, "w0", "w1", "w2", "w3")
        order(conductor, ["w0", "w1", "w2"])
        wait_for_rows(conductor, "w2", 10)
        conductor.processes["w2"].kill()
        order(conductor, ["w0", "w1", "w3"])
        ended = conductor.wait(
            lambda: [r for r in conductor.reports if r.worker == "w0" and r.finished]
        )
        conductor.wait(lambda: {r.worker for r in conductor.reports if r.finished} >= {"w1", "w3"})
    assert ended[-1].finished == "target"
    assert ended[-1].progress.metrics["accuracy"] >= 0.97
    assert rows(conductor, "w3")


def test_pushing_and_fetching_seldom_uses_every_sample_all_the_same(tmp_path: Path) -> None:
    with conduct(tmp_path, StopAtProgress(2)) as conductor:
        begin(conductor, "w0", "w1")
        order(conductor, ["w0", "w1"], exchange=ExchangeInterval(n_push=3, n_fetch=4))
        conductor.wait(lambda: {r.worker for r in conductor.reports if r.finished} == {"w0", "w1"})
    used = Counter(
        i for name in ("w0", "w1") for row in rows(conductor, name) for i in row["indices"]
    )
    assert used == Counter(dict.fromkeys(range(streamed.SAMPLES), 2))
    done = max(report.progress.samples for report in conductor.reports)
    assert done == 2 * streamed.SAMPLES
