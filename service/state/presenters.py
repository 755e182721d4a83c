"""Presenters: turn the state of a job into the views that the API returns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from statistics import median

from sqlalchemy import Connection

from scavenger.cluster import ClusterConfig, config_columns
from scavenger.measurement.noise import estimate_noise
from scavenger.measurement.profiling import measure_time
from scavenger.measurement.steps import StepColumns
from scavenger.money import forecast_dollars
from scavenger.planning.layout_search import FoundLayouts
from scavenger.planning.transfer import StoredModel
from scavenger.schemas.base import MoneyView
from scavenger.schemas.curves import (
    CalibrationView,
    CurveView,
    ProbeView,
    ResizeView,
    StackView,
    SwitchView,
)
from scavenger.schemas.jobs import (
    AdviceView,
    ConfigView,
    CostView,
    IndicatorsView,
    JobPhase,
    JobView,
    ProgressView,
)
from scavenger.schemas.models import StoredModelView
from scavenger.schemas.orders import OrderView
from scavenger.stack import StackCheck
from service import ledger
from service.clouds.storage import CheckpointStorage
from service.db import telemetry
from service.db.directives import PublishedDirective
from service.db.jobs import StoredJob
from service.db.measurements import SettledProbe
from service.db.orders import StoredOrder
from service.state.capacity import lacks_capacity
from service.state.curves import config_view, laws_view, optional_config_view
from service.state.forecasts import forecast_job
from service.state.job_state import JobState, current_divergence
from service.state.loader import load_job_states


@dataclass(frozen=True, slots=True)
class JobParts:
    """The parts of a job that take long to read: which of them a page shows.

    Attributes:
        indicators: Noise and timing of the newest iterations.
        outlook: What follows from probes and earlier jobs: progress, cost and end.
    """

    indicators: bool = True
    outlook: bool = True

    @classmethod
    def in_fields(cls, names: Collection[str]) -> JobParts:
        """Return the parts that some fields of a job need."""
        return cls("indicators" in names, not OUTLOOK_FIELDS.isdisjoint(names))


OUTLOOK_FIELDS = frozenset({"progress", "cost", "eta"})
ALL_PARTS = JobParts()


def job_view(
    state: JobState,
    recent: StepColumns,
    storage: CheckpointStorage,
    parts: JobParts = ALL_PARTS,
    knee: ConfigView | None = None,
) -> JobView:
    """Show a job: where it stands, what it measures, what it costs.

    Args:
        state: The job.
        recent: Its newest iterations.
        storage: Where its checkpoints are.
        parts: What is shown of it.
        knee: Where its newest curve bends; None where it does not, or is not asked for.
    """
    job, directive = state.job, state.directive
    standing = state.standing
    target = job.chosen or (directive.config if directive else None)
    applied = directive.config if directive is not None and state.is_applied else None
    expected = state.knowledge.expected_epochs if parts.outlook else None
    forecast = forecast_job(state, expected, target)
    return JobView(
        id=job.id,
        project=job.project,
        name=job.name,
        model_key=job.spec.model.key,
        phase=job.phase,
        reason=job.waiting or job.reason,
        worker_exit_code=job.worker_exit_code,
        diverged=job.diverged,
        lacks_capacity=lacks_capacity(state),
        target=optional_config_view(target),
        applied=optional_config_view(applied),
        generation=0 if directive is None else directive.generation,
        workers_alive=len(state.live_worker_vms),
        servers_alive=len(state.servers),
        search=job.search,
        advice=(
            None
            if job.advice is None
            else AdviceView(config=optional_config_view(job.advised), why=job.advice)
        ),
        checkpoints=storage.location(job.id, job.spec),
        progress=progress_view(state, expected),
        indicators=None if applied is None else indicators_view(recent, applied),
        cost=cost_view(state, forecast.cost),
        eta=forecast.eta,
        elapsed=state.elapsed,
        created_at=job.created_at,
        finished_at=job.finished_at,
        preference=standing.preference if standing.pinned is None else "pinned",
        pinned=optional_config_view(standing.pinned),
        moved_knee=moved_knee(state, applied, knee),
        is_paused=standing.is_paused and not job.phase.is_final,
        open_orders=len(standing.open),
        framework=job.framework or job.spec.framework,
        spec=job.spec.document(),
    )


def moved_knee(
    state: JobState, applied: ClusterConfig | None, knee: ConfigView | None
) -> ConfigView | None:
    """Return the knee of a job that trains elsewhere, though its objective is the knee."""
    is_wanted = state.planned_spec.objective == "knee" and state.job.phase is JobPhase.TRAINING
    is_elsewhere = applied is not None and knee != config_view(applied)
    return knee if is_wanted and is_elsewhere else None


def progress_view(state: JobState, expected: float | None) -> ProgressView:
    """Show how far the most advanced worker is."""
    best = state.most_advanced
    return ProgressView(
        iteration=0 if best is None else best.iteration,
        epochs=0.0 if best is None else best.epochs,
        expected_epochs=expected,
        max_epochs=state.job.spec.stop_rule.max_progress,
        metrics={} if best is None else best.metrics,
        diverged=current_divergence(state),
    )


def indicators_view(recent: StepColumns, config: ClusterConfig) -> IndicatorsView | None:
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


def cost_view(state: JobState, forecast: Decimal | None) -> CostView:
    """Show the numbers of money, never mixed."""
    cap = state.job.spec.limits.max_cost
    return CostView(
        accrued=money_view(ledger.booked(state.vms, state.now)),
        reserved=money_view(ledger.reserved(state.vms, state.now)),
        search=money_view(sum((probe.cost for probe in state.probes), Decimal(0))),
        cap=None if cap is None else money_view(cap),
        forecast=None if forecast is None else money_view(forecast),
    )


def curve_view_of_job(
    drawn: CurveView,
    job: StoredJob,
    probes: Sequence[SettledProbe],
    resizes: Sequence[PublishedDirective],
    usual_pause: float = 0.0,
    calibration: CalibrationView | None = None,
    stack_checks: Sequence[StackCheck] = (),
    layouts: FoundLayouts | None = None,
) -> CurveView:
    """Show a curve with where its job is, and how its points came to be.

    Args:
        drawn: The curve.
        job: Its job.
        probes: What was measured for it.
        resizes: Every Directive of the job.
        usual_pause: Seconds a resize takes with the job's cloud, before this job had one.
        calibration: How good earlier forecasts of its model were.
        stack_checks: What its workers found out about stacks.
        layouts: The layouts that it searches; None where it searches none, or knows none yet.
    """
    names = job.spec.stack_names
    if layouts is not None and layouts.options:
        names = tuple(option.name for option in layouts.options)
    directive = None if job.phase.is_final or not resizes else resizes[-1].directive
    shown = {
        "current": None if directive is None else config_view(directive.config),
        "probes": [probe_view(probe) for probe in probes],
        "resizes": resize_views(resizes),
        "switch": None if directive is None else switch_view(job, resizes, usual_pause),
        "calibration": calibration,
        "is_finished": job.phase.is_final,
        "stacks": [stack_view(name, stack_checks) for name in names],
        "start": drawn.start.model_copy(update={"stack": names[0]}),
    }
    return drawn.model_copy(update=shown)


def stack_view(name: str, checks: Sequence[StackCheck]) -> StackView:
    """Show a stack with what was found out about it."""
    own = [check for check in checks if check.stack == name]
    return StackView(
        name=name,
        seconds=max((check.seconds for check in own), default=None),
        gradient_error=max((check.gradient_error for check in own), default=None),
        memory_share=max((check.memory_share for check in own), default=None),
        refusal=next((check.refusal for check in own if check.refusal), ""),
    )


def order_view(order: StoredOrder) -> OrderView:
    """Show an order."""
    return OrderView(
        number=order.number,
        job=order.job,
        kind=order.kind,
        wish=order.document,
        reason=order.reason,
        by=order.by,
        at=order.at,
        state=order.state,
        told=order.told or "",
        ended_at=order.ended_at,
    )


def switch_view(
    job: StoredJob, resizes: Sequence[PublishedDirective], usual_pause: float
) -> SwitchView:
    """Show what a change of configuration takes: as usual in this job, or else in its cloud."""
    # The first generation starts the job, and changes nothing.
    pauses = [each.pause for each in resizes if each.directive.generation > 1]
    known = [pause for pause in pauses if pause is not None]
    seconds = median(known) if known else usual_pause
    grid = config_columns((resizes[-1].directive.config,))
    per_hour = float(job.spec.price_model.per_hour(grid)[0])
    return SwitchView(seconds=seconds, cost=forecast_dollars(per_hour * seconds / 3600))


def stored_model_view(model_key: str, stored: StoredModel, updated_at: datetime) -> StoredModelView:
    """Show what earlier jobs taught."""
    return StoredModelView(
        model_key=model_key,
        signature=stored.signature,
        laws=laws_view(stored.model, stored.observations),
        reference_batch=stored.model.reference_batch,
        epochs_to_target=dict(stored.epochs_by_target),
        jobs=stored.jobs,
        updated_at=updated_at,
    )


def probe_view(probe: SettledProbe) -> ProbeView:
    """Show a settled probe and what it took."""
    config, indicators = probe.observation.config, probe.observation.indicators
    return ProbeView(
        workers=config.workers,
        global_batch=config.global_batch,
        stack=config.stack,
        noise=indicators.noise,
        noise_scale=indicators.noise_scale,
        compute_time=indicators.compute_time,
        sync_time=indicators.sync_time,
        iterations=probe.observation.iterations,
        seconds=probe.seconds,
        cost=probe.cost,
        settled_at=probe.settled_at,
    )


def resize_views(resizes: Sequence[PublishedDirective]) -> list[ResizeView]:
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


def money_view(amount: Decimal) -> MoneyView:
    """Show dollars."""
    return MoneyView(amount=ledger.round_money(amount))


MAX_RECENT_REPORTS, MAX_RECENT_ROWS = 10, 100


def load_with_recent_steps(
    connection: Connection,
    machine_type: str,
    wanted: Sequence[StoredJob],
    now: datetime,
    parts: JobParts = ALL_PARTS,
) -> list[tuple[JobState, StepColumns]]:
    """Return how jobs stand, and their newest iterations, with as many queries as for one."""
    states = load_job_states(connection, machine_type, wanted, now, has_outlook=parts.outlook)
    if not parts.indicators:
        return [(state, StepColumns()) for state in states]
    generations = {s.job.id: s.directive.generation for s in states if s.directive is not None}
    recent = telemetry.newest_steps_of(connection, generations, MAX_RECENT_REPORTS, MAX_RECENT_ROWS)
    return [(state, recent.get(state.job.id, StepColumns())) for state in states]
