"""The configuration a job should be in now, by its mode, its search and what its cap pays for.

Mode ``observe`` measures the start configuration and stays there, ``advise`` also says what it
would choose, and ``control`` searches and resizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from scavenger.cluster import ClusterConfig
from scavenger.errors import NothingFeasible
from scavenger.job.planning import objective_within_limits
from scavenger.job.spec import JobSpec
from scavenger.planning import replanning
from scavenger.planning.decision import decide, decide_with_worker_cap, preview_curve
from scavenger.planning.search.strategy import Probe, TrainOn
from scavenger.planning.state import PlanningState
from scavenger.report import CurveReport
from scavenger.schemas.orders import ProbeWish
from service.reconciler.actions import Advise, ChooseConfig, KeepConfig, Replan, SearchAnew
from service.reconciler.directives import in_usable_layout, layout_objection, shrink_config
from service.reconciler.endings import counted, has_any_member_finished
from service.reconciler.places import next_offer, shortage_reason
from service.reconciler.servers import missing_servers
from service.state.curves import CurveKey, curve_key
from service.state.job_state import JobState


def is_searched(spec: JobSpec) -> bool:
    """Whether the job's configuration is chosen, rather than given."""
    return spec.level == "control" and spec.strategy.is_searched


def start_config_decision(state: JobState) -> Probe | KeepConfig | None:
    """Return what to do with a configuration that is not to be chosen; None where one is.

    It is measured once, since advice rests on that, and then kept. A strategy that is not searched
    is described by no law, so nothing is measured.
    """
    spec = state.job.spec
    start = state.knowledge.space.start
    if not spec.strategy.is_searched:
        name = spec.strategy.name
        return KeepConfig(start, f"{name} is not searched: training on {start}")
    if spec.level == "control":
        return None
    if any(probe.observation.config == start for probe in state.probes):
        return KeepConfig(start, f"level {spec.level}: the job stays on {start}")
    return Probe(start, f"level {spec.level}: measuring {start}", measures="noise")


def advise(state: JobState) -> Advise | None:
    """Say what a job that is advised would choose, each time that has changed."""
    job = state.job
    if job.spec.level != "advise" or job.chosen is None:
        return None
    advice = choose_advice(curve_key(job.spec, state.knowledge))
    if advice is None or (job.advice is not None and job.advised == advice.config):
        return None
    curve = CurveReport.of(objective_within_limits(job.spec), preview_curve(advice.knowledge))
    return Advise(advice.config, advice.why, curve)


@dataclass(frozen=True, slots=True)
class ConfigAdvice:
    """What a job would choose; None when nothing meets the limits.

    Attributes:
        knowledge: What that follows from.
    """

    config: ClusterConfig | None
    why: str
    knowledge: PlanningState


@lru_cache(maxsize=1024)  # all jobs ask at every tick, and drawing a curve takes a while
def choose_advice(key: CurveKey) -> ConfigAdvice | None:
    """Choose from the curve as it can be drawn now; None while nothing tells."""
    knowledge = key.knowledge
    preview = preview_curve(knowledge)
    if preview is None:
        return None
    try:
        choice = knowledge.objective.choose(preview.curve)
    except NothingFeasible as error:
        return ConfigAdvice(None, f"no advice, since {error}", knowledge)
    config = choice.point.config
    return ConfigAdvice(config, f"advice: {config}, {choice.why}", knowledge)


def replan(state: JobState) -> Replan | None:
    """The noise scale has left the one the configuration was chosen with: choose again."""
    directive, chosen, level = state.directive, state.job.chosen, state.job.spec.level
    if chosen is None or directive is None or directive.config != chosen or level == "observe":
        return None
    if not state.is_review_due:
        return None
    if not state.standing.is_automatic:
        return None
    found = replanning.replan(state.knowledge, chosen, state.steps, state.what_is_left)
    if found is None:
        return None
    if level != "control":
        return Replan(None, found.noise_scale, f"{found.why}; the job is only advised")
    if found.better is None:
        return Replan(None, found.noise_scale, found.why)
    better = found.better
    curve = CurveReport(better.preview, better.objective, better.choice, "rest")
    return Replan(better.config, found.noise_scale, found.why, curve)


# One worker splits one of so many iterations: noise is measured in those, time in the others.
NOISE_SPLIT_EVERY = 2
PROBE_SPLIT_EVERY = 5


@dataclass(frozen=True, slots=True)
class WantedConfig:
    """The configuration the job should be in, and what for.

    Attributes:
        probe: What is to be measured there; None to train on it.
        shortfall_reason: Why it is smaller than what was chosen; None where it is not.
        order: Number of the order that asks for the probe; None for one of the search.
    """

    config: ClusterConfig
    why: str
    probe: Probe | None = None
    shortfall_reason: str | None = None
    order: int | None = None

    @property
    def is_time_probe(self) -> bool:
        """Whether a probe of time is wanted: others will probably follow it soon."""
        return self.probe is not None and self.probe.measures == "time"


def choose_wanted_config(
    state: JobState,
) -> WantedConfig | ChooseConfig | KeepConfig | SearchAnew:
    """Return the configuration the job should be in now."""
    job, only = state.job, start_config_decision(state)
    ordered = ordered_probe(state)
    if ordered is not None:
        return ordered
    if job.chosen is not None:
        objection = layout_objection(state, job.chosen)
        if objection is not None:
            return leave_refused_choice(state, job.chosen, objection)
        return target_of_choice(state, job.chosen)
    if isinstance(only, KeepConfig):
        return only
    decision = only or running_noise_probe(state) or decide(state.knowledge)
    missing = unaffordable_machines(state, decision.config)
    if missing:
        return search_within_cap(state, decision, missing)
    if isinstance(decision, Probe) and is_short_of_machines(state, decision.config):
        return target_within_machines(state, decision.config, shortage_reason(state))
    return target_of_decision(decision)


def leave_refused_choice(
    state: JobState, chosen: ClusterConfig, objection: str
) -> SearchAnew | KeepConfig:
    """Replace a choice in a layout that the job does without: search again, or keep what is asked.

    What a user asked for keeps its workers and its batch.
    """
    if state.standing.is_automatic and is_searched(state.job.spec):
        return SearchAnew(objection)
    config = shrink_config(state, in_usable_layout(state, chosen), chosen.workers)
    return KeepConfig(config, f"{objection}; training on {config}")


def ordered_probe(state: JobState) -> WantedConfig | None:
    """Return the probe that a user has ordered, once there are machines for it."""
    order = state.standing.probe
    if order is None or not isinstance(order.wish, ProbeWish):
        return None
    config = order.wish.config
    if is_short_of_machines(state, config):
        return None
    why = f"measuring {config}, as order {order.number} asks"
    return WantedConfig(config, why, Probe(config, why, measures="time"), order=order.number)


def running_noise_probe(state: JobState) -> Probe | None:
    """Return the probe of noise that runs, whose machines live and may show noise.

    What would be chosen changes with every reading of the target's metric. Moving the job each time
    would restart the noise measurement and its deadline.
    """
    directive = state.directive
    if state.knowledge.has_settled_noise or state.departed_members:
        return None
    if directive is None or directive.purpose != "probe":
        return None
    if directive.split_every != NOISE_SPLIT_EVERY:
        return None
    if not state.knowledge.can_measure_noise(directive.config.workers):
        return None
    return Probe(directive.config, directive.why, measures="noise")


def target_of_decision(decision: Probe | TrainOn) -> WantedConfig | ChooseConfig:
    """Return what a decision asks for."""
    match decision:
        case Probe(config, why):
            return WantedConfig(config, why, decision)
        case TrainOn():
            return ChooseConfig(decision, decision.why)


def target_of_choice(state: JobState, chosen: ClusterConfig) -> WantedConfig:
    """Train on what was chosen, or on the machines there are where no more can be paid."""
    spec = state.planned_spec
    objective = f", objective {spec.objective_text}" if is_searched(spec) else ""
    if state.standing.pinned == chosen:
        objective = ", pinned by an order"
    missing = unaffordable_machines(state, chosen)
    if missing:
        why = unaffordable_reason(missing)
    elif is_short_of_machines(state, chosen):
        why = shortage_reason(state)
    else:
        return WantedConfig(chosen, f"training on {chosen}{objective}")
    return target_within_machines(state, chosen, why)


def target_within_machines(state: JobState, wanted: ClusterConfig, why: str) -> WantedConfig:
    """Train on the machines there are for as long as the others cannot be had."""
    config = shrink_config(state, wanted, len(state.unfinished_worker_vms))
    return WantedConfig(config, f"{why}: training on {config}", shortfall_reason=why)


def search_within_cap(
    state: JobState, decision: Probe | TrainOn, missing: int
) -> WantedConfig | ChooseConfig | KeepConfig:
    """End the search among what the cap pays for; before anything is measured, where the job is."""
    knowledge, why = state.knowledge, unaffordable_reason(missing)
    if start_config_decision(state) is not None or not (
        knowledge.observations or isinstance(decision, TrainOn)
    ):
        config = shrink_config(state, decision.config, len(state.unfinished_worker_vms))
        return KeepConfig(config, f"{why}: training on {config}")
    match target_of_decision(decide_with_worker_cap(knowledge, affordable_workers(state, missing))):
        case WantedConfig() as wanted:
            return replace(wanted, why=f"{why}, so the search ends and {wanted.why}")
        case ChooseConfig(run) if run.searched:
            return ChooseConfig(run, f"{why}, so the search ends {run.why}")
        case ChooseConfig(run):
            return ChooseConfig(run, f"{why}; {run.why}")


def is_short_of_machines(state: JobState, config: ClusterConfig) -> bool:
    """Whether a configuration lacks machines that no place gives now, and the job has others.

    Those would idle, and cost, for as long as that lasts.
    """
    vms = state.unfinished_worker_vms
    missing = config.workers - len(vms)
    if missing <= 0 or not vms or missing_servers(state) or has_any_member_finished(state):
        return False
    return next_offer(state, missing) is None


def unaffordable_machines(state: JobState, config: ClusterConfig) -> int:
    """Return how many machines are missing of which the cap does not pay all; 0 where it does.

    Also 0 for a job that has no machine, and for one whose training is ending.
    """
    vms = state.unfinished_worker_vms
    missing = config.workers - len(vms)
    if missing <= 0 or not vms or missing_servers(state) or has_any_member_finished(state):
        return 0
    return 0 if state.can_afford(missing, 0) else missing


def affordable_workers(state: JobState, missing: int) -> int:
    """Return how many workers there are, with as many of those missing as the cap pays."""
    more = next(n for n in range(missing - 1, -1, -1) if n == 0 or state.can_afford(n, 0))
    return len(state.unfinished_worker_vms) + more


def unaffordable_reason(missing: int) -> str:
    """Say that the cap does not pay for machines."""
    return f"max_cost leaves no room for {counted(missing, 'more machine')}"
