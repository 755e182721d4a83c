"""Turns a snapshot of the database into what the API shows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from decimal import Decimal
from functools import lru_cache

from scavenger.cluster import ClusterConfig
from scavenger.noise import estimate_noise
from scavenger.prior import StoredModel
from scavenger.profiling import measure_time
from scavenger.protocol import StepColumns
from scavenger.strategy import DownpourSpec
from scavenger.tradeoff import TradeoffPoint
from scavenger.view import (
    AdviceView,
    CostView,
    CurveView,
    IndicatorsView,
    JobView,
    Money,
    ProbeView,
    ProgressView,
    ResizeView,
    StoredModelView,
)
from service.curves import config_view, show_config, show_laws
from service.db.directives import Resize
from service.db.jobs import Job
from service.db.observations import Probe
from service.reconciler.divergence import divergence
from service.reconciler.level import Question, ask
from service.reconciler.snapshot import Snapshot
from service.storage import Storage

MILLIONTH = Decimal("0.000001")


def show_job(snapshot: Snapshot, recent: StepColumns, storage: Storage) -> JobView:
    """Show a job: where it stands, what it measures, what it costs."""
    job, directive = snapshot.job, snapshot.directive
    target = job.chosen or (directive.config if directive else None)
    applied = directive.config if directive is not None and snapshot.is_applied else None
    expected = snapshot.knowledge.expected_epochs()
    return JobView(
        id=job.id,
        name=job.name,
        model_key=job.spec.model.key,
        phase=job.phase,
        reason=job.waiting or job.reason,
        worker_exit_code=job.worker_exit_code,
        diverged=job.diverged,
        target=show_config(target),
        applied=show_config(applied),
        generation=0 if directive is None else directive.generation,
        workers_alive=len(snapshot.alive),
        servers_alive=len(snapshot.servers),
        search=job.search,
        advice=show_advice(job),
        checkpoints=str(storage.checkpoints(job.id, job.spec)),
        progress=show_progress(snapshot, expected),
        indicators=None if applied is None else show_indicators(recent, applied),
        cost=show_cost(snapshot, expected, target),
        elapsed=snapshot.elapsed,
        created_at=job.created_at,
        finished_at=job.finished_at,
        spec=job.spec.document(),
    )


def show_advice(job: Job) -> AdviceView | None:
    """Show what a job that is only advised would do better with."""
    if job.advice is None:
        return None
    return AdviceView(config=show_config(job.advised), why=job.advice)


def show_progress(snapshot: Snapshot, expected: float | None) -> ProgressView:
    """Show how far the most advanced worker is."""
    best = snapshot.foremost
    return ProgressView(
        iteration=0 if best is None else best.iteration,
        epochs=0.0 if best is None else best.epochs,
        expected_epochs=expected,
        max_epochs=snapshot.job.spec.stop_rule.max_progress,
        metrics={} if best is None else best.metrics,
        diverged=divergence(snapshot),
    )


def show_indicators(recent: StepColumns, config: ClusterConfig) -> IndicatorsView | None:
    """Show noise and timing of the running configuration."""
    timing = measure_time(recent)
    if timing.rows == 0:
        return None
    noise = estimate_noise(recent, config.global_batch)
    return IndicatorsView(
        noise=None if noise is None else noise.noise,
        noise_scale=None if noise is None else noise.noise_scale,
        compute_time=timing.compute_time,
        sync_time=timing.sync_time,
        step_time=timing.compute_time + timing.sync_time,
    )


def show_cost(snapshot: Snapshot, expected: float | None, target: ClusterConfig | None) -> CostView:
    """Show the four numbers of money, never mixed."""
    cap = snapshot.job.spec.limits.max_cost
    forecast = foresee(snapshot, expected, target)
    return CostView(
        accrued=money(snapshot.accrued),
        search=money(sum((probe.cost for probe in snapshot.probes), Decimal(0))),
        cap=None if cap is None else money(cap),
        forecast=None if forecast is None else money(forecast),
    )


def foresee(
    snapshot: Snapshot, expected: float | None, target: ClusterConfig | None
) -> Decimal | None:
    """Return what a job will have cost: spent, and for the epochs left on its configuration."""
    if expected is None or snapshot.job.phase.is_final:
        return None
    if isinstance(snapshot.job.spec.strategy, DownpourSpec):
        return carry_on(snapshot, expected)
    cost = None if target is None else cost_of_all(ask(snapshot.knowledge), target)
    left = max(1 - snapshot.epochs / expected, 0.0)
    return None if cost is None else snapshot.accrued + Decimal(cost * left)


def cost_of_all(question: Question, config: ClusterConfig) -> float | None:
    """Return what the whole job would cost on a configuration; None if nothing tells."""
    basis, point = point_of(question, config)
    return None if point is None or basis != "total" else point.cost


@lru_cache(maxsize=1024)  # every page of jobs asks, and drawing a curve takes a while
def point_of(question: Question, config: ClusterConfig) -> tuple[str, TradeoffPoint | None]:
    """Return the point of a configuration, None if there is none, and the basis of its curve."""
    sketch = question.knowledge.sketch()
    if sketch is None:
        return "", None
    points = sketch.curve.points
    return sketch.curve.basis, next((point for point in points if point.config == config), None)


def carry_on(snapshot: Snapshot, expected: float) -> Decimal | None:
    """Return what a job will have cost if it goes on as it did so far; None before it began."""
    done = snapshot.epochs
    return snapshot.accrued * Decimal(max(expected / done, 1.0)) if done > 0 else None


def show_curve(
    drawn: CurveView, job: Job, probes: Sequence[Probe], resizes: Sequence[Resize]
) -> CurveView:
    """Show a curve with where its job is, and how its points came to be."""
    told = None if job.phase.is_final or not resizes else resizes[-1].directive
    shown = {
        "current": None if told is None else config_view(told.config),
        "probes": [show_probe(probe) for probe in probes],
        "resizes": show_resizes(resizes),
    }
    return drawn.model_copy(update=shown)


def show_stored(model_key: str, stored: StoredModel, updated_at: datetime) -> StoredModelView:
    """Show what earlier jobs taught."""
    return StoredModelView(
        model_key=model_key,
        signature=stored.signature,
        laws=show_laws(stored.model, stored.observations),
        reference_batch=stored.model.reference_batch,
        epochs_to_target=dict(stored.epochs_by_target),
        jobs=stored.jobs,
        updated_at=updated_at,
    )


def show_probe(probe: Probe) -> ProbeView:
    """Show a settled probe and what it took."""
    config, indicators = probe.observation.config, probe.observation.indicators
    return ProbeView(
        workers=config.workers,
        global_batch=config.global_batch,
        noise=indicators.noise,
        noise_scale=indicators.noise_scale,
        compute_time=indicators.compute_time,
        sync_time=indicators.sync_time,
        iterations=probe.observation.iterations,
        seconds=probe.seconds,
        cost=float(probe.cost),
        settled_at=probe.settled_at,
    )


def show_resizes(resizes: Sequence[Resize]) -> list[ResizeView]:
    """Show every change of configuration with the one it came from.

    A generation that regroups the same configuration, as after the last probe, resizes nothing.
    """
    before = [None, *(config_view(resize.directive.config) for resize in resizes)]
    return [
        ResizeView(
            generation=resize.directive.generation,
            before=earlier,
            after=config_view(resize.directive.config),
            pause=resize.pause,
            iterations_lost=resize.iterations_lost,
            why=resize.directive.why,
            at=resize.published_at,
        )
        for earlier, resize in zip(before, resizes, strict=False)
        if earlier != config_view(resize.directive.config)
    ]


def money(amount: Decimal) -> Money:
    """Show dollars to a millionth: probes of small jobs cost less than a cent."""
    return Money(amount=amount.quantize(MILLIONTH))
