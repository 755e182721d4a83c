"""Scripts in the form of TensorFlow's tutorials, as jobs: none of them knows the agent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from scavenger.schemas.jobs import JobPhase
from tests.acceptance.test_orders import ask, ended, is_on
from tests.controller import Controller
from tests.tensorflow.test_instrumentation import SCRIPTS
from tests.tensorflow.test_servers import HOSTS

pytestmark = pytest.mark.slow

SAMPLES = 1024  # of the scripts' data set


def tutorial(script: str, held: Path, *flags: str, **variables: str) -> dict[str, Any]:
    """Return the document of a job whose script trains slowly while the file exists."""
    command = [sys.executable, "-m", "worker_agent", "run", "--", sys.executable]
    held.touch()
    return {
        "model": {"key": f"tests/{script}", "dataset_size": SAMPLES},
        "target": {"epochs": 20, "at_batch": 16},
        "limits": {"workers": [1, 2], "batch": [16, 32], "max_time": "15m"},
        "framework": "tensorflow",
        "price": "0.13402 USD/h",
        "run": {
            "command": [*command, str(SCRIPTS / f"{script}.py"), *flags],
            "env": {"HELD": str(held), **variables},
        },
    }


def resize_once(controller: Controller, document: dict[str, Any], held: Path) -> None:
    """Train on one worker, move to two, and train there to the end."""
    job = controller.submit(document)
    controller.wait(lambda: controller.job(job).progress.iteration > 5)
    move = {"to": {"workers": 2, "global_batch": 32}}
    ended(controller, ask(controller, job, "resize", move))
    controller.wait(lambda: is_on(controller, job, 2, 32))
    noise = controller.wait(lambda: noise_of(controller, job))
    held.unlink()
    view = controller.finished(job)
    assert view.phase is JobPhase.SUCCEEDED, (view.reason, controller.log())
    assert 1 < noise < 2.5, "random labels are nearly all noise"
    resizes = [each for each in controller.curve(job).resizes if each.before is not None]
    assert [each.iterations_lost for each in resizes] == [0], resizes


def noise_of(controller: Controller, job: str) -> float | None:
    indicators = controller.job(job).indicators
    return None if indicators is None else indicators.noise


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
@pytest.mark.parametrize("script", ["tutorial_fit", "tutorial_loop"])
def test_a_script_of_keras_is_resized_and_comes_to_its_end(
    controller: Controller, tmp_path: Path, script: str, library: str
) -> None:
    held = tmp_path / "held"
    legacy = str(int(library == "tf_keras"))
    resize_once(controller, tutorial(script, held, TF_USE_LEGACY_KERAS=legacy), held)


@pytest.mark.parametrize("script", ["mnist_replica", "monitored"])
def test_a_script_with_parameter_servers_is_resized_and_comes_to_its_end(
    controller: Controller, tmp_path: Path, script: str
) -> None:
    held = tmp_path / "held"
    servers = {"parameter_server": {"servers": 2}}
    document = {**tutorial(script, held, *HOSTS), "strategy": servers}
    resize_once(controller, document, held)
