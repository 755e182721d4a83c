"""Loaded first in each Python process of ``agent run``: instruments a framework on its import.

Python imports a module of this name at its start from the first directory of ``PYTHONPATH``. It
runs in every process that the command starts, so it must cost no time (``importlib.util`` alone
would take 5 ms) and must never fail: after any error, the script runs as if this file were
absent.
"""

from __future__ import annotations

import _frozen_importlib
import _frozen_importlib_external
import os
import sys

TYPE_CHECKING = False  # importing typing would take longer than all the rest
if TYPE_CHECKING:
    from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
# Module that a script may import, and the function that instruments it: one line each.
INSTRUMENTATIONS = {
    "torch": "worker_agent.pytorch.instrumentation:install",
    "torch.distributed.fsdp._fully_shard._fsdp_state": (
        "worker_agent.pytorch.instrumentation:install_fsdp"
    ),
    "keras.src.backend.torch.trainer": "worker_agent.pytorch.instrumentation:install_keras",
    "tensorflow": "worker_agent.tensorflow.instrumentation:install_steps",
    "keras.src.backend.tensorflow.optimizer": (
        "worker_agent.tensorflow.instrumentation:install_keras"
    ),
    "keras.src.backend.tensorflow.trainer": (
        "worker_agent.tensorflow.instrumentation:install_keras_fit"
    ),
    "tf_keras.src.callbacks": "worker_agent.tensorflow.instrumentation:install_tf_keras_fit",
    "tf_keras.src.optimizers.utils": "worker_agent.tensorflow.instrumentation:install_tf_keras",
    "tf_keras.src.saving.saving_api": (
        "worker_agent.tensorflow.instrumentation:install_tf_keras_saving"
    ),
}


class Finder:
    """Finds modules as the other finders do, and instruments those in INSTRUMENTATIONS."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's own spec, with a loader that calls `instrument` afterwards."""
        if name not in INSTRUMENTATIONS:
            return None
        others = [finder for finder in sys.meta_path if finder is not cls]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec: Any = next((spec for spec in specs if spec is not None), None)
        execute = getattr(getattr(spec, "loader", None), "exec_module", None)
        if execute is not None:

            def execute_and_instrument(module: Any) -> None:
                execute(module)
                instrument(name)

            spec.loader.exec_module = execute_and_instrument
        return spec


def instrument(name: str) -> None:
    """Instrument a module that was just imported; an error leaves the script unmeasured."""
    try:
        module, _, function = INSTRUMENTATIONS[name].partition(":")
        __import__(module)
        getattr(sys.modules[module], function)()
    except Exception as error:  # noqa: BLE001 the script must not fail because of the agent
        print(f"scavenger: {name} goes unmeasured: {error!r}", file=sys.stderr)


def run_shadowed() -> None:
    """Run the ``sitecustomize`` that Python would have found without this one."""
    others = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = _frozen_importlib.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("SCAVENGER_ENABLE") == "1":
    sys.meta_path.insert(0, Finder)
run_shadowed()
