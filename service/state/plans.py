"""What would become of a job document: the same decision that the reconciler would make of it.

Nothing is measured for a plan. It rests on the models of earlier jobs, as the first tick of the job
would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal

from sqlalchemy import Connection

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.job.planning import objective_within_limits, planning_state, signature_of
from scavenger.job.spec import JobSpec
from scavenger.money import format_rate
from scavenger.planning.decision import CurvePreview, decide, preview_curve
from scavenger.planning.search.strategy import Probe, TrainOn
from scavenger.planning.search_forecast import SearchForecast, forecast_search
from scavenger.planning.state import PlanningState, ProbeOverhead
from scavenger.planning.transfer import find_lender
from scavenger.report import CurveReport
from scavenger.schemas.curves import CurveView
from scavenger.schemas.plans import PlannedSearchView
from service.db import layout_profiles, stored_models
from service.state.loader import MAX_MODELS
from service.state.presenters import money_view


@dataclass(frozen=True, slots=True)
class JobPlan:
    """What would become of a job.

    Attributes:
        curve: The curve that the decision rests on.
        choice: The configuration to train on; None where a search decides, or nothing is feasible.
        why: One sentence.
        search: What is measured before the choice; None where nothing is.
        reused_jobs: Earlier jobs whose model replaces a search.
    """

    curve: CurveReport
    choice: ClusterConfig | None
    why: str
    search: SearchForecast | None = None
    reused_jobs: int = 0


def load_knowledge_for(
    connection: Connection, machine_type: str, project: str, spec: JobSpec, change_seconds: float
) -> PlanningState:
    """Return what earlier jobs of a project tell about a job that is not submitted.

    Args:
        connection: The database.
        machine_type: Kind of the machines of jobs that name none.
        project: Its project.
        spec: The job.
        change_seconds: Seconds a change of machines usually takes in its cloud.
    """
    signature = signature_of(spec, machine_type)
    others = stored_models.recent(connection, project, MAX_MODELS)
    searched = spec.limits.layout_search is not None
    known = layout_profiles.newest(connection, project, signature, spec.run) if searched else None
    own = stored_models.known(connection, project, {signature}).get(signature)
    return planning_state(
        spec,
        (),
        own if known is not None or not searched else None,  # as its first tick would
        other_models=tuple(model for model in others if model.signature != signature),
        lender=find_lender(signature, others),
        machine_type=machine_type,
        stack_checks=() if known is None else known.refusals,
        profile=None if known is None else known.profile,
        probe_overhead=replace(ProbeOverhead(), pause=change_seconds, boot=change_seconds),
    )


def plan_job(spec: JobSpec, knowledge: PlanningState) -> JobPlan:
    """Decide about a job as its first tick would."""
    curve = CurveReport.of(objective_within_limits(spec), preview_curve(knowledge))
    start = knowledge.space.start
    if not spec.strategy.is_searched:
        name = spec.strategy.name
        return JobPlan(curve, start, f"{name} is not searched: it trains on {start}")
    if spec.level != "control":
        return JobPlan(curve, start, f"level {spec.level}: the job stays on {start}")
    try:
        decision = decide(knowledge)
    except NothingFeasible as error:
        return JobPlan(replace(curve, choice=None), None, str(error))
    match decision:
        case TrainOn(config=config, why=why, searched=searched):
            preview = CurvePreview(decision.curve, decision.fitted)
            stored = knowledge.stored
            reused = 0 if stored is None or searched else stored.jobs
            return JobPlan(
                replace(curve, preview=preview, choice=decision.choice),
                config,
                why,
                reused_jobs=reused,
            )
        case Probe(why=why):
            search = forecast_search(knowledge)
            return JobPlan(curve, None, f"a search chooses; first, {why}", search)


def search_view(search: SearchForecast | None) -> PlannedSearchView | None:
    """Show what a search is expected to take."""
    if search is None:
        return None
    cost = None if search.cost is None else money_view(Decimal(search.cost))
    return PlannedSearchView(probes=len(search.probes), seconds=search.seconds, cost=cost)


def check_plan(spec: JobSpec, plan: JobPlan, curve: CurveView) -> list[str]:
    """Say what else to know before a job is submitted, a sentence each."""
    most = spec.space.workers[-1]
    per_hour = spec.price_per_hour * most + spec.server_price * spec.strategy.servers
    hourly = f"the largest cluster, {most} workers, costs {format_rate(float(per_hour))}"
    found = [hourly]
    if spec.limits.max_cost is None:
        found.append("limits.max_cost is missing, so no amount of money ends the job")
    if curve.points and curve.basis == "relative":
        found.append(
            "the epochs to this target are not known before a job has reached it, so times and "
            "costs are multiples of the start's, and the limits cannot be judged"
        )
    excluded = sum(bool(point.violations) for point in curve.points)
    if excluded:
        found.append(f"the limits exclude {excluded} of {len(curve.points)} configurations")
    chosen = plan.choice
    guessed = [
        point
        for point in curve.points
        if chosen is not None and point.config == chosen and point.source == "extrapolated"
    ]
    if guessed and spec.strategy.is_searched:
        found.append(f"{chosen} lies outside the range that was measured: expect larger errors")
    if spec.machine is not None and spec.machine.market != "on_demand":
        found.append("spot machines may be taken back; the job then goes on with others")
    return found
