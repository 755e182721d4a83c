"""A job with TensorFlow's parameter servers, under a controller: searched, resized, finished."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from scavenger.schemas.jobs import JobPhase
from tests.controller import Controller
from tests.tensorflow.test_instrumentation import SCRIPTS
from tests.tensorflow.test_servers import HOSTS

pytestmark = pytest.mark.slow


def with_servers(**changes: Any) -> dict[str, Any]:
    command = [sys.executable, "-m", "worker_agent", "run", "--", sys.executable]
    # It learns so slowly that its noise stays the same: a choice waits until that has settled.
    flags = [*HOSTS, "--rate=1e-9"]
    return {
        "model": {"key": "tests/servers", "dataset_size": 4096},
        "target": {"epochs": 30, "at_batch": 16},
        "strategy": {"parameter_server": {"servers": 2}},
        "limits": {"workers": [1, 2], "batch": [16, 32], "max_time": "15m"},
        "search": "auto",
        "framework": "tensorflow",
        "price": "0.13402 USD/h",
        "run": {"command": [*command, str(SCRIPTS / "servers.py"), *flags]},
        **changes,
    }


def test_it_is_searched_resized_and_comes_to_its_end(controller: Controller) -> None:
    view = controller.finished(controller.submit(with_servers()))
    told = [(event.kind, event.message) for event in controller.events(view.id)]
    print("\n".join(map(str, told)))
    assert view.phase is JobPhase.SUCCEEDED, (view.reason, controller.log())
    curve = controller.curve(view.id)
    assert curve.chosen is not None
    assert any(probe.noise for probe in curve.probes if probe.workers == 2)
