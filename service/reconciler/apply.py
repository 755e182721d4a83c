"""Write down what a tick decided, with its sentence, in one transaction.

A choice is stored with the interval in which the job should reach its target; operators can measure
how often that held.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import assert_never

from sqlalchemy import Connection

from scavenger.cluster import ClusterConfig
from scavenger.job.planning import objective_within_limits
from scavenger.measurement.profiling import Observation
from scavenger.planning.decision import CurvePreview, preview_curve
from scavenger.planning.search.strategy import TrainOn
from scavenger.protocol import Directive
from scavenger.report import CurveReport
from scavenger.schemas.jobs import JobPhase
from scavenger.schemas.orders import ChangeWish, OrderState
from scavenger.stack import EAGER_NAME
from service import ledger
from service.db import curves, directives, jobs, measurements, orders
from service.db.jobs import StoredJob, record_event
from service.db.measurements import RecordedDrift, SettledProbe
from service.observability import metrics
from service.reconciler.actions import (
    Action,
    Advise,
    Blocked,
    ChooseConfig,
    EndOrder,
    Finish,
    KeepConfig,
    NoteBudget,
    NoteFramework,
    ObeyOrder,
    PublishDirective,
    RecordedAction,
    RefuseLayout,
    Replan,
    SearchAnew,
    StoreProbe,
    Unblocked,
)
from service.reconciler.model_update import update_stored_model
from service.reconciler.orders import draw_curve_of_rest
from service.state.curves import curve_view, spent_view
from service.state.forecasts import to_span
from service.state.job_state import JobState


def estimate_eta(state: JobState, run: TrainOn) -> tuple[datetime, datetime] | None:
    """Return when the target should be reached on what was just chosen; None if that is unknown.

    An 80 % interval: one job in ten should end before it, one in ten after it. The curve is of
    whole jobs; what was trained while searching need not be trained again. Getting to another
    configuration takes a while first.
    """
    expected, point = state.knowledge.expected_epochs, run.choice.point
    if expected is None or run.curve.basis != "total" or point.deviation == 0:
        return None
    left, directive = max(1 - state.epochs / expected, 0.0), state.directive
    is_there = directive is not None and directive.config == run.config
    pause = 0.0 if is_there else state.knowledge.probe_overhead.pause
    low, high = (state.now + to_span(pause + left * seconds) for seconds in point.time_range)
    return low, high


def estimate_eta_of_rest(
    state: JobState, curve: CurveReport, config: ClusterConfig
) -> tuple[datetime, datetime] | None:
    """Return when the target should be reached on a point of the curve of what is left."""
    if curve.basis != "remaining":
        return None
    point = next((each.point for each in curve.points if each.point.config == config), None)
    if point is None or point.deviation == 0:
        return None
    pause, directive = state.knowledge.probe_overhead.pause, state.directive
    delay = 0.0 if directive is not None and directive.config == config else pause
    low, high = (state.now + to_span(delay + seconds) for seconds in point.time_range)
    return low, high


def record_action(
    connection: Connection,
    machine_type: str,
    state: JobState,
    action: RecordedAction,
) -> None:
    """Write down a decision and its sentence in one transaction."""
    job, now = state.job.id, state.now
    match action:
        case PublishDirective(directive, why):
            # In the same transaction: no reading may be counted by the old scale after this.
            rescale_progress(connection, state, directive)
            directives.publish(connection, job, directive, now)
            metrics.RESIZE_EVENTS.labels("ordered").inc()
            if directive.purpose == "probe":
                record_search(connection, state, why)
            record_event(connection, job, now, "resize", why, event_data(action))
        case StoreProbe():
            record_settled_probe(connection, state, action)
        case ChooseConfig():
            record_choice(connection, machine_type, state, action)
        case KeepConfig():
            record_kept_config(connection, machine_type, state, action)
        case Advise(config, why, curve):
            jobs.change_outcome(connection, job, advised=config, advice=why)
            store_curve_report(connection, state, curve, state.job.chosen, why)
            record_event(connection, job, now, "advice", why, event_data(action))
        case Replan():
            record_replan(connection, state, action)
        case ObeyOrder():
            record_ordered_choice(connection, machine_type, state, action)
        case EndOrder(number, ended, why):
            orders.end_order(connection, job, number, ended, why, now)
            said = f"order {number} {ended}: {why}"
            record_event(connection, job, now, "order", said, event_data(action))
        case NoteBudget(share, why, is_news):
            jobs.change_outcome(connection, job, budget_told=share)
            if is_news:
                record_event(connection, job, now, "budget", why, event_data(action))
        case NoteFramework(framework, why, is_news, searches_anew):
            jobs.change_outcome(connection, job, framework=framework)
            if searches_anew:
                forget_choice(connection, job, why)
            if is_news:
                record_event(connection, job, now, "framework", why, event_data(action))
        case RefuseLayout(layout, worker, why):
            measurements.refuse_layout(connection, job, worker, layout, why, now)
            said = f"the job does without {layout}: {why}"
            record_event(connection, job, now, "stack_refused", said, event_data(action))
        case SearchAnew(why):
            forget_choice(connection, job, why)
        case Blocked(why):
            jobs.change_outcome(connection, job, waiting=why)
            record_event(connection, job, now, "waiting", why)
        case Unblocked(why):
            jobs.change_outcome(connection, job, waiting=None)
            record_event(connection, job, now, "resumed", why)
        case Finish():
            record_finish(connection, machine_type, state, action)
        case _:
            assert_never(action)


def forget_choice(connection: Connection, job: str, why: str) -> None:
    """Forget what was chosen for a job, so that it is searched again."""
    forgotten = dict.fromkeys(("chosen", "choice", "due_from", "due_until"))
    jobs.change_outcome(connection, job, reason=why, **forgotten)


def rescale_progress(connection: Connection, state: JobState, directive: Directive) -> None:
    """Rescale the progress of all metric readings once the noise has settled.

    The workers rescale theirs. Later Directives repeat the same correction.
    """
    before = state.directive
    is_first = before is not None and before.is_provisional and not directive.is_provisional
    if is_first and directive.correction != 1:
        measurements.rescale_readings(connection, state.job.id, directive.correction)


def record_search(connection: Connection, state: JobState, why: str) -> None:
    """Write down that a job is searched; a probe that was ordered later changes no phase."""
    if state.job.chosen is None:
        jobs.change_outcome(
            connection, state.job.id, phase=JobPhase.PROBING, reason=why, search=why
        )


def record_settled_probe(connection: Connection, state: JobState, action: StoreProbe) -> None:
    """Store a settled probe; one that was ordered ends its order, and redraws a job's curve."""
    job, now, why, observation = state.job, state.now, action.why, action.settled.observation
    measurements.record_probe(connection, job.id, priced_probe(state, observation))
    record_event(connection, job.id, now, "probe", why, event_data(action))
    if action.order is None:
        return
    told = f"{observation.config} takes {observation.indicators.step_time:.4g} s an iteration"
    orders.end_order(connection, job.id, action.order, "done", told, now)
    if job.chosen is not None:
        known = replace(state.knowledge, observations=(*state.knowledge.observations, observation))
        seen = replace(state, knowledge=known)
        why = f"{told}, as order {action.order} asked: {job.chosen} stays"
        store_curve_report(connection, state, draw_curve_of_rest(seen), job.chosen, why)


def record_ordered_choice(
    connection: Connection, machine_type: str, state: JobState, action: ObeyOrder
) -> None:
    """Fix the configuration that an order asks for; that ends a search, and the order."""
    job, now, why, config = state.job, state.now, action.why, action.config
    if job.chosen is None:
        start_training(connection, state, config, why, action.curve, search=why)
        update_stored_model(connection, machine_type, state)
    else:
        # The interval until now was that of another configuration.
        due_from, due_until = estimate_eta_of_rest(state, action.curve, config) or (None, None)
        changed = {"reason": f"training on {config}", "chosen": config, "choice": why}
        jobs.change_outcome(connection, job.id, **changed, due_from=due_from, due_until=due_until)
        store_curve_report(connection, state, action.curve, config, why)
    orders.end_order(connection, job.id, action.order, "done", why, now)
    record_event(connection, job.id, now, "choice", why, event_data(action))


def store_curve_report(
    connection: Connection,
    state: JobState,
    curve: CurveReport,
    chosen: ClusterConfig | None,
    why: str,
) -> None:
    """Keep the curve that something was chosen from."""
    job = state.job
    spent = spent_view(state) if curve.part == "rest" else None
    view = curve_view(curve, state.planned_spec, chosen, why, state.now, spent)
    curves.store_curve(connection, job.id, view, state.now)


def record_replan(connection: Connection, state: JobState, action: Replan) -> None:
    """Write down that the noise scale has drifted, and what was chosen instead, if anything was."""
    job, now, why, config = state.job.id, state.now, action.why, action.config
    measurements.record_drift(connection, job, RecordedDrift(now, action.noise_scale))
    if config is not None:
        reason = f"training on {config}"
        jobs.change_outcome(connection, job, reason=reason, chosen=config, choice=why)
    if action.curve is not None:
        store_curve_report(connection, state, action.curve, config, why)
    record_event(connection, job, now, "drift", why, event_data(action))


def record_choice(
    connection: Connection, machine_type: str, state: JobState, action: ChooseConfig
) -> None:
    """Fix the configuration that was chosen, and when the job should end on it."""
    job, run, why = state.job.id, action.run, action.why
    due_from, due_until = estimate_eta(state, run) or (None, None)
    search = f"searched: {len(state.probes)} probes" if run.searched else why
    outcome = {"due_from": due_from, "due_until": due_until, "search": search}
    preview = CurvePreview(run.curve, run.fitted)
    curve = CurveReport(preview, objective_within_limits(state.planned_spec), run.choice)
    start_training(connection, state, run.config, why, curve, **outcome)
    if run.searched:
        update_stored_model(connection, machine_type, state)
    record_event(connection, job, state.now, "choice", why, event_data(action))


def record_kept_config(
    connection: Connection, machine_type: str, state: JobState, action: KeepConfig
) -> None:
    """Fix a configuration that was not chosen; its measurements teach as any probe does."""
    job, why = state.job.id, action.why
    objective = objective_within_limits(state.planned_spec)
    curve = CurveReport.of(objective, preview_curve(state.knowledge))
    start_training(connection, state, action.config, why, curve, search=why)
    update_stored_model(connection, machine_type, state)
    record_event(connection, job, state.now, "choice", why, event_data(action))


def start_training(
    connection: Connection,
    state: JobState,
    config: ClusterConfig,
    why: str,
    curve: CurveReport,
    **outcome: object,
) -> None:
    """Fix the configuration to train on and keep its curve; ``outcome`` is what else is known."""
    outcome |= {"phase": JobPhase.TRAINING, "chosen": config, "choice": why}
    jobs.change_outcome(connection, state.job.id, reason=f"training on {config}", **outcome)
    store_curve_report(connection, state, curve, config, why)


def record_finish(
    connection: Connection, machine_type: str, state: JobState, action: Finish
) -> None:
    """Write the outcome, once; a reached target teaches how many epochs it takes."""
    job, now = state.job.id, state.now
    jobs.change_outcome(
        connection,
        job,
        phase=action.phase,
        reason=action.why,
        worker_exit_code=action.exit_code,
        epochs_to_target=action.epochs,
        diverged=action.has_diverged,
        finished_at=now,
        waiting=None,
    )
    for order in state.standing.open:
        # What was changed has held since it was ordered; the rest came too late.
        ended: OrderState = "done" if isinstance(order.wish, ChangeWish) else "refused"
        told = f"the job ended first: {action.phase}"
        orders.end_order(connection, job, order.number, ended, told, now)
    if action.phase is JobPhase.SUCCEEDED:
        update_stored_model(connection, machine_type, state, action.epochs)
    facts = {"exit_code": action.exit_code, "epochs": action.epochs}
    known = {name: fact for name, fact in facts.items() if fact is not None}
    record_event(connection, job, now, str(action.phase), action.why, known)
    if action.phase is JobPhase.SUCCEEDED:
        record_degraded_model(connection, state.job, now)


def record_degraded_model(connection: Connection, job: StoredJob, ended: datetime) -> None:
    """Tell of the job whose end made forecasts for its model miss too often."""
    key, moments = job.spec.model.key, (ended, ended + timedelta.resolution)
    before, after = (curves.judge_forecasts(connection, job.project, key, at) for at in moments)
    if after is None or not after.is_degraded or (before is not None and before.is_degraded):
        return
    told = (
        f"only {after.coverage:.0%} of the last {after.forecasts} forecasts for the model {key} "
        "ended inside their 80 % interval: read its curves as a rough guide; where data or script "
        "have changed, give the next job another model key or forget the model"
    )
    facts = {"model": key, "coverage": after.coverage, "forecasts": after.forecasts}
    record_event(connection, job.id, ended, "degraded", told, facts)


def priced_probe(state: JobState, observation: Observation) -> SettledProbe:
    """Price a settled probe: its time, and what the machines cost meanwhile.

    It began with its Directive, or where that goes on for another probe, when the one before ended.
    """
    since = state.published_at or state.now
    if state.probes:
        since = max(since, state.probes[-1].settled_at)
    before = ledger.accrued(state.vms, since)
    return SettledProbe(
        observation,
        seconds=(state.now - since).total_seconds(),
        cost=state.accrued - before,
        settled_at=state.now,
    )


def event_data(action: Action) -> dict[str, object]:
    """Return what an event about an action carries besides its sentence."""
    match action:
        case PublishDirective(directive, _):
            return {"generation": directive.generation, **config_data(directive.config)}
        case ChooseConfig(run, _):
            return config_data(run.config)
        case KeepConfig(config, _):
            return config_data(config)
        case Advise(config, _, _):
            return {} if config is None else config_data(config)
        case ObeyOrder(order, config):
            return {"order": order, **config_data(config)}
        case EndOrder(order, ended):
            return {"order": order, "state": ended}
        case NoteBudget(share):
            return {"share": share}
        case NoteFramework(framework):
            return {"framework": framework}
        case RefuseLayout(layout, worker):
            return {"stack": str(layout), "worker": worker}
        case Replan(config, noise_scale, _, _):
            moved = {} if config is None else config_data(config)
            return {"noise_scale": noise_scale, **moved}
        case StoreProbe(settled):
            indicators = settled.observation.indicators
            return {
                **config_data(settled.observation.config),
                "noise": indicators.noise,
                "noise_scale": indicators.noise_scale,
                "compute_time": indicators.compute_time,
                "sync_time": indicators.sync_time,
            }
        case _:
            return {}


def config_data(config: ClusterConfig) -> dict[str, object]:
    """Return a configuration as events carry it."""
    stack = {} if config.stack == EAGER_NAME else {"stack": config.stack}
    return {"workers": config.workers, "global_batch": config.global_batch, **stack}
