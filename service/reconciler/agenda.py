"""When a job is looked at again: at once when there is news of it, otherwise at its next deadline.

Looking at every job in every pass costs as much for a job that rests for hours as for one that is
being searched. What a plan follows from changes in three ways. A row changes: the transaction that
writes it notifies all controllers (`jobs.notify_job_changed`). The cloud shows other machines:
`note_listing` sees that. Or time passes: `next_deadline` returns the first moment at which time
alone can change the plan. A property test (tests/laws/test_agenda_laws.py) checks that, and so does
`make money`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import chain, zip_longest

from service import ledger
from service.clouds.inventory import CloudListing
from service.clouds.provider import InstanceState
from service.db.vms import Vm
from service.reconciler.actions import Action, Idle
from service.reconciler.budget import HORIZON, moment_before, next_share_at
from service.reconciler.diff import launch_retry_at, termination_retry_at
from service.reconciler.plan import is_worth_keeping
from service.reconciler.timeouts import (
    ALL_WORKERS_SILENT_TIMEOUT,
    BOOT_TIMEOUT,
    COMMAND_TIMEOUT,
    ENTRY_TIMEOUT,
    FIRST_ITERATION_TIMEOUT,
    FRUITLESS_DIRECTIVES_TIMEOUT,
    LAUNCH_EVENT_DELAY,
    LAUNCH_FREEZE_TIMEOUT,
    LAUNCH_UNANSWERED_TIMEOUT,
    ORDERED_PROBE_TIMEOUT,
    PROBE_TIMEOUT,
    RELEASE_TIMEOUT,
    STANDBY_TIMEOUT,
    WORKER_SILENT_TIMEOUT,
    directive_deliverable_since,
    pause_deadline,
    regroup_delay,
)
from service.state.job_state import REVIEW_AGE, JobState

# Timeouts are over *after* their span; a look at the very moment would come too early.
JUST_AFTER = timedelta(milliseconds=1)
SILENCE_INTERVAL = timedelta(seconds=5)
REVIEW_INTERVAL = timedelta(seconds=15)  # noise and metrics of a job that trains change slowly
# Should a notification or a deadline be missed after all, the job waits an hour, not for ever.
# Shorter would cost: with an hour, 10 000 jobs at rest are three looks a second.
LONGEST_REST = timedelta(hours=1)


class Agenda:
    """Which jobs are to be looked at, and in which order.

    Any thread may call ``note`` and ``note_all``; all other methods belong to the loop.

    Args:
        seconds: Returns the time by a clock that never goes back.
    """

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._news: dict[str, float] = {}  # since when
        self._look_at: dict[str, float] = {}
        self._unseen: dict[str, None] = {}  # a queue of jobs that this controller does not know yet
        self._has_turn = False
        self._shown: dict[str, Mapping[str, tuple[str, InstanceState]]] = {}  # by cloud
        self._hidden: set[str] = set()

    @property
    def jobs(self) -> Set[str]:
        """The jobs that are looked at from time to time."""
        return self._look_at.keys()

    def note(self, job: str) -> None:
        """Look at a job in the next pass, also at one that is new."""
        with self._lock:
            self._news.setdefault(job, self._seconds())

    def note_all(self) -> None:
        """Look at every job soon: news may have been missed."""
        with self._lock:
            self._unseen |= dict.fromkeys(self._look_at)

    def note_listing(self, cloud: str, listing: CloudListing | None, *, is_hidden: bool) -> None:
        """Note the jobs whose machines a cloud shows otherwise than before.

        Args:
            cloud: Its name.
            listing: What it shows now; None before its first answer.
            is_hidden: Whether it does not show its machines; what it showed last stays.
        """
        if is_hidden != (cloud in self._hidden):
            self.note_all()
            self._hidden ^= {cloud}
        if is_hidden or listing is None:
            return
        shown = {key: (one.job, one.state) for key, one in listing.instances.items()}
        changed = {job for _, (job, _) in shown.items() ^ self._shown.get(cloud, {}).items()}
        for job in changed & self.jobs:  # the cloud also shows machines of jobs that ended long ago
            self.note(job)
        self._shown[cloud] = shown

    def keep(self, jobs: Collection[str]) -> None:
        """Forget all jobs but these; one that is new is looked at soon.

        News stays: it may be of a job that was committed after these were listed.
        """
        known = set(jobs)
        with self._lock:
            self._unseen |= dict.fromkeys(job for job in jobs if job not in self._look_at)
            self._unseen = {job: None for job in self._unseen if job in known}
            self._look_at = {job: self._look_at.get(job, math.inf) for job in jobs}

    def is_any_due(self) -> bool:
        """Whether ``due`` would return a job."""
        now = self._seconds()
        is_late = any(at <= now for at in self._look_at.values())
        return is_late or bool(self._news or self._unseen)

    def due(self) -> list[str]:
        """Return the jobs with news, whose time has come, or which were never looked at.

        A pass may serve only the first few of them, and none starves: those with news or past their
        time come first in, first out, and take turns with those never looked at. They stay due
        until they are begun and rest.
        """
        now = self._seconds()
        with self._lock:
            since = {job: at for job, at in self._look_at.items() if at <= now}
            for job, at in self._news.items():
                since[job] = min(at, since.get(job, math.inf))
            queues = [sorted(since, key=since.__getitem__), list(self._unseen)]
        self._has_turn = not self._has_turn
        turns = zip_longest(*(queues if self._has_turn else reversed(queues)))
        return [job for job in dict.fromkeys(chain.from_iterable(turns)) if job is not None]

    def begin(self, job: str) -> None:
        """Note that a job is looked at: news of it from now on is for another look.

        Until it rests it stays due, so that a pass which fails half-way loses no news.
        """
        with self._lock:
            self._news.pop(job, None)
            self._unseen.pop(job, None)
            now = self._seconds()
            self._look_at[job] = min(self._look_at.get(job, now), now)

    def rest(self, job: str, until: float) -> None:
        """Leave a job alone until then, unless there is news of it."""
        with self._lock:
            self._look_at[job] = until


def time_to_rest(state: JobState, action: Action) -> timedelta:
    """Return for how long a job may be left alone after an action, as long as there is no news."""
    if not isinstance(action, Idle) or needs_polling(state):
        return timedelta(0)
    longest = LONGEST_REST
    # Iterations, and reports that say nothing new, are too many to announce each.
    if state.is_review_due and not state.job.phase.is_final:
        longest = REVIEW_INTERVAL
    alive = {vm.id for vm in state.vms if vm.is_alive}
    if any(one.worker in alive and state.is_silent(one.worker) for one in state.workers):
        longest = SILENCE_INTERVAL  # once one speaks again, the others are the silent ones
    deadline = next_deadline(state)
    return longest if deadline is None else min(deadline - state.now, longest)


def needs_polling(state: JobState) -> bool:
    """Whether a job waits for what no row announces, so that every pass looks at it.

    Iterations of a probe, and first reports in a generation, are rows of which there are too many
    to note each. A machine that lists miss is judged by the next list.
    """
    is_searched = state.directive is not None and state.directive.purpose == "probe"
    is_missed = any(vm.missed_at is not None for vm in state.vms if vm.is_alive)
    is_entering = is_searched or not state.is_applied
    return is_missed or (is_entering and not state.job.phase.is_final)


def next_deadline(state: JobState) -> datetime | None:
    """Return the first moment after `state.now` at which time alone can change the plan."""
    later = [moment + JUST_AFTER for moment in deadlines(state)]
    return min((moment for moment in later if moment > state.now), default=None)


def deadlines(state: JobState) -> Iterator[datetime]:
    """Yield every moment that a concern of the plan compares with now; some are long past."""
    for worker in state.workers:
        heard = state.not_before_start(worker.seen_at)
        for timeout in (
            WORKER_SILENT_TIMEOUT,
            ALL_WORKERS_SILENT_TIMEOUT,
            BOOT_TIMEOUT,
            COMMAND_TIMEOUT,
        ):
            yield heard + timeout.limit
    for vm in state.vms:
        yield vm.intended_at + LAUNCH_FREEZE_TIMEOUT.limit
        if vm.is_alive:
            yield from machine_deadlines(state, vm)
    for shortage in state.shortages:
        yield shortage.until
    yield from order_deadlines(state)
    yield from directive_deadlines(state)
    yield from standby_deadlines(state)
    yield from limit_deadlines(state)


def machine_deadlines(state: JobState, vm: Vm) -> Iterator[datetime]:
    """Yield when a machine counts as late, is asked for again, or is told to end again."""
    asked = vm.attempted_at or vm.intended_at
    yield vm.intended_at + LAUNCH_EVENT_DELAY
    yield vm.intended_at + LAUNCH_UNANSWERED_TIMEOUT.limit
    yield state.not_before_start(asked) + BOOT_TIMEOUT.limit
    yield asked + state.boot
    yield launch_retry_at(vm)
    yield termination_retry_at(vm)


def directive_deadlines(state: JobState) -> Iterator[datetime]:
    """Yield when the newest Directive should have been entered, or have borne iterations."""
    published, deliverable = state.published_at, directive_deliverable_since(state)
    if published is None or deliverable is None:
        return
    stall = timedelta(seconds=2 * state.job.spec.run.stall)
    yield deliverable + ENTRY_TIMEOUT.limit + stall
    for timeout in (FIRST_ITERATION_TIMEOUT, PROBE_TIMEOUT, STANDBY_TIMEOUT):
        yield deliverable + timeout.limit
    yield published + RELEASE_TIMEOUT.limit
    yield published + regroup_delay(state)
    yield published + REVIEW_AGE
    if state.drifted is not None:
        yield state.drifted.at + REVIEW_AGE
    if state.published_without_iteration:
        yield state.published_without_iteration[0] + FRUITLESS_DIRECTIVES_TIMEOUT.limit


def order_deadlines(state: JobState) -> Iterator[datetime]:
    """Yield when the workers of a paused job should have left, and a probe have been measured."""
    if state.standing.is_paused:
        yield pause_deadline(state)
    if state.standing.probe is not None:
        yield state.standing.probe.at + ORDERED_PROBE_TIMEOUT.limit


def limit_deadlines(state: JobState) -> Iterator[datetime]:
    """Yield when the job's time is over, and when its machines have used its money up."""
    limits = state.job.spec.limits
    if limits.max_time is not None and state.began_at is not None:
        yield state.began_at + timedelta(seconds=limits.max_time)
    if limits.max_cost is None or not any(vm.price_per_hour for vm in state.vms if vm.is_alive):
        return
    share_at = next_share_at(state)
    if share_at is not None:
        yield share_at
    cap = limits.max_cost

    def is_spent(moment: datetime) -> bool:
        return ledger.accrued(state.vms, moment + ledger.POWER_OFF_GRACE) > cap

    # Look again after the horizon: what comes after that is not known yet.
    yield moment_before(state.now, is_spent) or state.now + HORIZON


def standby_deadlines(state: JobState) -> Iterator[datetime]:
    """Yield when machines that stand by for another probe cost more than new ones would."""
    if state.directive is None or state.directive.purpose != "probe":
        return
    for vm in state.live_worker_vms:
        if vm.id not in state.member_ids:
            yield standby_deadline(state, vm)


def standby_deadline(state: JobState, vm: Vm) -> datetime:
    """Return when a machine that stands by is to be looked at again."""

    def is_spent(moment: datetime) -> bool:
        return not is_worth_keeping(replace(state, now=moment), vm)

    return moment_before(state.now, is_spent) or state.now + HORIZON
