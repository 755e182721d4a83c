"""simulate(): the planner's decisions on a simulated job, every second and dollar recorded.

It does what the controller does, with the same ``decide`` and ``evaluate_probe``: start small,
probe until the search is over, resize to the choice, train to the target. The oracle knows the
truth and runs its choice from the first iteration; both clocks start when the first machines are
ready.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from scavenger.cluster import ClusterConfig, ConfigSpace, config_columns
from scavenger.measurement.profiling import (
    PROBE_ITERATIONS,
    WARM_UP_ITERATIONS,
    Observation,
    ProbeComplete,
    ProbeIncomplete,
    evaluate_probe,
)
from scavenger.measurement.steps import StepColumns
from scavenger.models.epochs import EpochsLaw, fit_epochs_law
from scavenger.offline.simulator.jobs import SyntheticJob
from scavenger.planning.constrained_objective import ConstrainedObjective
from scavenger.planning.curve import TradeoffCurve, TradeoffPoint
from scavenger.planning.decision import decide, fit_model
from scavenger.planning.objective import Objective
from scavenger.planning.replanning import Remainder, Replanning, replan
from scavenger.planning.search.strategy import Probe, TrainOn
from scavenger.planning.state import PlanningState
from scavenger.pricing import PriceModel


def true_curve(job: SyntheticJob, space: ConfigSpace, price: PriceModel) -> TradeoffCurve:
    """Return true time and cost of every configuration, run from the first iteration (Eqs. 3-5)."""
    return TradeoffCurve(tuple(true_point(job, config, price) for config in space), "total")


def true_point(job: SyntheticJob, config: ClusterConfig, price: PriceModel) -> TradeoffPoint:
    """Return what one configuration really takes from the first iteration to the target."""
    compute, sync = job.compute_time(config), job.sync_time(config)
    time = job.seconds_to(config, 1.0)
    return TradeoffPoint(
        config=config,
        noise=None,
        epochs=job.epochs_needed(config.global_batch),
        compute_time=compute,
        sync_time=sync,
        step_time=compute + sync,
        measured_step_time=None,
        time=time,
        cost=price_per_hour_of(config, price) * time / 3600,
    )


def price_per_hour_of(config: ClusterConfig, price: PriceModel) -> float:
    """Dollars per hour of one configuration."""
    return float(price.per_hour(config_columns([config]))[0])


IntervalPurpose = Literal["probe", "boot", "pause", "train"]
ReplanFunction = Callable[[PlanningState, ClusterConfig, StepColumns, Remainder], Replanning | None]

# A probe is looked at again after a twentieth more rows, so that it is at most that much too long.
MIN_CHECK_ITERATIONS = 10
CHECKS_PER_PROBE = 20
UNBOUNDED_ITERATIONS = 2**31


@dataclass(frozen=True, slots=True)
class ResizeOverheads:
    """What a change of configuration takes.

    Attributes:
        pause: Seconds of every resize, without progress; 37 s is what the paper saw (V-B).
        boot: Seconds until added machines are ready. Training goes on meanwhile, and they are paid.
    """

    pause: float = 37.0
    boot: float = 60.0


@dataclass(frozen=True, slots=True)
class PaidMachines:
    """Machines that are paid, whether they train or not.

    Attributes:
        held: The largest configuration for which there are machines.
        ready_in: Seconds until the newest of them have booted.
        idle: Seconds for which some of them stood by, booted and unused.
    """

    held: ClusterConfig
    ready_in: float = 0.0
    idle: float = 0.0

    def until_released(self, config: ClusterConfig, boot: float) -> float:
        """Return the seconds until machines that a configuration leaves idle are ended."""
        if not adds_machines(config, self.held):
            return UNBOUNDED_ITERATIONS
        return self.ready_in + boot - self.idle

    def after(self, seconds: float, config: ClusterConfig) -> PaidMachines:
        """Return the same machines after a configuration has trained on them."""
        if not adds_machines(config, self.held):
            return PaidMachines(self.held)
        late = max(seconds - self.ready_in, 0.0)
        return replace(self, ready_in=max(self.ready_in - seconds, 0.0), idle=self.idle + late)


@dataclass(frozen=True, slots=True)
class DriftCheck:
    """Looking back after the choice, so that a plan can follow a drift.

    Attributes:
        every: Iterations of training between two looks.
        replan: Chooses again where the noise scale has drifted.
    """

    every: int
    replan: ReplanFunction = replan


@dataclass(frozen=True, slots=True)
class SimulatedInterval:
    """A stretch of time in which nothing changed.

    Attributes:
        config: The configuration that trained, or in a pause the one that is being entered.
        purpose: What it was for.
        seconds: How long it took.
        price_per_hour: What all machines that existed cost.
        iterations: Iterations trained in it.
    """

    config: ClusterConfig
    purpose: IntervalPurpose
    seconds: float
    price_per_hour: float
    iterations: int

    @property
    def cost(self) -> float:
        """Dollars."""
        return self.price_per_hour * self.seconds / 3600

    def is_continued_by(self, other: SimulatedInterval) -> bool:
        """Tell whether another stretch of time is more of the same."""
        return (self.config, self.purpose, self.price_per_hour) == (
            other.config,
            other.purpose,
            other.price_per_hour,
        )


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """What one simulated job took, beside what it might have taken.

    Attributes:
        chosen: The configuration that was chosen first.
        intervals: Everything that happened, in order.
        observations: Settled probes.
        search_time: Seconds until the choice first trained, less what the chosen configuration
            would have taken for the training done by then.
        search_cost: Dollars, counted alike.
        run: The decision; None where the target was reached during the search.
        truth: True time and cost of every configuration from the first iteration on.
        oracle: What the objective chooses from the truth.
        chosen_truth: What the chosen configuration takes from the first iteration on.
        errors: By configuration, predicted over true time to target, less 1; a relative curve is
            compared with the truth relative to its start.
        counted_progress_ratio: Reference epochs the workers would have counted, over the true ones.
        objective: What was optimised.
    """

    chosen: ClusterConfig
    intervals: tuple[SimulatedInterval, ...]
    observations: tuple[Observation, ...]
    search_time: float
    search_cost: float
    run: TrainOn | None
    truth: TradeoffCurve
    oracle: TradeoffPoint
    chosen_truth: TradeoffPoint
    errors: Mapping[ClusterConfig, float]
    counted_progress_ratio: float
    objective: Objective

    @property
    def time(self) -> float:
        """Seconds to target, search included."""
        return sum(interval.seconds for interval in self.intervals)

    @property
    def cost(self) -> float:
        """Dollars to target, search included."""
        return sum(interval.cost for interval in self.intervals)

    @property
    def mean_error(self) -> float | None:
        """Mean absolute error of predicted time; None where nothing was predicted."""
        return fmean(map(abs, self.errors.values())) if self.errors else None

    @property
    def regret(self) -> float:
        """What the choice loses against the oracle's by the objective, as a share.

        Of time where only time counts, of cost where only cost does, else of their weighted
        product; negative for a knee where a point beside the true knee has the smaller product.
        """
        weight = self.objective.time_weight
        time = ratio_or_one(self.chosen_truth.time, self.oracle.time)
        cost = ratio_or_one(self.chosen_truth.cost, self.oracle.cost)
        return math.pow(time, weight) * math.pow(cost, 1 - weight) - 1

    @property
    def time_overhead(self) -> float:
        """Seconds to target over those of the oracle, less 1."""
        return ratio_or_one(self.time, self.oracle.time) - 1

    @property
    def cost_overhead(self) -> float:
        """Dollars to target over those of the oracle, less 1."""
        return ratio_or_one(self.cost, self.oracle.cost) - 1


def simulate(
    job: SyntheticJob,
    state: PlanningState,
    overheads: ResizeOverheads = ResizeOverheads(),
    watch: DriftCheck | None = None,
) -> SimulationOutcome:
    """Train a simulated job as the controller would, from its first iteration to its target.

    Args:
        job: The job, before its first iteration.
        state: What is known beforehand: space, strategy, objective, price, stored models.
        overheads: What a change of configuration takes.
        watch: Looks back after the choice; None keeps the first one.

    Raises:
        NothingFeasible: No configuration meets the limits, by the truth or by what was measured.
        ValueError: Something was measured before, or the price depends on more than seconds.
    """
    if state.observations or job.progress > 0:
        raise ValueError("the job has begun already: hand over a fresh one")
    if state.price.quantum or state.price.interruptions:
        raise ValueError("a simulation bills every second once: no quantum, no interruptions")
    truth = true_curve(job, state.space, state.price)
    best = state.objective.choose(truth).point
    simulated = SimulationRun(job, state, overheads)
    run = simulated.search()
    chosen = true_point(job, simulated.config if run is None else run.config, state.price)
    search_time, search_cost = simulated.search_overhead(chosen.config)
    if run is not None:
        simulated.train(watch)
    return SimulationOutcome(
        chosen=chosen.config,
        intervals=tuple(simulated.intervals),
        observations=simulated.state.observations,
        search_time=search_time,
        search_cost=search_cost,
        run=run,
        truth=truth,
        oracle=best,
        chosen_truth=chosen,
        errors={} if run is None else prediction_errors(run.curve, truth),
        counted_progress_ratio=simulated.counted_progress
        / job.epochs_needed(state.reference_batch),
        objective=state.objective,
    )


class SimulationRun:
    """A job on its way: which machines it has, what it was told, and what has been recorded."""

    def __init__(self, job: SyntheticJob, state: PlanningState, overheads: ResizeOverheads) -> None:
        self.job, self.state, self.overheads = job, state, overheads
        self.intervals: list[SimulatedInterval] = []
        self.losses: tuple[float | None, ...] = ()
        self.counted_progress = self.provisional_progress = 0.0
        self.config = decide(state).config
        self.machines = PaidMachines(self.config)
        self.progress_per_iteration = 0.0
        self.ready_stacks = {self.config.stack}

    def search(self) -> TrainOn | None:
        """Probe until ``decide`` returns a choice, then resize to it; None if training ended."""
        while not self.job.is_finished:
            held = self.machines.held.machines if self.intervals else 0
            decision = decide(replace(self.state, running_machines=held))
            self.switch_config(decision.config, progress_law(decision, self.state))
            if isinstance(decision, TrainOn) or decision.measures == "noise":
                self.machines = PaidMachines(self.config)  # no probe will follow soon
            if isinstance(decision, TrainOn):
                return decision
            observation = self.probe(decision)
            if observation is not None:
                known = (*self.state.observations, observation)
                self.state = replace(self.state, observations=known)
        return None

    def probe(self, probe: Probe) -> Observation | None:
        """Train the configuration until the probe is complete; None if training ended before."""
        rows = self.run_time_probe(probe.next_config)
        while isinstance(result := self.evaluate(rows, probe), ProbeIncomplete):
            if self.job.is_finished:
                return None
            more = self.train_iterations(
                "probe", max(MIN_CHECK_ITERATIONS, len(rows) // CHECKS_PER_PROBE)
            )
            rows = StepColumns.concat((rows, more))
        self.losses += rows.loss
        return result.observation

    def evaluate(self, rows: StepColumns, probe: Probe) -> ProbeComplete | ProbeIncomplete:
        """Condense the rows of a probe, or say what is missing."""
        return evaluate_probe(
            rows,
            self.config,
            measures=probe.measures,
            has_settled_noise=self.state.has_settled_noise,
            losses_before=self.losses,
        )

    def run_time_probe(self, next_config: ClusterConfig | None) -> StepColumns:
        """Train as long as a probe of time takes; the next one's machines boot meanwhile."""
        iterations = PROBE_ITERATIONS + WARM_UP_ITERATIONS
        if next_config is None or not adds_machines(self.machines.held, next_config):
            return self.train_iterations("probe", iterations)
        alone = max(iterations - math.ceil(self.overheads.boot / self.mean_step_time), 0)
        early = self.train_iterations("probe", alone) if alone else StepColumns()
        self.machines = PaidMachines(next_config, self.overheads.boot)
        return StepColumns.concat((early, self.train_iterations("probe", iterations - alone)))

    def train(self, watch: DriftCheck | None) -> None:
        """Train to the target, looking back every now and then."""
        while not self.job.is_finished:
            rows = self.train_iterations(
                "train", UNBOUNDED_ITERATIONS if watch is None else watch.every
            )
            if watch is not None and not self.job.is_finished:
                found = watch.replan(self.state, self.config, rows, self.remainder)
                if found is not None:
                    self.apply_replanning(found)

    @property
    def remainder(self) -> Remainder:
        """What is left of the target by what the workers counted, and of the limits."""
        state, spent = self.state, self.intervals
        most = math.inf if state.most_epochs is None else state.most_epochs
        rest = Remainder(None, most - self.counted_progress)
        if state.expected_epochs is not None:
            rest = replace(rest, epochs=state.expected_epochs - self.counted_progress)
        if not isinstance(state.objective, ConstrainedObjective):
            return rest
        cap, longest = state.objective.max_cost, state.objective.max_time
        return replace(
            rest,
            money=None if cap is None else cap - sum(interval.cost for interval in spent),
            time=None if longest is None else longest - sum(each.seconds for each in spent),
        )

    def apply_replanning(self, found: Replanning) -> None:
        """Go on by the new noise scale, on a better configuration where there is one."""
        self.state = replace(self.state, drifted_noise_scale=found.noise_scale)
        fitted = fit_model(self.state)
        assert fitted is not None
        better = self.config if found.better is None else found.better.config
        self.switch_config(better, fitted.model.statistical)
        self.machines = PaidMachines(self.config)

    def switch_config(self, config: ClusterConfig, law: EpochsLaw) -> None:
        """Resize: machines boot while the old configuration trains, then all pause.

        From then on an iteration counts as many reference epochs as the law says, right or wrong.
        """
        if self.provisional_progress and self.state.has_settled_noise:
            # What was counted by noise that had not settled is counted anew.
            corrected = self.iteration_progress(law, self.config)
            self.counted_progress += self.provisional_progress * (
                corrected / self.progress_per_iteration - 1
            )
            self.provisional_progress = 0.0
        if config != self.config:
            self.resize(config)
        self.progress_per_iteration = self.iteration_progress(law, config)

    def iteration_progress(self, law: EpochsLaw, config: ClusterConfig) -> float:
        """Reference epochs of one iteration by a law."""
        state = self.state
        return law.progress_per_iteration(
            config.global_batch, state.reference_batch, state.dataset_size
        )

    def resize(self, config: ClusterConfig) -> None:
        """Change the configuration, unless training ends before the machines are ready."""
        if adds_machines(self.machines.held, config):
            self.machines = PaidMachines(config, self.overheads.boot)
        if self.machines.ready_in > 0 and adds_machines(self.config, config):
            self.train_iterations(
                "boot", max(round(self.machines.ready_in / self.mean_step_time), 1)
            )
        if not self.job.is_finished:
            both = resize_price_per_hour(self.config, self.machines.held, self.state.price)
            pause = self.overheads.pause + self.setup_seconds(config.stack)
            pause += self.state.space.switch_seconds(self.config.stack, config.stack)
            self.config = config
            self.record_interval(SimulatedInterval(config, "pause", pause, both, 0))

    def setup_seconds(self, stack: str) -> float:
        """Return what a stack takes until it can be trained with; nothing the second time."""
        options = {option.name: option for option in self.state.space.stacks}
        if stack in self.ready_stacks or stack not in options:
            return 0.0
        self.ready_stacks.add(stack)
        return options[stack].setup_seconds

    @property
    def mean_step_time(self) -> float:
        """Mean seconds of an iteration where the job is."""
        return max(self.job.compute_time(self.config) + self.job.sync_time(self.config), 1e-3)

    def train_iterations(self, purpose: IntervalPurpose, iterations: int) -> StepColumns:
        """Train the configuration as it stands, and record it, with the machines that stand by."""
        longest = self.machines.until_released(self.config, self.overheads.boot)
        most = min(iterations, max(math.ceil(longest / self.mean_step_time), 1))
        rows = self.job.advance(self.config, most)
        held = resize_price_per_hour(self.config, self.machines.held, self.state.price)
        seconds = sum(rows.step_time)
        self.record_interval(SimulatedInterval(self.config, purpose, seconds, held, len(rows)))
        self.counted_progress += len(rows) * self.progress_per_iteration
        self.provisional_progress += (
            len(rows) * self.progress_per_iteration * (not self.state.has_settled_noise)
        )
        self.machines = self.machines.after(seconds, self.config)
        if most < iterations and not self.job.is_finished:
            self.machines = PaidMachines(self.config)
            return StepColumns.concat((rows, self.train_iterations(purpose, iterations - most)))
        return rows

    def record_interval(self, interval: SimulatedInterval) -> None:
        """Append an interval, or lengthen the last one where nothing has changed since."""
        if interval.purpose != "pause" and not interval.iterations:
            return  # training has ended
        last = self.intervals[-1] if self.intervals else None
        if last is not None and last.is_continued_by(interval):
            interval = replace(
                last,
                seconds=last.seconds + interval.seconds,
                iterations=last.iterations + interval.iterations,
            )
            self.intervals.pop()
        self.intervals.append(interval)

    def search_overhead(self, config: ClusterConfig) -> tuple[float, float]:
        """Seconds and dollars so far, beyond what one configuration takes for as much training."""
        useful = self.job.seconds_to(config, self.job.progress)
        cost = useful * price_per_hour_of(config, self.state.price) / 3600
        return (
            sum(interval.seconds for interval in self.intervals) - useful,
            sum(interval.cost for interval in self.intervals) - cost,
        )


def progress_law(decision: Probe | TrainOn, state: PlanningState) -> EpochsLaw:
    """Return the law by which progress counts; before any probe epochs depend on no batch."""
    match decision:
        case TrainOn(model=model):
            return model.statistical
        case Probe():
            return fit_epochs_law(state.observations, state.kappa, laws=state.laws)


def adds_machines(old: ClusterConfig, new: ClusterConfig) -> bool:
    """Tell whether machines have to be started for a resize."""
    return new.machine_type != old.machine_type or new.machines > old.machines


def resize_price_per_hour(old: ClusterConfig, new: ClusterConfig, price: PriceModel) -> float:
    """Dollars per hour in a resize.

    New machines are paid before they train, old ones until they are deleted.
    """
    prices = (price_per_hour_of(old, price), price_per_hour_of(new, price))
    return max(prices) if new.machine_type == old.machine_type else sum(prices)


def prediction_errors(predicted: TradeoffCurve, truth: TradeoffCurve) -> dict[ClusterConfig, float]:
    """Return the relative error of predicted time by configuration.

    A relative curve tells ratios only, so the truth is made relative to its start as well.
    """
    start = truth.points[0].time if predicted.basis == "relative" else 1.0
    true = {point.config: point.time / start for point in truth.points}
    return {
        point.config: ratio_or_one(point.time, true[point.config]) - 1 for point in predicted.points
    }


def ratio_or_one(value: float, base: float) -> float:
    """Return a ratio; 1 where both are 0, such as costs at no price."""
    return value / base if base else 1.0 if value == base else math.inf
