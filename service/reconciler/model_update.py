"""What a job teaches: update the stored model of its signature."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlalchemy import Connection

from scavenger.job.planning import signature_of
from scavenger.models.epochs import FinishedRun, convert_to_one_batch
from scavenger.planning.decision import CurvePreview, preview_curve
from scavenger.planning.transfer import StoredModel
from scavenger.protocol import StopAtMetric
from service.db import directives, stored_models, telemetry
from service.db.directives import PublishedDirective
from service.state.job_state import JobState


def update_stored_model(
    connection: Connection, machine_type: str, state: JobState, epochs: float | None = None
) -> None:
    """Store what a job taught; called when a search has ended and when a target is reached.

    A job counts once. What was not measured by this job or one before it is not stored; nor is a
    drift, since the next job begins where this one began, nor epochs that were not trained.

    Args:
        connection: Where to.
        machine_type: Kind of the machines it ran on.
        state: The job.
        epochs: Reference epochs its target took, once it is reached.
    """
    spec = state.job.spec
    preview = preview_curve(replace(state.knowledge, drifted_noise_scale=None, metric_history=()))
    if preview is None or not preview.fitted.observations:
        return
    signature = signature_of(spec, machine_type, state.job.framework)
    target = spec.target_text
    has_counted = state.job.chosen is not None and bool(state.probes)
    run = None if epochs is None else epochs_of_run(connection, state, preview)
    fresh = StoredModel(
        signature=signature,
        model=preview.fitted.model,
        observations=preview.fitted.observations,
        epochs_by_target={} if epochs is None else {target: epochs},
        jobs=0 if has_counted else 1,
        runs={} if run is None else {target: (run,)},
    )
    project = state.job.project
    learned = stored_models.merge_job(stored_models.find(connection, project, signature), fresh)
    stored_models.store(connection, project, spec.model.key, learned, state.now)


def epochs_of_run(
    connection: Connection, state: JobState, preview: CurvePreview
) -> FinishedRun | None:
    """Return the epochs a run to a metric took at its batch; None where nothing tells.

    A target in epochs is what the user asked for, so it teaches nothing.
    """
    job, leader, spec = state.job.id, state.leader, state.job.spec
    if leader is None or not isinstance(spec.stop_rule, StopAtMetric):
        return None
    history = directives.history(connection, job)
    begun = telemetry.first_iterations(connection, job)
    samples = samples_by_batch(history, begun, leader.iteration)
    if not samples:
        return None
    return convert_to_one_batch(samples, spec.model.dataset_size, preview.fitted.model.statistical)


def samples_by_batch(
    history: Sequence[PublishedDirective], begun: Mapping[int, int], iterations: int
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
