"""What the processes of a script are told through their environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import worker_agent
from scavenger.protocol import Directive

BOOT = Path(worker_agent.__file__).parent / "boot"
# The script's processes must not speak for the machine, nor take part in the job on their own.
WITHHELD = ("SCAVENGER_JOB", "SCAVENGER_TOKEN", "SCAVENGER_CONTROLLER", "SCAVENGER_JOB_SECRET")


@dataclass(frozen=True, slots=True)
class Files:
    """Through which the launcher and the script's processes talk.

    Attributes:
        rows: What was measured, a line per iteration.
        wish: Asks for a stop once it exists.
        ended: Says how training ended, where an exit code does not.
        checkpoints: Directory of the checkpoints.
    """

    rows: Path
    wish: Path
    ended: Path
    checkpoints: Path

    def to_environment(self) -> dict[str, str]:
        """Return them by the names the hooks look for."""
        return {
            "SCAVENGER_ROWS": str(self.rows),
            "SCAVENGER_WISH": str(self.wish),
            "SCAVENGER_ENDED": str(self.ended),
            "SCAVENGER_CHECKPOINTS": str(self.checkpoints),
        }


def hooked(environment: Mapping[str, str], ours: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose Python processes are measured."""
    path = environment.get("PYTHONPATH")
    return {
        **environment,
        **ours,
        "PYTHONPATH": str(BOOT) if not path else f"{BOOT}{os.pathsep}{path}",
        "SCAVENGER_ENABLE": "1",
    }


def in_a_generation(
    environment: Mapping[str, str], directive: Directive, rank: int, port: int, job: str
) -> dict[str, str]:
    """Return what torchrun would tell this machine's process, what torchrun itself reads, and more.

    A script finds its place in ``RANK`` and its like; ``torchrun`` on every machine finds the same
    in the ``PET_`` variables. At ``port`` of the first machine the first rank listens.
    """
    # The same on a machine that is new: all take a checkpoint over together, or none does.
    restarts = str(directive.generation - 1)
    host = directive.members[0].address.rpartition(":")[0]
    workers, batch = directive.config.workers, directive.config.global_batch
    kept = {name: value for name, value in environment.items() if name not in WITHHELD}
    return {
        **kept,
        **dict.fromkeys(("RANK", "GROUP_RANK", "ROLE_RANK", "PET_NODE_RANK"), str(rank)),
        **dict.fromkeys(
            ("WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "PET_NNODES"), str(workers)
        ),
        **dict.fromkeys(("MASTER_ADDR", "PET_MASTER_ADDR"), host),
        **dict.fromkeys(("MASTER_PORT", "PET_MASTER_PORT"), str(port)),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "TORCHELASTIC_RUN_ID": job,
        "TORCHELASTIC_RESTART_COUNT": restarts,
        "SCAVENGER_RESTARTS": restarts,
        "SCAVENGER_GENERATION": str(directive.generation),
        "SCAVENGER_GLOBAL_BATCH": str(batch),
        "SCAVENGER_LOCAL_BATCH": str(batch // workers),
        "SCAVENGER_LEARNING_RATE_FACTOR": repr(directive.learning_rate.factor(batch)),
    }
