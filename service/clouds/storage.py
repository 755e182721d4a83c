"""Storage that outlives the machines of a job: its checkpoint directory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scavenger.job.run import CheckpointsSpec
from scavenger.job.spec import JobSpec


@dataclass(frozen=True, slots=True)
class CheckpointStorage:
    """Directories that all machines of a job reach.

    Nothing in them is ever deleted here: training that somebody paid for is theirs to throw away.

    Attributes:
        root: Directory of those that no job puts elsewhere.
    """

    root: Path

    def checkpoints(self, job: str, spec: JobSpec) -> Path:
        """Return the directory of a job's checkpoints."""
        named = checkpoint_settings(spec).directory
        return (self.root / "checkpoints" if named is None else Path(named)) / job

    def environment(self, job: str, spec: JobSpec) -> Mapping[str, str]:
        """Return what tells a machine of a job where they are."""
        checkpoints = checkpoint_settings(spec)
        return {
            "SCAVENGER_CHECKPOINTS": str(self.checkpoints(job, spec)),
            "SCAVENGER_CHECKPOINT_EVERY": repr(checkpoints.every),
            "SCAVENGER_CHECKPOINT_KEEP": str(checkpoints.keep),
        }


def checkpoint_settings(spec: JobSpec) -> CheckpointsSpec:
    """Return how often a job is written down, by default where it does not say."""
    return spec.run.checkpoints or CheckpointsSpec()
