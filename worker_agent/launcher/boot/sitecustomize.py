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
SHARDING = "torch.distributed.fsdp._fully_shard._fsdp_state"
HOOKS = {"torch": "install", SHARDING: "install_sharded"}


class Finder:
    """Finds what the others find, and calls ours once the module is there."""

    @classmethod
    def find_spec(cls, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the module's own spec, its loader told to call ours afterwards."""
        if name not in HOOKS:
            return None
        others = [finder for finder in sys.meta_path if finder is not cls]
        specs = (finder.find_spec(name, path, target) for finder in others)
        spec: Any = next((spec for spec in specs if spec is not None), None)
        execute = getattr(getattr(spec, "loader", None), "exec_module", None)
        if execute is not None:

            def execute_and_hook(module: Any) -> None:
                execute(module)
                hook(name)

            spec.loader.exec_module = execute_and_hook
        return spec


def hook(name: str) -> None:
    """Let the agent patch a module that was just imported; unmeasured is better than broken."""
    try:
        from worker_agent.pytorch import instrumentation

        getattr(instrumentation, HOOKS[name])()
    except Exception as error:  # noqa: BLE001 the script knows nothing of us and must go on
        print(f"scavenger: {name} goes unmeasured: {error!r}", file=sys.stderr)


def run_the_shadowed() -> None:
    """Run the ``sitecustomize`` that Python would have found had ours not come first."""
    others = [place for place in sys.path if os.path.abspath(place or ".") != HERE]
    spec = _frozen_importlib_external.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        sys.modules["sitecustomize"] = module = _frozen_importlib.module_from_spec(spec)
        spec.loader.exec_module(module)


if os.environ.get("SCAVENGER_ENABLE") == "1":
    sys.meta_path.insert(0, Finder)
run_the_shadowed()
