"""A script under a strategy of tf.distribute is resized by a restart at one boundary."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.test_run import GROW_AND_SHRINK, conduct, rows_of, shards_by_generation
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
        shards = shards_by_generation(conductor.reports)
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
    for generation in (1, 2):
        last = max(step["at"] for step in told if step["generation"] == generation)
        starts = [float(file.read_text()) for file in tmp_path.glob(f"started-{generation + 1}-*")]
        assert max(starts) < last, "training went on while the next processes imported TensorFlow"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["keras"], ["keras", "weights"], ["tf_keras", "weights"]], ids="-".join
)
def test_a_checkpoint_of_the_script_comes_before_ours(tmp_path: Path, arguments: list[str]) -> None:
    library, *kind = arguments
    script = [sys.executable, str(SCRIPTS / "elastic.py"), library, "saved", *kind]
    with conduct(tmp_path, *script) as conductor:
        conductor.start("w0")
        try:
            for batch in (16, 32):
                generation = conductor.order(["w0"], batch)
                conductor.wait(lambda it=generation: rows_of(conductor.reports, it) >= 25)
        finally:
            (tmp_path / "end").touch()
        code = conductor.processes["w0"].wait()
        said = conductor.logs()
    assert code == 0, said
    assert said.count("the script continues from its own checkpoint") == 1
    before, after = ([s for s in steps_told(tmp_path) if s["generation"] == g] for g in (1, 2))
    saved = [step["after"] for step in before if step["iteration"] % 10 == 0]
    assert after[0]["before"] == saved[-1], "it goes on from what the script saved last"


@pytest.mark.slow
@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_what_fit_has_backed_up_comes_before_ours(tmp_path: Path, library: str) -> None:
    script = [sys.executable, str(SCRIPTS / "fitting.py"), library, "100000", "saved"]
    with conduct(tmp_path, *script) as conductor:
        conductor.start("w0")
        for batch in (16, 32):
            generation = conductor.order(["w0"], batch)
            conductor.wait(lambda it=generation: rows_of(conductor.reports, it) >= 25)
        said = conductor.logs()
    assert said.count("the script continues from its own checkpoint") == 1, said


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["w0", "w1"], ids=["chief", "other"])
def test_a_killed_process_of_either_role_ends_all_of_them_and_training_goes_on(
    tmp_path: Path, victim: str
) -> None:
    script = [sys.executable, str(SCRIPTS / "elastic.py"), "keras"]
    with conduct(tmp_path, *script, SCAVENGER_CHECKPOINT_EVERY="1") as conductor:
        for worker in ("w0", "w1"):
            conductor.start(worker)
        try:
            generation = conductor.order(["w0", "w1"], 16)
            conductor.wait(lambda: rows_of(conductor.reports, generation) >= 60)
            before = conductor.reports[-1].progress.iteration
            (process,) = children_named(conductor.processes[victim].pid, "elastic.py")
            process.kill()
            survivor = "w1" if victim == "w0" else "w0"
            conductor.wait(lambda: any(r.broken == generation for r in conductor.reports))
            after = conductor.order([survivor], 16)
            conductor.wait(lambda: rows_of(conductor.reports, after) >= 20)
        finally:
            (tmp_path / "end").touch()
        code = conductor.processes[survivor].wait()
    assert code == 0
    later = [step for step in steps_told(tmp_path) if step["generation"] == after]
    assert later[0]["iteration"] > before / 2, "it goes on from a checkpoint"


def children_named(parent: int, name: str) -> list[psutil.Process]:
    children = psutil.Process(parent).children(recursive=True)
    return [each for each in children if any(name in part for part in each.cmdline())]
