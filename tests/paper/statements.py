"""What the paper states, beside what our runs say: every figure recomputed from the runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import fmean, median

from scavenger.cluster import ClusterConfig
from scavenger.models.epochs import LawFamily
from scavenger.offline.simulator.simulation import SimulationOutcome
from scavenger.offline.simulator.summary import saving_over, speedup_over
from scavenger.planning.curve import TradeoffCurve, pareto_front
from scavenger.planning.knee import find_knee
from scavenger.pricing import PriceModel
from tests.paper.evidence import (
    MEMORY_PRICE,
    RESOURCE_PRICE,
    Evidence,
    Knowledge,
    SearchName,
    bulges,
    draw_line,
    knees,
    throughput_knee,
    time_errors,
)
from tests.paper.runs import ACTUAL, EARLIER, SEARCHED
from tests.paper.workload import PROBED_ITERATIONS

RACES = 3
LAWS: tuple[LawFamily, ...] = ("measured", "paper")

Evidences = Sequence[Evidence]

SETTLING = (
    "Settles, but sooner: our tasks are learned in 150 to 400 iterations, and settling is "
    "detected (the loss fell by a fifth, φ is steady over a window) instead of waited for."
)
GROWTH = (
    "Agrees that γ rises from the first iterations on and then levels off. It stays below K: "
    "γ/K = (b + φ)/(B + φ), and φ is 5 and 2.5 times the smallest batch for the digits, but "
    "half of it for the characters."
)
ROOT_LAW = (
    "Agrees for the digits, where φ exceeds most batches. For the characters φ = 240 lies below"
    " every batch, and the root law is off by several times as much as the exact one, which "
    "needs one measured configuration where the root law needs two."
)
WORKERS = (
    "Agrees for the digits, **not for the characters**: γ/K = (b + φ)/(B + φ) falls with K as "
    "soon as b is no longer small beside φ."
)
SAME_SAMPLES = (
    "Agrees exactly: the same samples in the same batches give the same mean gradient, however "
    "they are cut."
)
EPOCHS = (
    "**Contradicts the paper.** The line is straight, but it falls: with a rate scaled linearly "
    "to the batch, larger batches have less noise and need more epochs, e = a + cB."
)
FIXED = (
    "**Contradicts the paper.** Below the best rate every iteration gains the same for every B,"
    " so epochs grow almost like B."
)
HOT = (
    "**The paper's sign appears here**, below the best batch of each rate: noise then keeps "
    "small batches from the target. Many runs there fail, and from B = 384 on no rate that "
    "reaches the target shows it."
)
TIME_BY_NOISE = (
    "Agrees, but not by Eq. 6: time falls with B because fewer, better filled iterations are "
    "needed, although epochs rise."
)
THROUGHPUT = (
    "Agrees in shape. Seconds are assumed, so this shows what Eqs. 8-10 say. The knee lies "
    "beyond the batches the paper trains with, and moves with the length of the axis."
)
DIMINISHING = (
    "Agrees; seconds are assumed. Of the workers added less than half pays off, since compute "
    "shrinks with b = B/K while synchronisation grows with K."
)
KNEES = (
    "ResNets have one knee per batch or none; where they bulge outwards it is the assumed 3 % "
    "roughness. The Transformer's second inflection, at 12 workers, comes from the drop of "
    "iteration time between 12 and 16 that we assume as the paper saw it; Eqs. 8-10 hold no "
    "such drop."
)
MEMORY = (
    "Agrees where memory is all that is paid: towards smaller batches. At real prices of vCPUs "
    "and GiB memory is at most a third of the bill, and knees move little."
)
FULL = (
    "Agrees with the data's laws, e = a + θγ + cB. The paper's hold epochs to fall with B: "
    "fitted to ours, θ is 0. Predicting other seeds is harder by what seeds differ."
)
PARTIAL = "Agrees with the data's laws, from four corners and epochs at two batches."
UNIVERSAL = (
    "In the range or below it: our three jobs were calibrated to similar seconds. A job's own "
    "epochs at the smallest batch are taken as known, as only relative times are averaged."
)
RECIPE = (
    "With nothing known of epochs but at one batch, B_crit = κφ is a fair guess for a scaled "
    "learning rate; the paper's e ∝ γ is wrong in sign."
)
STEP_TIME = (
    "About the 3 % of roughness that no law can know. Epochs differ by seed more than iteration "
    "time does, so errors of 2 % are within one set of runs only."
)
OVERHEAD = (
    "Less, for three reasons: most candidates are timed only, noise is settled where the job "
    "stays, and settling is detected after 700 to 3 500 iterations instead of waited for. What the "
    "whole job takes beyond its search is what the chosen configuration takes beyond the best."
)
SAVINGS = (
    "Costs agree. Time does not reach 2x: in the paper larger batches save epochs too, here "
    "they cost some, and the fastest configuration is not what a knee chooses."
)
PROBE = "Calibrated to agree, not a result."


@dataclass(frozen=True, slots=True)
class Row:
    """One statement.

    Attributes:
        where: The paper's figure or section, and what it states.
        theirs: The paper's value.
        ours: Ours, recomputed.
        why: Where they differ, and why.
    """

    where: str
    theirs: str
    ours: str
    why: str


def state_all(evidences: Evidences) -> tuple[Row, ...]:
    """Return every statement."""
    return tuple(state(evidences) for state in STATEMENTS)


def by_workload(evidences: Evidences, write: Callable[[Evidence], str]) -> str:
    """Write one figure per workload, in the paper's order."""
    return " / ".join(write(evidence) for evidence in evidences)


# ---- Noise and epochs


def state_settling(evidences: Evidences) -> Row:
    """Noise stabilises (Fig. 6)."""
    return Row(
        "Fig. 6, V-B: noise stabilises after some iterations",
        "2 000 / 3 000 / 10 000 iterations",
        by_workload(evidences, lambda e: str(e.runs.trajectories[0].settled_after)) + " iterations",
        SETTLING,
    )


def state_growth(evidences: Evidences) -> Row:
    """Noise grows towards K (III-A)."""
    return Row(
        "III-A, Fig. 6: noise starts low, grows and saturates at K",
        "γ → K",
        "γ/K of 20 workers, start → end: "
        + by_workload(evidences, lambda e: "{:.2f} → {:.2f}".format(*growth(e))),
        GROWTH,
    )


def growth(evidence: Evidence) -> tuple[float, float]:
    """Return γ/K with most workers, smoothed, at the start and at the end of a long run."""
    path = evidence.runs.trajectories[-1]
    return path.noise[0] / path.workers, path.noise[-1] / path.workers


def state_root_law(evidences: Evidences) -> Row:
    """Noise is linear in 1/sqrt(B) (Eq. 7)."""
    return Row(
        "Eq. 7, Fig. 9: γ/K is linear in 1/√B",
        "“low error”",
        "mean error "
        + by_workload(evidences, lambda e: percent(mean_size(e.root_errors())))
        + "; exact law with one φ "
        + by_workload(evidences, lambda e: percent(mean_size(e.exact_errors()))),
        ROOT_LAW,
    )


def state_workers(evidences: Evidences) -> Row:
    """Noise is not sensitive to K (Fig. 9)."""
    return Row(
        "Fig. 9, III-C: γ/K is not sensitive to K",
        "“not very sensitive”",
        "K = 8 over K = 20, mean over B: "
        + by_workload(evidences, lambda e: f"{workers_ratio(e):.2f}"),
        WORKERS,
    )


def workers_ratio(evidence: Evidence) -> float:
    """Return γ/K with fewest workers over that with most, mean over batches."""
    noise = evidence.normalized_noise()
    low, high = evidence.workload.space.workers[0], evidence.workload.space.workers[-1]
    return fmean(
        noise[ClusterConfig(low, batch)] / noise[ClusterConfig(high, batch)]
        for batch in evidence.batches
    )


def state_same_samples(evidences: Evidences) -> Row:
    """Epochs do not depend on K (III-C)."""
    counts = "; ".join(
        f"{task_of(evidence)} {', '.join(map(str, evidence.runs.same_samples.values()))}"
        for evidence in evidences
        if evidence.runs.same_samples
    )
    return Row(
        "III-C, Fig. 8: epochs to an accuracy do not depend on the workers",
        "“not sensitive”",
        f"iterations with 8, 12, 16, 20 workers: {counts}",
        SAME_SAMPLES,
    )


def task_of(evidence: Evidence) -> str:
    """Name of the small task."""
    return evidence.workload.build.__name__


def state_epochs(evidences: Evidences) -> Row:
    """Epochs are linear in noise (Eq. 6)."""
    return Row(
        "Eq. 6, Fig. 8: epochs grow linearly with γ/K",
        "rising line",
        "slope θ in epochs per γ/K (R²), scaled learning rate: " + by_workload(evidences, slope),
        EPOCHS,
    )


def slope(evidence: Evidence) -> str:
    """Write the slope of epochs over noise at the target."""
    points = evidence.epochs_by_noise(evidence.workload.target)
    line = draw_line(*zip(*points, strict=True))
    return f"{line.slope:+.0f} ({line.explained:.2f})".replace("-", "−")


def state_fixed(evidences: Evidences) -> Row:
    """Epochs by batch with a learning rate that stays."""
    return Row(
        "Eq. 6 with a fixed learning rate, well below the best",
        "rising line",
        "epochs at largest over smallest batch: " + by_workload(evidences, fixed_ratio),
        FIXED,
    )


def fixed_ratio(evidence: Evidence) -> str:
    """Write how epochs change over the batches with a learning rate that stays."""
    target, small, large = evidence.workload.target, evidence.batches[0], evidence.batches[-1]
    usual, fixed = (recipe.name for recipe in evidence.workload.recipes[:2])
    # At its own batch the scaled learning rate is the fixed one.
    before = evidence.runs.epochs(usual, small, target, EARLIER)
    after = evidence.runs.epochs(fixed, large, target)
    return "never" if before is None or after is None else f"{after / before:.2f}"


def state_hot(evidences: Evidences) -> Row:
    """Where the paper's sign appears."""
    evidence = evidences[1]
    recipes = [recipe for recipe in evidence.workload.recipes if recipe.name.startswith("hot")]
    return Row(
        "Eq. 6 with a fixed learning rate, too hot for small batches",
        "rising line",
        f"{task_of(evidence)}: "
        + "; ".join(hot_batches(evidence, recipe.name, recipe.rate) for recipe in recipes),
        HOT,
    )


def hot_batches(evidence: Evidence, recipe: str, rate: float) -> str:
    """Write epochs by batch, with the runs that never reached the target."""
    found = [
        (batch, evidence.runs.epochs(recipe, batch, evidence.workload.target))
        for batch in evidence.workload.recipe(recipe).batches
    ]
    failed = [str(batch) for batch, epochs in found if epochs is None]
    best = min((epochs, batch) for batch, epochs in found if epochs is not None)
    return f"rate {rate:g} fails at B = {', '.join(failed) or 'none'}, best at {best[1]}"


def state_time_by_noise(evidences: Evidences) -> Row:
    """More noise, more time (Fig. 7)."""
    return Row(
        "Fig. 7: more noise, more time; small batches are noisier",
        "rising",
        "correlation of time with γ/K: " + by_workload(evidences, time_correlation),
        TIME_BY_NOISE,
    )


def time_correlation(evidence: Evidence) -> str:
    """Write the correlation of total time and normalised noise over batches, at 16 workers."""
    noise = evidence.normalized_noise()
    times = {point.config: point.time for point in evidence.actual_curve().points}
    own = [config for config in noise if config.workers == 16]
    line = draw_line([noise[c] for c in own], [times[c] for c in own])
    return f"{line.explained**0.5 * (1 if line.slope > 0 else -1):+.2f}"


# ---- Time and cost


def state_throughput(evidences: Evidences) -> Row:
    """Throughput saturates (Fig. 5)."""
    return Row(
        "Fig. 5: throughput grows with B, then saturates",
        "a knee",
        "knee at B = " + by_workload(evidences, lambda e: str(throughput_knee(e))),
        THROUGHPUT,
    )


def state_diminishing(evidences: Evidences) -> Row:
    """More workers bring less and less (Figs. 1, 10)."""
    return Row(
        "Figs. 1, 10: more workers bring diminishing returns",
        "4 → 16 workers: 3 times as fast",
        "8 → 20 workers (2.5 times as many), largest batch: "
        + by_workload(evidences, lambda e: f"{speedup(e, e.batches[-1]):.2f}")
        + " times as fast",
        DIMINISHING,
    )


def speedup(evidence: Evidence, batch: int) -> float:
    """Return how much faster most workers are than fewest."""
    workers = evidence.workload.space.workers
    slow, fast = (
        evidence.workload.step_time(ClusterConfig(k, batch)) for k in (workers[0], workers[-1])
    )
    return slow / fast


def state_knees(evidences: Evidences) -> Row:
    """One knee for ResNets, two for the Transformer (Fig. 10)."""
    return Row(
        "Fig. 10: bends of each batch's curve",
        "ResNets one; Transformer two, at K = 12 and 16",
        by_workload(evidences, lambda e: bends(e, e.actual_curve())),
        KNEES,
    )


def bends(evidence: Evidence, curve: TradeoffCurve) -> str:
    """Write the workers at the knees of each batch's curve, and where it bulges outwards."""
    found = [{p.config.workers for p in knees(curve, batch)} for batch in evidence.batches]
    outward = [{p.config.workers for p in bulges(curve, batch)} for batch in evidence.batches]
    return f"knee at K = {listed(found)}, bulge at {listed(outward)}"


def listed(found: Sequence[set[int]]) -> str:
    """Write a set of worker counts for each batch."""
    return ", ".join("+".join(map(str, sorted(workers))) or "none" for workers in found)


def state_memory(evidences: Evidences) -> Row:
    """Knees move when memory is paid (Fig. 12)."""
    both = moved(evidences, RESOURCE_PRICE)
    return Row(
        "V-D, Fig. 12: with memory paid by the GiB the knees move",
        "they move for all",
        f"{moved(evidences, MEMORY_PRICE)}; paid by vCPU and GiB: {both}",
        MEMORY,
    )


def moved(evidences: Evidences, price: PriceModel) -> str:
    """Write the knees of all configurations, (K, B), at the usual and at another price."""
    return by_workload(
        evidences, lambda e: f"{knee(e.actual_curve())} → {knee(e.actual_curve(price))}"
    )


def knee(curve: TradeoffCurve) -> str:
    """Write the knee of a whole curve."""
    config = find_knee(pareto_front(curve.points)).point.config
    return f"({config.workers}, {config.global_batch})"


# ---- Prediction


def state_full(evidences: Evidences) -> Row:
    """Error of full search (Fig. 11)."""
    return error_row(evidences, "full", "Fig. 11: error of full search", "0.5-3.5 %", FULL)


def state_partial(evidences: Evidences) -> Row:
    """Error of partial search (Fig. 11)."""
    theirs = "ResNets 4 %, Transformer < 2 %"
    return error_row(evidences, "partial", "Fig. 11: error of partial search", theirs, PARTIAL)


def state_universal(evidences: Evidences) -> Row:
    """Error of the universal average (Fig. 11)."""
    where = "Fig. 11: error of the universal average, no search"
    return error_row(evidences, "universal", where, "4-20 %", UNIVERSAL)


def error_row(evidences: Evidences, strategy: SearchName, where: str, theirs: str, why: str) -> Row:
    """Return the mean errors of one strategy, with the data's laws and the paper's."""
    ours = "; ".join(f"laws {laws}: {errors(evidences, strategy, laws)}" for laws in LAWS)
    other = errors(evidences, strategy, "measured", "earlier runs")
    return Row(where, theirs, f"{ours}; from other seeds: {other}", why)


def errors(
    evidences: Evidences, strategy: SearchName, laws: LawFamily, knowledge: Knowledge = "same runs"
) -> str:
    """Write mean errors of predicted time."""
    return by_workload(
        evidences,
        lambda e: percent(mean_size(time_errors(evidences, e, strategy, laws, knowledge))),
    )


def state_recipe(evidences: Evidences) -> Row:
    """Error of partial search that knows no earlier run but the recipe's epochs."""
    ours = "; ".join(
        f"laws {laws}: {errors(evidences, 'partial', laws, 'recipe')}" for laws in LAWS
    )
    where = "III-C: partial search that knows epochs at the smallest batch only"
    return Row(where, "not told", ours, RECIPE)


def state_step_time(evidences: Evidences) -> Row:
    """Error of predicted iteration time alone (III-D)."""
    return Row(
        "Eqs. 8-10: iteration time from four corners",
        "not told apart",
        by_workload(evidences, lambda e: percent(step_error(e)))
        + "; epochs of other seeds differ by "
        + by_workload(evidences, lambda e: percent(seed_error(e))),
        STEP_TIME,
    )


def step_error(evidence: Evidence) -> float:
    """Mean error of iteration time after partial search, where it was not measured."""
    runs = [evidence.searched("partial", "measured", "same runs", seed) for seed in SEARCHED]
    return mean_size(
        [
            point.step_time / evidence.workload.step_time(point.config) - 1
            for run in runs
            for point in run.curve.points
            if point.measured_step_time is None
        ]
    )


def seed_error(evidence: Evidence) -> float:
    """Mean difference of median epochs between the earlier runs and the predicted ones."""
    return mean_size(
        [evidence.epochs(b, EARLIER) / evidence.epochs(b, ACTUAL) - 1 for b in evidence.batches]
    )


# ---- Search


def state_overhead(evidences: Evidences) -> Row:
    """Overhead of partial search against the oracle (V-B)."""
    return Row(
        "V-B: partial search against an oracle",
        "+13 % time, +9 % cost; 0.83 h, $0.89",
        by_workload(evidences, overhead),
        OVERHEAD,
    )


@cache
def races(evidence: Evidence) -> list[SimulationOutcome]:
    """Race partial search against the oracle in several worlds."""
    return [evidence.race("measured", seed) for seed in range(RACES)]


def overhead(evidence: Evidence) -> str:
    """Write the median overhead: of searching at all, and of the whole job."""
    outcomes = races(evidence)
    # Of what the choice takes from the first iteration on.
    time = median(outcome.search_time / outcome.chosen_truth.time for outcome in outcomes)
    cost = median(outcome.search_cost / outcome.chosen_truth.cost for outcome in outcomes)
    hours = median(outcome.search_time for outcome in outcomes) / 3600
    dollars = median(outcome.search_cost for outcome in outcomes)
    longer = median(outcome.time_overhead for outcome in outcomes)
    paid = median(outcome.cost_overhead for outcome in outcomes)
    return (
        f"search {signed(time)} time, {signed(cost)} cost ({hours:.2f} h, ${dollars:.2f}); "
        f"whole job {signed(longer)} time, {signed(paid)} cost"
    )


def signed(share: float) -> str:
    """Write a change."""
    return f"{100 * share:+.0f} %".replace("-", "−")


def state_savings(evidences: Evidences) -> Row:
    """Savings against arbitrary configurations (V-B)."""
    return Row(
        "V-B: against arbitrary configurations",
        "can be > 2x faster, > 40 % cheaper",
        by_workload(evidences, savings),
        SAVINGS,
    )


def savings(evidence: Evidence) -> str:
    """Write time and cost against the worst and the median configuration, search included."""
    outcomes = races(evidence)
    worst, middle = (median(speedup_over(o, pick) for o in outcomes) for pick in (max, median))
    saved, usual = (median(saving_over(o, pick) for o in outcomes) for pick in (max, median))
    return f"up to {worst:.1f}x and {whole(saved)}, of the median {middle:.1f}x and {whole(usual)}"


def state_probe(evidences: Evidences) -> Row:
    """Seconds of one probe, which were calibrated (V-B)."""
    return Row(
        "V-B: 20 iterations of one configuration",
        "17-35 s",
        by_workload(evidences, probe_range),
        PROBE,
    )


def probe_range(evidence: Evidence) -> str:
    """Write how long probes take, over the space."""
    seconds = [PROBED_ITERATIONS * evidence.workload.step_time(c) for c in evidence.workload.space]
    return f"{min(seconds):.0f}-{max(seconds):.0f} s"


def mean_size(errors: Sequence[float]) -> float:
    """Mean of absolute values."""
    return fmean(map(abs, errors))


def whole(share: float) -> str:
    """Write a share without decimals."""
    return f"{100 * share:.0f} %"


def percent(share: float) -> str:
    """Write a share."""
    return f"{share:.1%}".replace("%", " %")


STATEMENTS = (
    state_throughput,
    state_diminishing,
    state_settling,
    state_growth,
    state_root_law,
    state_workers,
    state_same_samples,
    state_time_by_noise,
    state_epochs,
    state_fixed,
    state_hot,
    state_knees,
    state_probe,
    state_full,
    state_partial,
    state_universal,
    state_recipe,
    state_step_time,
    state_overhead,
    state_savings,
    state_memory,
)
