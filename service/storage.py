"""Storage: where the machines of a job keep the checkpoints that have to outlive them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scavenger.job import JobSpec
from scavenger.run import CheckpointsSpec


@dataclass(frozen=True, slots=True)
class Storage:
    """Directories that all machines of a job reach.

    Nothing in them is ever deleted here: training that somebody paid for is theirs to throw away.

    Attributes:
        root: Directory of those that no job puts elsewhere.
    """

    root: Path

    def checkpoints(self, job: str, spec: JobSpec) -> Path:
        """Return the directory of a job's checkpoints."""
        named = checkpoints_of(spec).directory
        return (self.root / "checkpoints" if named is None else Path(named)) / job

    def environment(self, job: str, spec: JobSpec) -> Mapping[str, str]:
        """Return what tells a machine of a job where they are."""
        checkpoints = checkpoints_of(spec)
        return {
            "SCAVENGER_CHECKPOINTS": str(self.checkpoints(job, spec)),
            "SCAVENGER_CHECKPOINT_EVERY": repr(checkpoints.every),
            "SCAVENGER_CHECKPOINT_KEEP": str(checkpoints.keep),
        }


def checkpoints_of(spec: JobSpec) -> CheckpointsSpec:
    """Return how often a job is written down, by default where it does not say."""
    return spec.run.checkpoints or CheckpointsSpec()
