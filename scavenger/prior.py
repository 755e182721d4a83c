"""StoredModel: what earlier jobs of the same kind taught, so that later ones need no search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.indicators import Observation
from scavenger.models.performance import PerformanceModel


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The model of finished jobs with one signature.

    Attributes:
        signature: Whom it fits, from ``signature``.
        model: The fitted laws.
        observations: The probes they were fitted to.
        epochs_by_target: Reference epochs each target took, at ``model.reference_batch``, by
            target in words.
        jobs: Jobs it was learned from.
    """

    signature: str
    model: PerformanceModel
    observations: tuple[Observation, ...]
    epochs_by_target: Mapping[str, float]
    jobs: int

    def covers(self, space: ConfigSpace) -> bool:
        """Tell whether the laws interpolate over a space: K and b of its corners were spanned."""
        seen = [observation.config for observation in self.observations]
        return bool(seen) and all(is_between(corner, seen) for corner in space.corners())

    def epochs_to(self, target: str | None, reference_batch: int) -> float | None:
        """Epochs a target took, at another job's reference batch; None if none reached it."""
        epochs = None if target is None else self.epochs_by_target.get(target)
        if epochs is None:
            return None
        at_stored = replace(self.model, epochs_at_reference=epochs)
        return at_stored.epochs_needed(reference_batch)


def is_between(config: ClusterConfig, seen: list[ClusterConfig]) -> bool:
    """Tell whether workers and local batch lie within the range of those seen."""
    workers = [other.workers for other in seen]
    batches = [other.local_batch for other in seen]
    return min(workers) <= config.workers <= max(workers) and min(
        batches
    ) <= config.local_batch <= max(batches)


def signature(model_key: str, dataset_size: int, lr_scaling: str, machine: str) -> str:
    """Name what must be equal for one job's model to fit another; no two combinations share it.

    >>> signature("resnet18/cifar10", 50000, "linear", "e2-standard-4")
    'resnet18/cifar10|50000|linear|e2-standard-4'
    """
    parts = (model_key, str(dataset_size), lr_scaling, machine)
    return "|".join(quote(part, safe="/:+ ") for part in parts)
