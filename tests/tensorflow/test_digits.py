"""The example with Keras, over HTTP, with real processes, gradients and data."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scavenger.schemas.jobs import JobPhase
from tests.controller import Controller

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def digits(example: str = "digits-keras", **changes: Any) -> dict[str, Any]:
    directory = EXAMPLES / example
    document: dict[str, Any] = yaml.safe_load((directory / "job.yaml").read_text())
    document["run"] = {"command": [sys.executable, "train.py"], "directory": str(directory)}
    return {**document, **changes}


def test_the_digits_job_is_searched_resized_and_reaches_its_target(controller: Controller) -> None:
    first = controller.finished(controller.submit(digits()))
    assert first.phase is JobPhase.SUCCEEDED, (first.reason, controller.log())
    assert first.progress.metrics["accuracy"] >= 0.97
    curve = controller.curve(first.id)
    probed = [(probe.workers, probe.global_batch) for probe in curve.probes]
    assert probed[:3] == [(1, 8), (1, 128), (2, 128)]
    assert all(p.noise and p.compute_time > 0 for p in curve.probes)
    assert curve.chosen in curve.front
    measured = [resize for resize in curve.resizes if resize.pause is not None]
    assert len(measured) >= 3
    assert all(resize.iterations_lost == 0 for resize in measured)
    second = controller.finished(controller.submit(digits()))
    assert second.phase is JobPhase.SUCCEEDED, second.reason
    assert controller.curve(second.id).probes == [], "the second run needs no search"


def test_a_first_run_after_another_framework_probes_no_noise(open_directory: Path) -> None:
    model = {"key": "tests/digits-of-both", "dataset_size": 1437}
    # In a controller of its own: other jobs would let the search compare its times with theirs.
    with Controller(open_directory / "digits" / "home") as controller:
        before = controller.finished(controller.submit(digits("digits", model=model)))
        after = controller.finished(controller.submit(digits(model=model)))
        told = ["\n".join(e.message for e in controller.events(j.id)) for j in (before, after)]
    assert {before.phase, after.phase} == {JobPhase.SUCCEEDED}
    assert "the noise settles at" in told[0], told[0]
    assert "the noise settles at" not in told[1], told[1]
    assert "with pytorch" in told[1], told[1]
