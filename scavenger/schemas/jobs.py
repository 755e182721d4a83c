"""Schemas of jobs: what runs, how far it is, what it costs and when it will end."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Any, Literal

from scavenger.cluster import ClusterConfig
from scavenger.schemas.base import MoneyView, View
from scavenger.stack import EAGER_NAME


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


class ConfigView(View):
    """A configuration: workers (K), global batch (B, samples), and the stack of each worker."""

    workers: int
    global_batch: int
    stack: str = EAGER_NAME

    @property
    def config(self) -> ClusterConfig:
        """The configuration, as the library has it."""
        return ClusterConfig(self.workers, self.global_batch, stack=self.stack)

    def __str__(self) -> str:
        return str(self.config)


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
            because the clouds gave none when they were asked last, or took back what they gave.
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
        moved_knee: Knee of its newest curve, where it trains on another configuration; None where
            it does not train, or its objective is another.
        is_paused: Whether an order has paused it: no machine runs, or the last are ending.
        open_orders: How many orders are still to be obeyed.
        framework: What its workers train with, as they said, or else its document; None where
            neither does.
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
    moved_knee: ConfigView | None = None
    is_paused: bool = False
    open_orders: int = 0
    framework: str | None = None
    project: str = "default"
    eta: EtaView | None = None
    spec: dict[str, Any]


class JobList(View):
    """One page of jobs, newest first."""

    jobs: list[JobView]
    next_cursor: str | None


class CodeView(View):
    """The code of a hash, which a controller has for a project.

    Attributes:
        sha256: SHA-256 of the archive; ``run.code`` of a job names it.
        size: Bytes of the archive.
    """

    sha256: str
    size: int
    created_at: datetime
