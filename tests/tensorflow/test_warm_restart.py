"""A script under a strategy of tf.distribute is resized by a restart at one boundary."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.test_run import GROW_AND_SHRINK, conduct, rows_of
from tests.tensorflow.test_instrumentation import LIBRARIES, SCRIPTS


def steps_told(directory: Path) -> list[dict[str, Any]]:
    """Return what all starts of the script have told of their steps."""
    texts = [file.read_text() for file in directory.glob("*-*-*.jsonl")]
    return [json.loads(line) for text in texts for line in text.splitlines()]


@pytest.mark.parametrize("library", LIBRARIES)
def test_weights_slots_and_iterations_are_kept_on_all_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with conduct(tmp_path, sys.executable, str(SCRIPTS / "elastic.py"), library) as conductor:
        for worker in ("w0", "w1"):
            conductor.start(worker)
        try:
            for names in GROW_AND_SHRINK:
                generation = conductor.order(list(names), 16)
                conductor.wait(lambda it=generation: rows_of(conductor.reports, it) >= 20)
        finally:
            (tmp_path / "end").touch()
        codes = [process.wait() for process in conductor.processes.values()]
        said = conductor.logs()
        iterations = [i for report in conductor.reports for i in report.steps.iteration]
        shards = {
            report.progress.generation: set(report.steps.shards)
            for report in conductor.reports
            if report.steps.shards
        }
    assert codes == [0, 0]
    told = steps_told(tmp_path)
    assert iterations == list(range(1, len(iterations) + 1)), said
    assert shards == {1: {1}, 2: {2}, 3: {1}}
    by_iteration: dict[int, list[dict[str, Any]]] = {}
    for step in told:
        by_iteration.setdefault(step["iteration"], []).append(step)
    assert sorted(by_iteration) == list(range(1, len(by_iteration) + 1)), said
    for number, steps in by_iteration.items():
        assert len({step["after"] for step in steps}) == 1, "all workers have the same weights"
        assert sorted(step["rank"] for step in steps) == list(range(steps[0]["replicas"]))
        if number > 1:
            assert {step["before"] for step in steps} == {by_iteration[number - 1][0]["after"]}
    assert {step["generation"] for step in told} == {1, 2, 3}
