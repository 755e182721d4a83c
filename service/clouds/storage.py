"""Storage that outlives the machines of a job: its checkpoint directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from scavenger.job.run import CheckpointsSpec
from scavenger.job.spec import JobSpec


@dataclass(frozen=True, slots=True)
class CheckpointStorage:
    """Directories that all machines of a job reach.

    The controller never deletes checkpoints: users paid for them and decide when to.

    Attributes:
        root: Directory of those that no job puts elsewhere.
    """

    root: Path

    def checkpoints(self, job: str, spec: JobSpec) -> Path:
        named = checkpoint_settings(spec).directory
        return (self.root / "checkpoints" if named is None else Path(named)) / job


def checkpoint_settings(spec: JobSpec) -> CheckpointsSpec:
    """Return how often a job is saved, by default where its document does not say."""
    return spec.run.checkpoints or CheckpointsSpec()
