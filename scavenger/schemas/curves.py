"""Schemas of the cost/time curve of a job, and of the decisions that were made on one."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from scavenger.cluster import ClusterConfig
from scavenger.schemas.base import PlainDecimal, View
from scavenger.schemas.jobs import ConfigView
from scavenger.stack import EAGER_NAME


class LimitChancesView(View):
    """How probable it is that a configuration meets each limit, 0 to 1; None without a limit."""

    max_cost: float | None = None
    max_time: float | None = None


class SavingView(View):
    """What a configuration takes less than the one that the job runs on; negative where more."""

    seconds: float
    cost: PlainDecimal


def point_id(workers: int, global_batch: int, stack: str = EAGER_NAME) -> str:
    """Return the name of a configuration among the points of a curve.

    >>> point_id(4, 256), point_id(1, 32, "bf16+fused")
    ('k4-b256', 'k1-b32-bf16.fused')
    >>> point_id(1, 32, "P=2 T=1 M=4 C=layers.3")  # no curve has two layouts that differ in cuts
    'k1-b32-P=2_T=1_M=4'
    """
    name = f"k{workers}-b{global_batch}"
    short = stack.partition(" C=")[0].replace("+", ".").replace(" ", "_")  # cuts come last
    return name if stack == EAGER_NAME else f"{name}-{short}"


class PointView(View):
    """One configuration on the cost/time curve.

    Attributes:
        id: Its name among the points of this curve, such as ``k4-b256``.
        noise: γ among its workers, as φ predicts; 1 for one worker.
        epochs: Reference-independent epochs this batch needs, e(B); relative when the curve is.
        time: Seconds to target, the median of what is possible.
        time_low: Seconds that 10 % of the possible outcomes stay below.
        time_high: Seconds that 90 % of the possible outcomes stay below.
        cost: Dollars to target, the median of what is possible.
        cost_low: Dollars that 10 % of the possible outcomes stay below.
        cost_high: Dollars that 90 % of the possible outcomes stay below.
        source: Whether iteration time was ``measured`` here; otherwise it is ``predicted`` where
            workers and local batch lie in the range that was probed, else ``extrapolated``.
        measured_step_time: Seconds per iteration as measured; None if only predicted.
        on_front: Whether it is feasible, and no other feasible one is both cheaper and faster.
        violations: Limits this configuration breaks, in words; empty when feasible.
        meets: How probable it is that it meets each limit.
        parallel_efficiency: Share of an iteration in which its workers compute, 0 to 1.
        statistical_efficiency: What one of its samples teaches against one at the reference batch:
            epochs at that batch over epochs at its own.
        marginal_price: Dollars for each hour saved against the next cheaper point of the front;
            None off the front, for the cheapest, and on a relative curve.
        dominated_by: Id of the front's point that is no slower, no dearer, and better in one.
        saving: What a move there saves; None where the job runs on no point, and on a relative
            curve. ``switch`` is what the move itself takes.
    """

    id: str
    workers: int
    global_batch: int
    stack: str = EAGER_NAME
    noise: float | None
    epochs: float
    compute_time: float
    sync_time: float
    step_time: float
    measured_step_time: float | None
    time: float
    time_low: float
    time_high: float
    cost: PlainDecimal
    cost_low: PlainDecimal
    cost_high: PlainDecimal
    source: Literal["measured", "predicted", "extrapolated"]
    on_front: bool
    violations: list[str]
    meets: LimitChancesView = LimitChancesView()
    parallel_efficiency: float | None = None
    statistical_efficiency: float | None = None
    marginal_price: PlainDecimal | None = None
    dominated_by: str | None = None
    saving: SavingView | None = None

    @property
    def config(self) -> ClusterConfig:
        """The configuration, as the library has it."""
        return ClusterConfig(self.workers, self.global_batch, stack=self.stack)


class ProbeView(View):
    """One settled probe and what it took; probes are listed in the order in which they ran.

    Attributes:
        noise: γ_n, measured among the shards of its iterations; None where they had one shard.
        noise_scale: φ in samples.
        compute_time: Seconds of an iteration, as measured.
        sync_time: Seconds of an iteration, as measured.
        iterations: Iterations it took.
        seconds: Seconds it took.
        cost: Dollars it took.
    """

    workers: int
    global_batch: int
    stack: str = EAGER_NAME
    noise: float | None
    noise_scale: float | None
    compute_time: float
    sync_time: float
    iterations: int
    seconds: float
    cost: PlainDecimal
    settled_at: datetime


class ResizeView(View):
    """One change of configuration, as the leader reported it."""

    generation: int
    before: ConfigView | None
    after: ConfigView
    pause: float | None
    iterations_lost: int | None
    why: str
    at: datetime


class LawView(View):
    """One law of an iteration's time, coefficients not negative (seconds and samples).

    With r for ``flatness`` and q for ``overlap``, both 1 for a plain sum:
    ``compute = (compute_fixed^r + (compute_per_sample * b)^r)^(1/r)``;
    ``sync = sync_fixed + sync_per_worker * K`` for K above 1, with ``growth`` log ``log2 K``
    instead of K, and ``sync_across_machines`` more on several machines;
    ``step = (compute^q + sync^q)^(1/q)``.
    """

    compute_fixed: float
    compute_per_sample: float
    flatness: float
    sync_fixed: float
    sync_per_worker: float
    sync_across_machines: float
    growth: str
    overlap: float


class LawShareView(LawView):
    """One of the laws of an iteration's time that are averaged.

    Attributes:
        weight: Its share of the average, as an exponent; all add up to 1.
    """

    weight: float


class LawsView(LawView):
    """The fitted laws.

    An iteration takes the geometric mean of the laws in ``averaged``, by weight; the coefficients
    beside it are those of the heaviest. Epochs are
    ``e(B) = c * (1 + noisy_samples / (B + noise_scale) + B / critical_batch)``, without a term
    whose coefficient is unknown or 0; by the paper's law ``e(B) = c * (noise_floor +
    noise_per_root / sqrt(B))``.

    Attributes:
        spread: Relative standard deviation of an iteration's time where only predicted; None
            where it is not known.
        law: The law of epochs in use, in symbols.
        mean_relative_error: Of the iteration time where it was measured.
        averaged: All laws of an iteration's time, heaviest first; one where a single law is in
            use, none from a controller that knows of no others.
    """

    spread: float | None
    noise_scale: float | None
    critical_batch: float | None
    noisy_samples: float
    noise_floor: float | None
    noise_per_root: float | None
    law: str
    mean_relative_error: float
    averaged: list[LawShareView] = []


class LimitsView(View):
    """Limits that configurations are chosen under, dollars and seconds; None without limit."""

    max_cost: PlainDecimal | None
    max_time: float | None


class SwitchView(View):
    """What a change of configuration takes now: seconds without training, and their dollars."""

    seconds: float
    cost: PlainDecimal


class CalibrationView(View):
    """How good forecasts of the same model were before this curve was drawn.

    Attributes:
        coverage: Share of the jobs that ended within the 80 % interval of their forecast.
        forecasts: How many jobs that is a share of.
        is_degraded: Whether so few of so many held that curves of this model are rough guides only.
    """

    coverage: float
    forecasts: int
    is_degraded: bool = False


# What is counted of a job: auto is what is left while it runs, and else the total.
WantedBasis = Literal["auto", "remaining", "total", "decision"]


class SpentView(View):
    """What a job had taken at some moment: seconds since it began, and dollars."""

    time: float
    cost: PlainDecimal


class StackView(View):
    """An execution stack that a job may use, and what its workers found out about it.

    Attributes:
        name: Its name, such as ``bf16+fused``, or a layout such as ``P=2 T=1 M=4``.
        seconds: Seconds of the longest rehearsal, with compiling; None before any.
        gradient_error: Largest distance of all gradients from those in float64, relative to their
            length; None before a rehearsal.
        memory_share: Memory that a sample takes, relative to the script as it is; None before a
            rehearsal.
        refusal: Why the job cannot use it; empty where it can.
    """

    name: str
    seconds: float | None = None
    gradient_error: float | None = None
    memory_share: float | None = None
    refusal: str = ""


class CurveView(View):
    """The cost/time curve of a job: that of its last choice, or a preview before the first one.

    Attributes:
        as_of: When it was drawn: when the choice was made, or else now, or when the job ended.
        basis: ``total`` in seconds and dollars of the whole job, ``remaining`` of what is left of
            it, or ``relative`` to the start configuration while the epochs to target are unknown.
        spent: What the job had taken when what is left begins: now, or when it was chosen; None
            where that is not known. The total is this and what is left.
        epochs: Reference epochs of the work that was counted when the curve was drawn.
        objective: What the job asks for, in words.
        why: One sentence: which configuration was chosen, and why.
        decision: Number of the choice it belongs to; None where it was drawn for this answer.
        decided_at: When that was.
        limits: What the points are judged by; of what was left, where the basis is that.
        support: Share of posterior samples in which the chosen configuration is chosen too; None
            where nothing is uncertain, or the objective is not the knee.
        runner_up: The configuration chosen in most of the other samples.
        source: Where the models come from: this job's probes or a stored model.
        current: The configuration the job runs on; None before its first and after its end.
        knee_bends: Whether the front bends at ``knee``; where it bends nowhere, that is the end
            of the front where time times cost is least.
        other_knees: Where the front bends, too; only where ``knee_bends``.
        switch: What changing the configuration takes now; None where the job does not run.
        calibration: How good earlier forecasts of this model were; None without any.
        is_finished: Whether the job has ended.
        stacks: The execution stacks it may use, the one it starts with first.
    """

    basis: str
    as_of: datetime
    decision: int | None = None
    decided_at: datetime | None = None
    limits: LimitsView | None = None
    spent: SpentView | None = None
    epochs: float | None = None
    objective: str
    why: str
    source: str
    laws: LawsView | None
    points: list[PointView]
    front: list[ConfigView]
    knee: ConfigView | None
    fastest: ConfigView | None
    cheapest: ConfigView | None
    start: ConfigView
    current: ConfigView | None
    chosen: ConfigView | None
    support: float | None
    runner_up: ConfigView | None
    probes: list[ProbeView]
    resizes: list[ResizeView]
    knee_bends: bool = True
    other_knees: list[ConfigView] = []
    switch: SwitchView | None = None
    calibration: CalibrationView | None = None
    is_finished: bool = False
    stacks: list[StackView] = []


class DecisionView(View):
    """One choice of a job, whose curve is kept.

    Attributes:
        number: Counts the choices of a job from 1; ``?decision=`` of its curve takes it.
        why: One sentence: what was chosen, and why.
        chosen: The configuration; None where none was.
        basis: In what its curve counts, as there.
    """

    number: int
    at: datetime
    why: str
    chosen: ConfigView | None
    basis: str


class DecisionList(View):
    """One page of the choices of a job, oldest first: the first and the newest are kept."""

    decisions: list[DecisionView]
    next_cursor: str | None = None
