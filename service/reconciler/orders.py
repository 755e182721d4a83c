"""Obey the orders of users: what each open one asks the plan to do now.

An order ends in the transaction of the action that obeys it. One that can no longer be obeyed is
refused with its reason, and one that a later order makes needless is replaced.
"""

from __future__ import annotations

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.job.planning import objective_within_limits
from scavenger.planning.decision import preview_curve
from scavenger.planning.replanning import (
    BetterConfig,
    choose_again,
    choose_for_rest,
    preview_rest,
)
from scavenger.report import CurveReport
from scavenger.schemas.orders import (
    ChangeWish,
    GridPoint,
    PauseWish,
    Preference,
    ProbeWish,
    ResizeWish,
    ResumeWish,
)
from service.db.orders import StoredOrder
from service.db.vms import Vm
from service.reconciler.actions import Action, Blocked, EndOrder, Idle, ObeyOrder, Terminate
from service.reconciler.directives import layout_objection
from service.reconciler.endings import counted
from service.reconciler.target import is_searched
from service.reconciler.timeouts import ORDERED_PROBE_TIMEOUT, pause_deadline
from service.state.job_state import JobState
from service.state.order_checks import is_affordable, money_for_resume_objection
from service.state.orders import describe_change


def end_needless_order(state: JobState) -> Action | None:
    """End an order that a later one has replaced, or that cannot be obeyed any more."""
    for number, later in state.standing.replaced_by:
        return EndOrder(number, "replaced", f"order {later} came after it")
    for order in state.standing.open:
        match order.wish:
            case ResumeWish():
                lack = money_for_resume_objection(state)
                if lack is not None:
                    return EndOrder(order.number, "refused", lack.why)
                return EndOrder(order.number, "done", "machines are launched again")
            case ProbeWish() as wish:
                why = end_of_probe(state, order, wish.config)
                if why is not None:
                    return EndOrder(order.number, "refused", why)
            case _:
                continue
    return None


def end_of_probe(state: JobState, order: StoredOrder, config: ClusterConfig) -> str | None:
    """Say why a probe that was ordered is not made any more; None while it is."""
    if state.standing.is_paused:
        return "the job was paused first"
    objection = layout_objection(state, config)
    if objection is not None:
        return objection
    if not is_affordable(state, config):
        return unaffordable_config_reason(config)
    if ORDERED_PROBE_TIMEOUT.is_over(order.at, state.now):
        return f"{config} was not measured within {ORDERED_PROBE_TIMEOUT.limit_text}"
    return None


def unaffordable_config_reason(config: ClusterConfig) -> str:
    """Say that the cap does not pay for a configuration that was asked for."""
    return f"max_cost leaves no room for the machines of {config}: raise it and order it again"


def paused_reason(job: str) -> str:
    """Say what a paused job waits for."""
    return f"paused: no machine runs; resume it with `scavenger resume {job}`, or cancel it"


def hold_paused(state: JobState) -> Action | None:
    """A paused job: its workers save a checkpoint and leave, and no machine stays."""
    if not state.standing.is_paused:
        return None
    alive = [vm for vm in state.vms if vm.is_alive]
    untold = [vm for vm in alive if vm.state != "ending"]
    leaving = [vm for vm in untold if is_leaving(state, vm)]
    ended = tuple(vm.id for vm in untold if vm not in leaving)
    if ended:
        return Terminate(ended, f"{counted(len(ended), 'machine')} of the paused job")
    if leaving:
        return Idle(f"pausing: {counted(len(leaving), 'worker')} to save a checkpoint and leave")
    if alive:
        return Idle(f"pausing: {counted(len(alive), 'machine')} still ending")
    for order in state.standing.open:
        if isinstance(order.wish, PauseWish):
            best = state.most_advanced
            done = "before training began" if best is None else f"after iteration {best.iteration}"
            return EndOrder(order.number, "done", f"paused {done}: no machine runs")
    return Blocked(paused_reason(state.job.id))


def is_leaving(state: JobState, vm: Vm) -> bool:
    """Whether the worker of a paused job may still save what it holds, and leave."""
    worker = state.worker(vm.id)
    has_trained = worker is not None and worker.is_up and worker.generation > 0
    is_late = state.now > pause_deadline(state)
    return vm.role == "worker" and has_trained and vm.exit_code is None and not is_late


def obey_change(state: JobState) -> Action | None:
    """Limits or objective were changed: choose again what pays best with them."""
    for order in state.standing.open:
        if isinstance(order.wish, ChangeWish):
            return choose_on_order(state, order, f"{describe_change(order.wish)} from now on")
    return None


def obey_resize(state: JobState) -> Action | None:
    """A configuration or an objective was ordered."""
    for order in state.standing.open:
        match order.wish:
            case ResizeWish(to=GridPoint() as point):
                return pin(state, order, point.config)
            case ResizeWish(to="auto"):
                said = f"planned by {state.job.spec.objective_text} and the noise from now on"
                return choose_on_order(state, order, said)
            case ResizeWish(to=str() as preference):
                return prefer(state, order, preference)
            case _:
                continue
    return None


def pin(state: JobState, order: StoredOrder, config: ClusterConfig) -> Action:
    """Move to a configuration, and stay on it."""
    if config == state.job.chosen:
        return EndOrder(order.number, "done", f"{config} is kept from now on")
    if not is_affordable(state, config):
        return EndOrder(order.number, "refused", unaffordable_config_reason(config))
    why = f"{config}, as order {order.number} asks"
    return ObeyOrder(order.number, config, why, draw_curve_of_rest(state))


def prefer(state: JobState, order: StoredOrder, preference: Preference) -> Action:
    """Move to what an objective chooses of what is left, and stay on it."""
    number, chosen, left = order.number, state.job.chosen, state.what_is_left
    if chosen is None:
        return EndOrder(number, "done", f"the search goes on, and chooses by {preference}")
    preview = None if left.is_over else preview_rest(state.knowledge, left)
    if preview is None:
        return EndOrder(number, "done", f"{chosen} stays: nothing tells how others would do")
    try:
        found = choose_for_rest(state.knowledge, left, preview)
    except NothingFeasible as error:
        return EndOrder(number, "refused", f"{error}")
    config, why = found.config, f"{preference} of what is left, {found.choice.why}"
    if config == chosen:
        return EndOrder(number, "done", f"{chosen} stays: it is the {why}")
    if not is_affordable(state, config):
        return EndOrder(number, "refused", unaffordable_config_reason(config))
    return ObeyOrder(number, config, f"{config}, as order {number} asks: the {why}", report(found))


def choose_on_order(state: JobState, order: StoredOrder, said: str) -> Action:
    """Choose again, as after a drift: only what saves more than a resize takes is moved to."""
    number, chosen, left = order.number, state.job.chosen, state.what_is_left
    if chosen is None:
        return EndOrder(number, "done", f"{said}: the search goes on")
    if not is_planned(state) or left.is_over or preview_rest(state.knowledge, left) is None:
        return EndOrder(number, "done", f"{said}: {chosen} stays")
    better, why = choose_again(state.knowledge, chosen, left)
    if better is None or not is_affordable(state, better.config):
        return EndOrder(number, "done", f"{said}: {why}")
    return ObeyOrder(number, better.config, f"{said}: {why}", report(better))


def is_planned(state: JobState) -> bool:
    """Whether the controller chooses the configuration of a job, and may move it."""
    return state.standing.is_automatic and is_searched(state.job.spec)


def report(found: BetterConfig) -> CurveReport:
    """Return the curve of what is left, with what was chosen from it."""
    return CurveReport(found.preview, found.objective, found.choice, "rest")


def draw_curve_of_rest(state: JobState) -> CurveReport:
    """Draw the curve beside which a configuration is ordered: of what is left of a chosen job."""
    left = state.what_is_left
    if state.job.chosen is not None and not left.is_over:
        preview = preview_rest(state.knowledge, left)
        if preview is not None:
            try:
                return report(choose_for_rest(state.knowledge, left, preview))
            except NothingFeasible:
                pass
    objective = objective_within_limits(state.planned_spec)
    return CurveReport.of(objective, preview_curve(state.knowledge))
