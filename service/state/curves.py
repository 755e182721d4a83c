"""Tradeoff curves as pages show them.

The reconciler stores the curve that a choice was made from, and pages show it for ever. For a job
that has not chosen yet, the API draws a curve from what is known so far.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from scavenger.cluster import ClusterConfig
from scavenger.curve_basis import JobPosition, limits_left
from scavenger.job.spec import JobSpec
from scavenger.measurement.profiling import Observation
from scavenger.models.performance import PerformanceModel, mean_relative_error
from scavenger.money import forecast_dollars, optional_dollars
from scavenger.planning.state import PlanningState
from scavenger.report import CurveReport, ReportedPoint
from scavenger.schemas.curves import (
    CurveView,
    LawShareView,
    LawsView,
    LawView,
    LimitChancesView,
    LimitsView,
    PointView,
    SpentView,
    point_id,
)
from scavenger.schemas.jobs import ConfigView
from service import ledger
from service.state.job_state import JobState


@dataclass(frozen=True, slots=True)
class CurveKey:
    """All that the curve of a job depends on, as a key of caches.

    Attributes:
        document: The job, as JSON.
        jobs: How many earlier jobs are known.
    """

    document: str
    observations: tuple[Observation, ...]
    noise_scale: float | None
    history: tuple[tuple[float, float], ...]
    jobs: int
    knowledge: PlanningState = field(compare=False, repr=False)


def curve_key(spec: JobSpec, knowledge: PlanningState) -> CurveKey:
    """Return the key of the curve that is drawn from what is known of a job now."""
    stored = knowledge.stored
    earlier = (*knowledge.other_models, *(() if stored is None else (stored,)))
    return CurveKey(
        spec.model_dump_json(),
        knowledge.observations,
        knowledge.drifted_noise_scale,
        knowledge.metric_history,
        sum(model.jobs for model in earlier),
        knowledge,
    )


def curve_view(
    report: CurveReport,
    spec: JobSpec,
    chosen: ClusterConfig | None,
    why: str,
    as_of: datetime,
    spent: SpentView | None = None,
) -> CurveView:
    """Show a curve, without what only the job itself tells: where it is, its probes and resizes.

    Args:
        report: The curve.
        spec: The job, with its limits.
        chosen: What was chosen.
        why: Why.
        as_of: When it was drawn.
        spent: What the job had taken then, where the curve is of what is left.
    """
    fitted = None if report.preview is None else report.preview.fitted
    limits, own = report.objective, report.choice
    marks = report.marks(limits)
    special = {name: config_view(choice.point.config) for name, choice in marks.items()}
    # What supports another point than the chosen one says nothing about that.
    is_chosen = own is not None and chosen in (None, own.point.config)
    runner_up = own.runner_up if own is not None and is_chosen else None
    other_knees = marks["knee"].other_knees if "knee" in marks else ()
    return CurveView(
        basis=report.basis,
        as_of=as_of,
        objective=spec.objective_text,
        limits=limits_view(spec) if spent is None else limits_left(limits_view(spec), spent),
        spent=spent,
        epochs=None if fitted is None else fitted.model.epochs_at_reference,
        why=why,
        source="nothing is measured yet" if fitted is None else fitted.source,
        laws=None if fitted is None else laws_view(fitted.model, fitted.observations),
        points=[point_view(each) for each in report.points],
        front=[config_view(point.config) for point in report.front],
        knee=special.get("knee"),
        fastest=special.get("fastest"),
        cheapest=special.get("cheapest"),
        start=config_view(spec.space.start),
        current=None,
        chosen=optional_config_view(chosen),
        support=own.support if own is not None and is_chosen else None,
        runner_up=None if runner_up is None else config_view(runner_up.config),
        probes=[],
        resizes=[],
        knee_bends="knee" in marks and marks["knee"].bends,
        other_knees=[config_view(point.config) for point in other_knees],
    )


def job_position(state: JobState) -> JobPosition | None:
    """Return where a job is on the way to its target; None before its start and after its end."""
    if state.job.phase.is_final or state.began_at is None:
        return None
    return JobPosition(
        spent_view(state),
        state.what_is_left.epochs,
        limits_view(state.job.spec),
    )


def limits_view(spec: JobSpec) -> LimitsView:
    """Show the limits of a whole job."""
    return LimitsView(max_cost=spec.limits.max_cost, max_time=spec.limits.max_time)


def spent_view(state: JobState) -> SpentView:
    """Show what a job has taken."""
    return SpentView(time=state.elapsed, cost=ledger.booked(state.vms, state.now))


def point_view(reported: ReportedPoint) -> PointView:
    """Show one configuration of a curve."""
    point, rival = reported.point, reported.dominated_by
    return PointView(
        id=id_of_config(point.config),
        workers=point.config.workers,
        global_batch=point.config.global_batch,
        stack=point.config.stack,
        noise=point.noise,
        epochs=point.epochs,
        compute_time=point.compute_time,
        sync_time=point.sync_time,
        step_time=point.step_time,
        measured_step_time=point.measured_step_time,
        time=point.time,
        time_low=point.time_range[0],
        time_high=point.time_range[1],
        cost=forecast_dollars(point.cost),
        cost_low=forecast_dollars(point.cost_range[0]),
        cost_high=forecast_dollars(point.cost_range[1]),
        source=reported.source,
        on_front=reported.is_on_front,
        violations=list(reported.violations),
        meets=LimitChancesView.model_validate(reported.chances),
        parallel_efficiency=reported.parallel_efficiency,
        statistical_efficiency=reported.statistical_efficiency,
        marginal_price=optional_dollars(reported.marginal_price),
        dominated_by=None if rival is None else id_of_config(rival),
    )


def id_of_config(config: ClusterConfig) -> str:
    """Return the name of a configuration among the points of a curve."""
    return point_id(config.workers, config.global_batch, config.stack)


def laws_view(model: PerformanceModel, observations: tuple[Observation, ...]) -> LawsView:
    """Show the coefficients of the fitted laws and how well they meet what was measured."""
    parallel, statistical = model.parallel, model.statistical
    heaviest, root = parallel.laws[0], statistical.root_noise
    return LawsView(
        **LawView.model_validate(heaviest).model_dump(),
        spread=parallel.spread,
        noise_scale=statistical.noise_scale,
        critical_batch=statistical.critical_batch,
        noisy_samples=statistical.noisy_samples,
        noise_floor=None if root is None else root.floor,
        noise_per_root=None if root is None else root.per_root,
        law=statistical.formula,
        mean_relative_error=mean_relative_error(parallel, [o.measurement for o in observations]),
        averaged=[
            LawShareView(weight=weight, **LawView.model_validate(law).model_dump())
            for weight, law in zip(parallel.weights, parallel.laws, strict=True)
        ],
    )


def config_view(config: ClusterConfig) -> ConfigView:
    """Show a configuration."""
    return ConfigView.model_validate(config)


def optional_config_view(config: ClusterConfig | None) -> ConfigView | None:
    """Show a configuration, if there is one."""
    return None if config is None else config_view(config)
