"""JobState: everything one tick or one page knows about a job, read once and frozen.

It also says whether the loss or the target's metric has become NaN or infinite. Training is never
stopped for that, since only the user can tell whether it may recover; the job reports it at once
and names it first in the reason it ends with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal

from scavenger.job.spec import JobSpec
from scavenger.layout import Layout
from scavenger.measurement.steps import StepColumns
from scavenger.planning.replanning import Remainder
from scavenger.planning.state import PlanningState
from scavenger.protocol import Directive, Member, NotFinite, StopAtMetric, StopRule
from service import ledger
from service.db.jobs import StoredJob
from service.db.measurements import RecordedDrift, SettledProbe
from service.db.shortages import Shortage
from service.db.vms import Vm
from service.db.workers import WorkerRow
from service.offers import BillingTerms, Offer
from service.state.orders import NO_ORDERS, Standing

SILENCE_LIMIT = timedelta(seconds=60)
REVIEW_AGE = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class JobState:
    """One job and everything around it at one moment.

    Attributes:
        now: The moment.
        vms: Every machine the job ever had, oldest first.
        workers: Every worker that said hello, in that order.
        directive: The newest Directive; None before the first.
        published_at: When it was published.
        probes: Settled probes, in order.
        drifted: The newest drift of the noise scale; None while the first plan holds.
        steps: Iterations measured in the newest generation: all while probing, recent ones once a
            plan has stood for long enough to be looked at again.
        losses_before: Losses of all iterations before the newest generation, as long as noise has
            to settle.
        knowledge: What is known for a decision, from probes and earlier jobs.
        listening_since: When this controller began to listen; it can have heard no worker before.
        published_without_iteration: When the newest Directives were published that bore no
            iteration, oldest first; read only where it matters.
        boot: What a new machine may take of its prepaid time before its own clock starts.
        is_hidden: Whether the cloud does not show its machines, so that nothing new of them is
            known.
        hidden_reason: Why not, in the same words for as long as that lasts.
        places: Where its machines may be rented, in the order of the clouds file.
        shortages: Which of them give none for a while, or have just lost a machine.
        standing: What stands by the orders of users; ``job.spec`` has the limits and the objective
            as these have changed them.
        refused_layouts: Layouts that the job does without, and why.
        trained_layout: Layout of the newest Directive that bore an iteration, where the job does
            without any; empty otherwise, or if none has.
    """

    now: datetime
    job: StoredJob
    vms: tuple[Vm, ...]
    workers: tuple[WorkerRow, ...]
    directive: Directive | None
    published_at: datetime | None
    probes: tuple[SettledProbe, ...]
    drifted: RecordedDrift | None
    steps: StepColumns
    knowledge: PlanningState
    losses_before: tuple[float | None, ...] = ()
    listening_since: datetime | None = None
    published_without_iteration: tuple[datetime, ...] = ()
    is_hidden: bool = False
    hidden_reason: str = "the cloud does not show its machines"
    boot: timedelta = timedelta(0)
    places: tuple[Offer, ...] = ()
    shortages: tuple[Shortage, ...] = ()
    standing: Standing = NO_ORDERS
    refused_layouts: Mapping[Layout, str] = field(default_factory=dict)
    trained_layout: str = ""

    @property
    def planned_spec(self) -> JobSpec:
        """The job with the objective to choose by, which an order may prefer to its own."""
        return self.standing.prefer_in(self.job.spec)

    @property
    def what_is_left(self) -> Remainder:
        """What is left of the target, and of the limits."""
        spec, expected = self.job.spec, self.knowledge.expected_epochs
        cap, longest = spec.limits.max_cost, spec.limits.max_time
        return Remainder(
            epochs=None if expected is None else expected - self.epochs,
            most_epochs=spec.stop_rule.max_progress - self.epochs,
            money=None if cap is None else float(cap - self.accrued),
            time=None if longest is None else longest - self.elapsed,
        )

    @property
    def live_worker_vms(self) -> tuple[Vm, ...]:
        """Workers' machines that may exist and whose command has not ended."""
        return tuple(vm for vm in running_machines(self.vms) if vm.role == "worker")

    @property
    def servers(self) -> tuple[Vm, ...]:
        """Parameter servers' machines that may exist and whose process has not ended."""
        return tuple(vm for vm in running_machines(self.vms) if vm.role == "server")

    @property
    def ready_servers(self) -> tuple[Member, ...]:
        """Parameter servers that said hello, with the address they said last."""
        greeted = [self.worker(vm.id) for vm in self.servers]
        return tuple(Member(w.worker, w.address) for w in greeted if w is not None and w.is_up)

    @property
    def lost_servers(self) -> tuple[str, ...]:
        """Servers of the newest Directive that are gone, or were started again and are empty."""
        assigned = () if self.directive is None else self.directive.servers
        return tuple(member.worker for member in assigned if member not in self.ready_servers)

    @property
    def unfinished_worker_vms(self) -> tuple[Vm, ...]:
        """Alive machines whose worker is taking part, waiting or still booting, and may go on.

        One that its cloud takes back leaves by itself, and another is to be there by then.
        """
        done = {worker.worker for worker in self.workers if worker.finished is not None}
        return tuple(
            vm for vm in self.live_worker_vms if vm.id not in done and vm.warned_at is None
        )

    @property
    def ready_workers(self) -> tuple[WorkerRow, ...]:
        """Workers that can take part: alive, greeted, not done, and not about to stand by.

        One that is told to stand by says hello again, at another address, once it does. It never
        does if the Directive that tells it so has lost all its members before they entered it.
        """
        ids = {vm.id for vm in self.unfinished_worker_vms}
        return tuple(
            worker
            for worker in self.workers
            if worker.worker in ids
            and worker.is_up
            and not (worker.worker in self.standby_ids and worker.generation > 0)
        )

    @property
    def standby_ids(self) -> tuple[str, ...]:
        """Workers that the newest Directive puts on standby; none once all its members are gone."""
        is_followed = len(self.departed_members) < len(self.member_ids)
        return self.directive.standby if self.directive is not None and is_followed else ()

    @property
    def departed_members(self) -> tuple[str, ...]:
        """Members of the newest Directive that will not enter it, or have left it."""
        return (*self.lost_members, *self.released_members, *self.restarted_members)

    @property
    def member_ids(self) -> tuple[str, ...]:
        """Workers of the newest Directive, leader first."""
        return () if self.directive is None else tuple(m.worker for m in self.directive.members)

    @property
    def member_workers(self) -> tuple[WorkerRow, ...]:
        """Those of them that ever spoke, leader first."""
        found = (self.worker(member) for member in self.member_ids)
        return tuple(worker for worker in found if worker is not None)

    @property
    def leader(self) -> WorkerRow | None:
        """The leader of the newest Directive, if it ever spoke."""
        return None if not self.member_ids else self.worker(self.member_ids[0])

    @property
    def is_applied(self) -> bool:
        """Whether every member that still lives has confirmed the newest Directive."""
        if self.directive is None:
            return True
        departed = self.departed_members
        confirmed = [self.worker(member) for member in self.member_ids if member not in departed]
        return all(w is not None and w.generation >= self.directive.generation for w in confirmed)

    @property
    def lost_members(self) -> tuple[str, ...]:
        """Members whose machine is gone, or whose command ended, before training was done."""
        ids = {vm.id for vm in self.live_worker_vms}
        # A worker that finished may be gone: training ended for it.
        done = {worker.worker for worker in self.workers if worker.finished is not None}
        return tuple(m for m in self.member_ids if m not in ids and m not in done)

    @property
    def released_members(self) -> tuple[str, ...]:
        """Members that left before training was done, because their machine was told to end."""
        return tuple(w.worker for w in self.member_workers if w.finished == "released")

    @property
    def restarted_members(self) -> tuple[str, ...]:
        """Members whose process died and is started again on the same machine: it holds nothing."""
        members = () if self.directive is None else self.directive.members
        known = [(member, self.worker(member.worker)) for member in members]
        return tuple(
            member.worker
            for member, worker in known
            if worker is not None
            and worker.address != member.address
            and member.worker not in (*self.lost_members, *self.released_members)
        )

    @property
    def most_advanced(self) -> WorkerRow | None:
        """The most advanced worker of those that train now, else of all there ever were.

        After a job went back to a checkpoint, its former workers were further.
        """
        active = [worker for worker in self.member_workers if worker.generation > 0]
        return max(active or self.workers, key=lambda worker: worker.iteration, default=None)

    @property
    def epochs(self) -> float:
        """Reference epochs of progress so far."""
        return 0.0 if self.most_advanced is None else self.most_advanced.epochs

    @property
    def accrued(self) -> Decimal:
        return ledger.accrued(self.vms, self.now)

    @property
    def elapsed(self) -> float:
        """Seconds since its first machine was intended that no cloud refused."""
        if self.began_at is None:
            return 0.0
        end = self.job.finished_at or self.now
        return max((end - self.began_at).total_seconds(), 0.0)

    @property
    def began_at(self) -> datetime | None:
        """When its first machine was intended that no cloud refused; None before."""
        return next((vm.intended_at for vm in self.vms if vm.refusal is None), None)

    @property
    def fastest_boot(self) -> timedelta | None:
        """What the quickest machine took until its worker said hello; None before the first.

        One that said it again, after a restart or standing by, seems slower than it was.
        """
        greeted = [(vm, self.worker(vm.id)) for vm in self.vms if vm.attempted_at is not None]
        took = [worker.hello_at - vm.paid_from for vm, worker in greeted if worker is not None]
        return max(min(took), timedelta(0)) if took else None

    @property
    def is_review_due(self) -> bool:
        """Whether the plan has stood for long enough to be compared with the noise of now."""
        begun = [self.published_at, None if self.drifted is None else self.drifted.at]
        since = max((moment for moment in begun if moment is not None), default=None)
        return since is not None and self.now - since >= REVIEW_AGE

    def can_afford(self, workers: int, servers: int) -> bool:
        """Whether the cap pays for so many more machines until they are of use."""
        spec, terms = self.job.spec, self.worker_terms
        span = ledger.affordable_span(self.vms, spec, terms, workers, servers, self.boot)
        return span is not None

    @property
    def worker_terms(self) -> BillingTerms:
        """What a machine of a worker is billed, wherever it is rented."""
        spec = self.job.spec
        if not self.places:
            return BillingTerms(spec.price_per_hour, timedelta(seconds=spec.quantum))
        return max((offer.terms for offer in self.places), key=lambda terms: terms.price_per_hour)

    @property
    def offers(self) -> tuple[Offer, ...]:
        """Places to ask for machines now, best first: where its workers are, and no shortage."""
        markets = list(dict.fromkeys(offer.market for offer in self.places))
        neighbours = Counter(vm.zone for vm in self.unfinished_worker_vms)
        refusing = [each for each in self.shortages if each.is_refusal]
        free = [o for o in self.places if not any(each.covers(o) for each in refusing)]

        def order(offer: Offer) -> tuple[int, bool, int]:
            # Traffic between zones costs money and time; the first market is the one asked for.
            has_lost = any(each.covers(offer) for each in self.shortages)
            return markets.index(offer.market), has_lost, -neighbours[offer.zone]

        return tuple(sorted(free, key=order))

    def worker(self, worker: str) -> WorkerRow | None:
        return next((w for w in self.workers if w.worker == worker), None)

    def is_silent(self, worker: str) -> bool:
        """Whether a worker has not been heard for longer than any report takes."""
        return self.silence(worker) > SILENCE_LIMIT

    def silence(self, worker: str) -> timedelta:
        """Return the time since a worker was last heard, at most since this controller started."""
        known = self.worker(worker)
        return timedelta.max if known is None else self.now - self.not_before_start(known.seen_at)

    def not_before_start(self, moment: datetime) -> datetime:
        """Return a moment, or when this controller began to listen, whichever came later."""
        return moment if self.listening_since is None else max(moment, self.listening_since)


def running_machines(machines: Sequence[Vm]) -> tuple[Vm, ...]:
    """Return the machines that may exist, are not told to end, and whose command runs."""
    return tuple(
        vm for vm in machines if vm.state in ("intended", "launched") and vm.exit_code is None
    )


LOSS_SERIES = "loss"


def watched_series(stop: StopRule) -> tuple[str, ...]:
    """Return the series that tell whether training goes well: the loss, and the target's metric."""
    match stop:
        case StopAtMetric(metric=metric) if metric != LOSS_SERIES:
            return (LOSS_SERIES, metric)
        case _:
            return (LOSS_SERIES,)


def describe_divergence(series: str, worker: str, found: NotFinite) -> str:
    """Say what a series became, in which iteration, and on which worker."""
    return f"{series} became {found.value} at iteration {found.first} on {worker}"


def current_divergence(state: JobState) -> str | None:
    """Say what is not finite by now, and since when; None when all is well.

    The leader's values count, as they do for the target; but the worker that was first is named.
    """
    leader, stop = state.leader, state.job.spec.stop_rule
    if leader is None:
        return None
    lasting = [
        series for series in watched_series(stop) if diverged_since(leader, series) is not None
    ]
    return "; ".join(divergence_sentence(state, series) for series in lasting) or None


def diverged_since(worker: WorkerRow, series: str) -> int | None:
    """Return the iteration since which a worker has logged no finite value of a series."""
    found = worker.not_finite.get(series)
    return None if found is None else found.since


def divergence_sentence(state: JobState, series: str) -> str:
    """Say which member was first to log what has not been finite since."""
    begun = [
        (at, worker)
        for worker in state.member_workers
        if (at := diverged_since(worker, series)) is not None
    ]
    at, worker = min(begun, key=lambda pair: pair[0])
    found = worker.not_finite[series]
    became = describe_divergence(series, worker.worker, found)
    if at == found.first:
        return f"{became} and has not been finite since"
    return f"{became}, recovered, and has not been finite since iteration {at}"
