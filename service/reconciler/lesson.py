"""What a job teaches, for the next of its signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from scavenger.models.epochs import EpochsSeen, convert_run
from scavenger.prior import StoredModel
from scavenger.protocol import StopAtMetric
from service.db import directives, models, statistics
from service.db.directives import Resize
from service.knowledge import Sketch, signature_of
from service.reconciler.snapshot import Snapshot


def remember(
    connection: Connection, machine: str, snapshot: Snapshot, epochs: float | None = None
) -> None:
    """Store what a job taught; called when a search has ended and when a target is reached.

    A job counts once. What was not measured by this job or one before it is not stored; nor is a
    drift, since the next job begins where this one began, nor epochs that were not trained.

    Args:
        connection: Where to.
        machine: Kind of the machines it ran on.
        snapshot: The job.
        epochs: Reference epochs its target took, once it is reached.
    """
    spec = snapshot.job.spec
    sketch = replace(snapshot.knowledge, noise_scale=None, history=()).sketch()
    if sketch is None or not sketch.observations:
        return
    signature, target = signature_of(spec, machine), spec.target_in_words
    has_counted = snapshot.job.chosen is not None and bool(snapshot.probes)
    run = None if epochs is None else run_of(connection, snapshot, sketch)
    fresh = StoredModel(
        signature=signature,
        model=sketch.model,
        observations=sketch.observations,
        epochs_by_target={} if epochs is None else {target: epochs},
        jobs=0 if has_counted else 1,
        runs={} if run is None else {target: (run,)},
    )
    project = snapshot.job.project
    learned = models.learned(models.find(connection, project, signature), fresh)
    models.store(connection, project, spec.model.key, learned, snapshot.now)


def run_of(connection: Connection, snapshot: Snapshot, sketch: Sketch) -> EpochsSeen | None:
    """Return the epochs a run to a metric took at its batch; None where nothing tells.

    A target in epochs is what somebody asked for, so it teaches nothing.
    """
    job, leader, spec = snapshot.job.id, snapshot.leader, snapshot.job.spec
    if leader is None or not isinstance(spec.stop_rule, StopAtMetric):
        return None
    history = directives.history(connection, job)
    begun = statistics.first_iterations(connection, job)
    samples = samples_by_batch(history, begun, leader.iteration)
    if not samples:
        return None
    return convert_run(samples, spec.model.dataset_size, sketch.model.statistical)


def samples_by_batch(
    history: Sequence[Resize], begun: Mapping[int, int], iterations: int
) -> dict[int, float]:
    """Count the samples a job trained at each global batch.

    An iteration that was done twice counts where it was done last.

    Args:
        history: Every Directive, oldest first.
        begun: First iteration measured in each generation.
        iterations: Iterations applied in the end.
    """
    samples: dict[int, float] = {}
    end = iterations
    for resize in reversed(history):
        first = begun.get(resize.directive.generation)
        if first is None:
            continue
        batch = resize.directive.config.global_batch
        if end > first:
            samples[batch] = samples.get(batch, 0.0) + (end - first) * batch
        end = min(end, first)
    return samples
