"""The training script of `trainee`, with a compiler that takes no time."""

from __future__ import annotations

import os
import signal
from typing import Any

from torch._dynamo import lookup_backend

from tests.integration import trainee
from worker_agent.pytorch.stacks.compiled import Compiled


def compile_or_die(graph: Any, inputs: Any, **options: Any) -> Any:
    """Compile, in a process that is not to die of it."""
    if os.environ.get("DIES_IN_REHEARSAL") == os.environ["SCAVENGER_WORKER"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return lookup_backend("aot_eager")(graph, inputs)


def main() -> None:
    """Train until told to stop."""
    Compiled.backend = staticmethod(compile_or_die)
    trainee.main()


if __name__ == "__main__":
    main()
