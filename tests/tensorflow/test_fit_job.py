"""The example with `fit`, as its users see it: a job whose script knows nothing of the agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scavenger.schemas.jobs import JobPhase
from tests.controller import Controller

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "digits-fit"


def digits(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((EXAMPLE / "job.yaml").read_text())
    command = [sys.executable, "-m", "worker_agent", "run", "--", sys.executable, "train.py"]
    document["run"] = {"command": command, "directory": str(EXAMPLE)}
    return {**document, **changes}


def test_fit_is_searched_resized_and_reaches_its_metric(controller: Controller) -> None:
    view = controller.finished(controller.submit(digits()))
    assert view.phase is JobPhase.SUCCEEDED, (view.reason, controller.log())
    assert view.progress.metrics["val_accuracy"] >= 0.97
    curve = controller.curve(view.id)
    told = [(event.kind, event.message) for event in controller.events(view.id)]
    assert curve.chosen is not None, "\n".join(map(str, told))
    assert any(probe.noise for probe in curve.probes if probe.workers == 2)
    resized = [each for each in curve.resizes if each.before is not None and each.pause is not None]
    assert resized
    assert all(each.iterations_lost in (0, None) for each in resized)
