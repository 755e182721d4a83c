"""Schemas of plans, and of questions about a curve: what a job would cost before it does."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import ConfigDict, Field

from scavenger.job.fields import DollarAmount, Duration, SpecModel
from scavenger.job.limits import BatchChoice, WorkerChoice
from scavenger.job.pricing import PriceField
from scavenger.job.spec import ObjectiveField
from scavenger.schemas.base import MoneyView, View
from scavenger.schemas.curves import CurveView
from scavenger.schemas.jobs import ConfigView

PLAN_ID_PREFIX = "plan_"


class PlannedSearchView(View):
    """What a search is expected to take before it chooses.

    Attributes:
        probes: About how many configurations it measures.
        seconds: None where no earlier job tells how long an iteration takes.
        cost: Likewise.
    """

    probes: int
    seconds: float | None
    cost: MoneyView | None


class PlanView(View):
    """What would become of a job document if it was submitted now; nothing is launched or spent.

    Attributes:
        id: ``plan_`` and a sortable id; a job can be submitted from it until it expires.
        curve: The cost/time curve as it can be drawn from earlier jobs; it may have no points.
        choice: The configuration to train on; None where a search decides, or nothing is feasible.
        why: One sentence about the choice, or what is searched first, or what is not feasible.
        search: What is measured before the choice; None where nothing is.
        cap: The most the job may spend, even if the controller dies; None without a limit.
        checks: What else to know before submitting, a sentence each.
        prices_as_of: When the prices of its machines were so; None where the document names them.
        would_reuse: Earlier jobs whose model replaces a search.
        job: The job that was submitted from it; None before.
    """

    id: str
    created_at: datetime
    expires_at: datetime
    name: str
    model_key: str
    curve: CurveView
    choice: ConfigView | None
    why: str
    search: PlannedSearchView | None
    cap: MoneyView | None
    checks: list[str]
    prices_as_of: datetime | None
    would_reuse: int
    job: str | None = None

    @property
    def is_feasible(self) -> bool:
        """Whether a configuration meets the limits, as far as that is known."""
        return self.choice is not None or self.search is not None


class PlanReference(SpecModel):
    """A body that submits a plan, in place of a job document.

    Attributes:
        plan: Id of the plan.
    """

    plan: Annotated[str, Field(pattern="^plan_[0-9a-z]{1,40}$", examples=["plan_0193a1b2c3d"])]


class WhatIfLimits(SpecModel):
    """Limits in place of a job's; null removes one, and what is absent stays.

    Attributes:
        max_cost: The most the job may spend, in dollars.
        max_time: The longest the job may take, in seconds.
        batch: Allowed global batches in samples.
    """

    max_cost: DollarAmount | None = Field(None, examples=["3.40 USD"])
    max_time: Duration | None = Field(None, examples=["3h12m"])
    batch: BatchChoice | None = Field(None, examples=["32..256"])


class WhatIf(SpecModel):
    """A question about a job's curve: what if it had another price, limits or objective?

    Attributes:
        price: Dollars per worker-hour, or a tariff.
        workers: Allowed worker counts: a range or a list.
        limits: Limits in place of those that it names.
        objective: Which configuration of the curve to choose.
    """

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    price: PriceField | None = Field(None, examples=["0.5 USD/h"])
    workers: WorkerChoice | None = Field(None, examples=[[1, 2, 4]])
    limits: WhatIfLimits | None = Field(None, examples=[{"max_cost": "3.40 USD"}])
    objective: ObjectiveField | None = Field(None, examples=["cheapest"])
