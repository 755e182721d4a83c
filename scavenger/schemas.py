"""Schemas of the REST API: what the controller answers, as the client and the command line read it.

Pydantic models, because other programs read these documents. Seconds and samples are numbers,
money is a decimal string with its currency, times are RFC 3339 in UTC.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, PlainSerializer

from scavenger.money import format_dollars


class View(BaseModel):
    """Base of every answer: frozen. Old clients ignore fields that newer controllers add.

    The controller builds a view from a value whose attributes have the names of the view's fields.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", from_attributes=True)


class JobPhase(StrEnum):
    """Phase of a job; the last four are final."""

    #: Accepted; no machine is requested yet.
    PENDING = "pending"
    #: Machines are requested, and no worker has trained.
    STARTING = "starting"
    #: Trains on configurations that are measured for the choice.
    PROBING = "probing"
    #: Trains on the chosen configuration.
    TRAINING = "training"
    #: Reached its target.
    SUCCEEDED = "succeeded"
    #: Ended without reaching its target: its command failed, or nothing meets its limits.
    FAILED = "failed"
    #: Ended by a user.
    CANCELLED = "cancelled"
    #: Reached max_cost or max_time.
    CAPPED = "capped"

    @property
    def is_final(self) -> bool:
        """Tell whether a job never leaves this phase."""
        return self in (JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED, JobPhase.CAPPED)


class UserRole(StrEnum):
    """Role of a token; each includes the permissions of the ones before it."""

    VIEWER = "viewer"
    SUBMITTER = "submitter"
    OPERATOR = "operator"
    ADMIN = "admin"

    def covers(self, other: UserRole) -> bool:
        """Tell whether this role includes another.

        >>> UserRole.OPERATOR.covers(UserRole.VIEWER)
        True
        """
        order = list(UserRole)
        return order.index(self) >= order.index(other)


class MoneyView(View):
    """An exact amount of money."""

    amount: Decimal
    currency: str = "USD"

    def __str__(self) -> str:
        amount = format_dollars(float(self.amount))
        return amount if self.currency == "USD" else f"{amount.replace('$', '')} {self.currency}"


class ConfigView(View):
    """A configuration: workers (K) and global batch (B, samples)."""

    workers: int
    global_batch: int

    def __str__(self) -> str:
        return f"K={self.workers} B={self.global_batch}"


class CostView(View):
    """Spending and limits of a job, which are never added up.

    Attributes:
        accrued: Spent so far, by the intervals in which VMs were observed to exist.
        search: Part of ``accrued`` that was spent while probing.
        cap: The most this job may spend; None without a limit.
        forecast: Predicted cost of the whole job; None while unknown.
        reserved: Held back besides ``accrued`` for machines that exist: what they may still cost if
            no controller answers them again.
    """

    accrued: MoneyView
    search: MoneyView
    cap: MoneyView | None
    forecast: MoneyView | None
    reserved: MoneyView = MoneyView(amount=Decimal(0))


class EtaView(View):
    """When a job should reach its target, as a band: one job in ten ends before or after it.

    Attributes:
        p10: One job in ten ends before this.
        p50: Half of them do.
        p90: Nine of ten do.
    """

    p10: datetime
    p50: datetime
    p90: datetime


class IndicatorsView(View):
    """Noise and timing of the running configuration.

    Attributes:
        noise: γ_n, measured among the shards of an iteration; None where iterations have one shard.
        noise_scale: φ in samples.
        compute_time: Seconds.
        sync_time: Seconds.
        step_time: Seconds.
    """

    noise: float | None
    noise_scale: float | None
    compute_time: float
    sync_time: float
    step_time: float


class ProgressView(View):
    """Progress of training.

    Attributes:
        iteration: Iterations applied.
        epochs: Reference epochs of progress.
        expected_epochs: Reference epochs the target is expected to need; None while unknown.
        max_epochs: Reference epochs after which training stops anyway.
        metrics: Last finite value of everything the script logged.
        diverged: Which of the loss and the target's metric is NaN or infinite by now, and since
            when, in words; None while none is.
    """

    iteration: int
    epochs: float
    expected_epochs: float | None
    max_epochs: float
    metrics: dict[str, float]
    diverged: str | None = None


class AdviceView(View):
    """Configuration that an advised job would do better with.

    Attributes:
        config: The configuration; None when none meets the limits.
        why: One sentence.
    """

    config: ConfigView | None
    why: str


class JobView(View):
    """One job.

    Attributes:
        id: ``job_`` and a ULID-like sortable id.
        project: The project it belongs to.
        name: Name the user gave, or the model key.
        model_key: Key of the stored model it learns or reuses.
        phase: Its phase.
        reason: One sentence about the phase: what happened and what to do.
        worker_exit_code: Exit code of the user's command when that failed the job.
        diverged: Whether the job failed or reached a limit while its loss or its target's metric
            was NaN or infinite.
        lacks_capacity: Whether it has no machine, or had none when it failed or reached a limit,
            because the clouds gave none when they were asked last.
        target: Configuration wanted now.
        applied: Configuration all workers confirmed.
        generation: Counts resizes.
        workers_alive: VMs of workers that exist now.
        servers_alive: VMs of parameter servers that exist now.
        search: What the search did or does, one sentence ("no search: …" when a model was stored).
        advice: What a job of level ``advise`` would choose; None until it can tell.
        eta: When it should reach its target; None while that is unknown, and once it has ended.
        checkpoints: Where the job's checkpoints are: a directory, as its machines see it, or a
            folder of a bucket; None where each machine keeps its own. Only the user deletes the
            newest.
        preference: The objective that an order chooses by; ``auto`` while the job's own is planned
            by, ``pinned`` where an order has named a configuration.
        pinned: That configuration.
        is_paused: Whether an order has paused it: no machine runs, or the last are ending.
        open_orders: How many orders are still to be obeyed.
        spec: The JobSpec as stored, with limits and objective as they were changed since.
    """

    id: str
    name: str
    model_key: str
    phase: JobPhase
    reason: str
    worker_exit_code: int | None
    target: ConfigView | None
    applied: ConfigView | None
    generation: int
    workers_alive: int
    search: str
    progress: ProgressView
    indicators: IndicatorsView | None
    cost: CostView
    elapsed: float
    created_at: datetime
    finished_at: datetime | None
    servers_alive: int = 0
    advice: AdviceView | None = None
    checkpoints: str | None = None
    diverged: bool = False
    lacks_capacity: bool = False
    preference: Literal["auto", "knee", "cheapest", "fastest", "pinned"] = "auto"
    pinned: ConfigView | None = None
    is_paused: bool = False
    open_orders: int = 0
    project: str = "default"
    eta: EtaView | None = None
    spec: dict[str, Any]


class JobList(View):
    """One page of jobs, newest first."""

    jobs: list[JobView]
    next_cursor: str | None


# Money of a curve: a decimal string without an exponent, since a curve has one currency.
PlainDecimal = Annotated[
    Decimal, PlainSerializer(lambda amount: f"{amount:f}", return_type=str, when_used="json")
]


class LimitChancesView(View):
    """How probable it is that a configuration meets each limit, 0 to 1; None without a limit."""

    max_cost: float | None = None
    max_time: float | None = None


def point_id(workers: int, global_batch: int) -> str:
    """Return the name of a configuration among the points of a curve.

    >>> point_id(4, 256)
    'k4-b256'
    """
    return f"k{workers}-b{global_batch}"


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
    """

    id: str
    workers: int
    global_batch: int
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
    marginal_price: float | None = None
    dominated_by: str | None = None


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
    noise: float | None
    noise_scale: float | None
    compute_time: float
    sync_time: float
    iterations: int
    seconds: float
    cost: float
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

    max_cost: float | None
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
    """

    coverage: float
    forecasts: int


# What is counted of a job: auto is what is left while it runs, and else the total.
WantedBasis = Literal["auto", "remaining", "total", "decision"]


class SpentView(View):
    """What a job had taken at some moment: seconds since it began, and dollars."""

    time: float
    cost: PlainDecimal


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


class EventView(View):
    """One event of a job, with a sentence that explains it.

    Attributes:
        sequence: Its number among the events of all jobs, which grows, with gaps.
        job: Its job; empty in an answer of a controller of before.
    """

    sequence: int
    job: str = ""
    at: datetime
    kind: str
    message: str
    data: dict[str, Any]


class EventList(View):
    """One page of events, oldest first."""

    events: list[EventView]
    next_cursor: str | None = None


class JobNewsView(View):
    """What changed about a job, as a stream says it.

    Attributes:
        tag: ETag of the job; one that differs from that of an earlier answer says that it is old.
        accrued: Spent so far.
    """

    job: str
    tag: str
    phase: JobPhase
    progress: ProgressView
    accrued: MoneyView
    eta: EtaView | None = None


class StoredModelView(View):
    """A fitted model that later jobs of the same signature reuse.

    Attributes:
        epochs_to_target: Reference epochs each target took, by target in words.
    """

    model_key: str
    signature: str
    laws: LawsView
    reference_batch: int
    epochs_to_target: dict[str, float]
    jobs: int
    updated_at: datetime


class StoredModelList(View):
    """One page of stored models, newest first."""

    models: list[StoredModelView]
    next_cursor: str | None = None


class OrphanView(View):
    """A machine in the cloud that no running job accounts for, or that needs an explanation.

    Attributes:
        machine: The cloud's name of the machine.
        fate: ``end``, ``wait`` for a second sweep, ``hold`` until a user confirms, ``keep`` a
            machine that works for a job, ``spare`` one that is not provably of this installation.
        reason: Why it is orphaned, or why it is spared.
        since: Since when every sweep found it orphaned; None where it is not.
    """

    machine: str
    launch_key: str
    job: str
    fate: str
    reason: str
    since: datetime | None


class SweepView(View):
    """One sweep for orphaned machines.

    Attributes:
        cloud: Name of the entry in the clouds file.
        shown: Machines of this installation that the cloud listed as alive.
        ended: Machines whose termination the cloud accepted.
        tripped: Why machines are held back, in one sentence; None where none are.
        confirmed_at: When a user confirmed that the machines held back are terminated.
    """

    number: int
    cloud: str
    at: datetime
    shown: int
    suspects: list[OrphanView]
    ended: int
    tripped: str | None
    confirmed_at: datetime | None


class SweepList(View):
    """One page of sweeps, newest first."""

    sweeps: list[SweepView]
    next_cursor: str | None = None


class TokenView(View):
    """A token of a user, without its secret.

    Attributes:
        id: The first part of the token, which is no secret.
        project: Its project, or ``*`` for all.
        created_by: Id of the token that created it, or ``serve``.
    """

    id: str
    name: str
    project: str
    role: UserRole
    created_at: datetime
    created_by: str
    expires_at: datetime | None
    revoked_at: datetime | None
    last_used_at: datetime | None


class NewTokenView(TokenView):
    """A new token with its secret, which is never shown again."""

    token: str


class TokenList(View):
    """Tokens, newest first."""

    tokens: list[TokenView]


class AuditEntryView(View):
    """One request that asked for a change.

    Attributes:
        who: Id of its token.
        route: Path of the request, with the names of its parameters.
        target: Id of its job or token, if the path has one.
        status: HTTP status of the answer.
    """

    number: int
    at: datetime
    who: str
    project: str
    method: str
    route: str
    target: str | None
    status: int
    request_id: str


class AuditList(View):
    """Requests that asked for changes, newest first."""

    entries: list[AuditEntryView]
    next_cursor: str | None


PriceUnit = Literal["machine_hour", "vcpu_hour", "gib_hour", "disk_gib_month", "address_hour"]
PriceMarket = Literal["on_demand", "spot"]
# What is not finite is refused in words, like what is not plausible.
AnyDecimal = Annotated[Decimal, Field(allow_inf_nan=True)]
ItemName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]


class PriceRow(BaseModel):
    """One row of a price table; what is plausible, the controller judges.

    Attributes:
        provider: As in the clouds file.
        region: The cloud's word.
        item: The cloud's word for what is rented: a machine type, a family of custom sizes, a kind
            of disk, or ``public-ipv4``.
        unit: What the price is of.
        price: Dollars for one unit.
        memory_gib: Of a machine.
        accelerator: The cloud's word; empty where it has none.
        accelerators: How many.
        as_of: When it was so; None for now.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    provider: ItemName
    region: ItemName
    item: ItemName
    unit: PriceUnit = "machine_hour"
    market: PriceMarket = "on_demand"
    price: AnyDecimal
    vcpus: Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)] | None = None
    memory_gib: Annotated[float, Field(ge=0, le=1_000_000, allow_inf_nan=False)] | None = None
    accelerator: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{0,62}$")] = ""
    accelerators: Annotated[int, Field(ge=0, le=1024)] = 0
    as_of: AwareDatetime | None = None


class PriceView(View):
    """What one item costs in one region and market, as the controller plans with it.

    Attributes:
        source: ``shipped`` with the controller, ``imported`` by an admin, or told by the ``cloud``.
    """

    provider: str
    region: str
    item: str
    unit: PriceUnit
    market: PriceMarket
    price: AnyDecimal
    vcpus: float | None = None
    memory_gib: float | None = None
    accelerator: str = ""
    accelerators: int = 0
    as_of: datetime
    source: Literal["shipped", "imported", "cloud"]


class PriceList(View):
    """One page of prices, by provider, region and item."""

    prices: list[PriceView]
    next_cursor: str | None = None


class PriceImportView(View):
    """What became of an import.

    Attributes:
        accepted: How many prices hold from now on; older ones than those that hold do not count.
        refused: Why others are not believed, a sentence each.
    """

    accepted: int
    refused: list[str]


class OfferView(View):
    """One place to rent one kind of machine.

    Attributes:
        cloud: Name of the entry in the clouds file.
        zone: The cloud's word; empty where it has none.
        price_per_hour: Of the machine with its disk and its public address.
        is_upper_bound: Whether that is the price on demand, because no price on spot is known.
        as_of: When the price was so.
        memory_gib: None where it is not known, as ``vcpus``.
        shortage: Why the cloud gave no such machine there just now; None where it was not so.
        shortage_until: When it is asked again.
    """

    cloud: str
    zone: str
    machine_type: str
    market: PriceMarket
    price_per_hour: MoneyView
    is_upper_bound: bool
    as_of: datetime
    source: str
    vcpus: float | None
    memory_gib: float | None
    accelerator: str
    accelerators: int
    shortage: str | None = None
    shortage_until: datetime | None = None


class OfferList(View):
    """One page of offers, cheapest first."""

    offers: list[OfferView]
    next_cursor: str | None = None


class CostEntryView(View):
    """What one job, model, project, cloud or day cost.

    Attributes:
        key: Id of the job, key of the model, name of the project or cloud, or date.
        name: Name of the job; empty otherwise.
    """

    key: str
    name: str = ""
    cost: MoneyView


class CostReportView(View):
    """One page of what the machines of a project cost.

    Attributes:
        by: What an entry is: ``job``, ``model``, ``project``, ``cloud`` or ``day``.
        until: Machines that exist cost more from then on.
        total: Of all entries, those of other pages too.
        since: What was spent before is left out; None where all counts.
        not_included: What a cloud may bill besides, a sentence each.
    """

    by: str
    until: datetime
    total: MoneyView
    entries: list[CostEntryView]
    next_cursor: str | None = None
    since: datetime | None = None
    not_included: list[str] = []


class CodeView(View):
    """The code of a hash, which a controller has for a project.

    Attributes:
        sha256: SHA-256 of the archive; ``run.code`` of a job names it.
        size: Bytes of the archive.
    """

    sha256: str
    size: int
    created_at: datetime


class HealthView(View):
    """Answer of a controller that works: ``status`` is ``ok``."""

    status: str


class CheckView(View):
    """One check.

    Attributes:
        state: ``ok``, ``warning`` or ``failed``.
        found: The finding, in one sentence.
        remedy: What to do next; empty where nothing is wrong.
    """

    name: str
    state: str
    found: str
    remedy: str = ""


class DiagnosticsView(View):
    """Checks of a controller by itself.

    Attributes:
        version: Its version.
        at: Its time.
    """

    version: str
    at: datetime
    checks: list[CheckView]


class ErrorDetail(View):
    """One problem of a request: JSON pointer to the field, and what to do about it."""

    pointer: str
    message: str
    line: int | None = None
    column: int | None = None


class JobVersionView(View):
    """What is decided about a job by now, for a client that acted on an older answer.

    Attributes:
        etag: Its version; send it as If-Match to act on these figures.
        target: Configuration wanted now.
        applied: Configuration all workers confirmed.
        forecast: Predicted cost of the whole job; None while unknown.
    """

    etag: str
    phase: JobPhase
    target: ConfigView | None
    applied: ConfigView | None
    forecast: MoneyView | None
    preference: Literal["auto", "knee", "cheapest", "fastest", "pinned"]
    is_paused: bool


class ProblemView(View):
    """An error answer (RFC 9457, ``application/problem+json``).

    Attributes:
        current: The job as it is now, where something was decided since the version in If-Match.
        code: Short name of the problem type, such as ``not_found``; docs/problems.md lists them.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    errors: list[ErrorDetail] = []
    request_id: str | None = None
    current: JobVersionView | None = None
