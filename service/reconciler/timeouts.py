"""Time-outs: how long a job may stay in each state, who notices, and what follows.

One table of all of them; plan() asks it. Nothing waits for ever: each wait ends in an action, or in
an event that says what the job waits for and until when.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from service.clouds.inventory import LIST_TIMEOUT
from service.db.controllers import LEASE_TERM
from service.db.shortages import SHORTAGE_SPAN
from service.db.vms import Vm
from service.reconciler.diff import ALARM_ORDERS, MAX_RETRY
from service.state.job_state import SILENCE_LIMIT, JobState

MAX_FRUITLESS_DIRECTIVES = 5
MAX_REGROUP_DELAY = timedelta(minutes=1)

LAUNCH_EVENT_DELAY = timedelta(minutes=1)  # a slow launch is not worth an event before


@dataclass(frozen=True, slots=True)
class Timeout:
    """How long something may last.

    Attributes:
        waits_for: What is waited for.
        limit: How long at most, as far as that is a constant.
        limit_text: The same in words, with what it depends on.
        watcher: Who notices.
        consequence: What follows.
    """

    waits_for: str
    limit: timedelta
    limit_text: str
    watcher: str
    consequence: str

    def is_over(self, since: datetime | None, now: datetime) -> bool:
        return since is not None and now - since > self.limit


PASS_DELAY_TIMEOUT = Timeout(
    "submitted, or its cancellation requested, or nothing left to wait for",
    timedelta(seconds=5),
    "one pass of the loop, or the 5 s that a tick which failed rests",
    "loop",
    "the next action; after a crash, that of another controller or of this one once restarted",
)
LEASE_EXPIRY_TIMEOUT = Timeout(
    "its controller is dead",
    LEASE_TERM,
    "5 s, the term of a lease",
    "every other controller",
    "another controller takes the lease and goes on",
)
LAUNCH_FREEZE_TIMEOUT = Timeout(
    "too many machines were launched lately",
    timedelta(hours=1),
    "an hour after the oldest of them",
    "plan",
    "said once with the time of the next launch, which then follows",
)
SHORTAGE_TIMEOUT = Timeout(
    "a place has no machine of the type, or the account may have no more",
    SHORTAGE_SPAN,
    "3 min, or a day where the type is not sold; shared by all jobs",
    "plan",
    "other zones are asked, then the other market if the job allows it; said once when all refuse",
)
REFUSALS_TIMEOUT = Timeout(
    "60 machines were refused to a job",
    timedelta(hours=1),
    "an hour after the oldest of them",
    "plan",
    "no place is asked before",
)
LAUNCH_UNANSWERED_TIMEOUT = Timeout(
    "the cloud has not given a machine",
    timedelta(minutes=15),
    "15 min since it was intended; asked again after 2 s and ever later, up to 30 s",
    "plan, diff",
    "said after a minute; then its key is given up and another is asked for",
)
BOOT_TIMEOUT = Timeout(
    "a machine was given, or its process starts again, and has not said hello",
    timedelta(minutes=15),
    "15 min since it was asked for, or since the process ended",
    "plan",
    "it is ended and replaced",
)
ENTRY_TIMEOUT = Timeout(
    "a directive is published and not entered by all",
    timedelta(minutes=15),
    "15 min, and twice run.stall",
    "plan",
    "newcomers who hold it up are ended and the others go on without; else it is formed anew",
)
REGROUP_TIMEOUT = Timeout(
    "the workers lost touch with each other",
    timedelta(seconds=2),
    "2 s, twice as long after each try in vain, up to 1 min",
    "plan",
    "the generation is formed anew",
)
FRUITLESS_DIRECTIVES_TIMEOUT = Timeout(
    "directives in a row bore no iteration",
    timedelta(minutes=15),
    "5 directives and 15 min",
    "plan",
    "the job fails, and says what its workers did",
)
WORKER_SILENT_TIMEOUT = Timeout(
    "a worker or server does not speak while others do",
    SILENCE_LIMIT,
    "60 s",
    "plan",
    "it is ended and replaced",
)
ALL_WORKERS_SILENT_TIMEOUT = Timeout(
    "no worker speaks",
    timedelta(minutes=10),
    "10 min, counted only while this controller listened",
    "plan",
    "all are ended and replaced",
)
FIRST_ITERATION_TIMEOUT = Timeout(
    "a directive is entered, and no iteration of it was measured",
    timedelta(hours=2),
    "2 h",
    "plan",
    "its workers are ended and replaced",
)
STALL_TIMEOUT = Timeout(
    "iterations stand still",
    timedelta(minutes=5),
    "run.stall (5 min), ten iterations, or three of the longest pauses",
    "each machine's supervisor",
    "stacks are shown, the process is started again, three times an hour; then it counts as lost",
)
PROBE_TIMEOUT = Timeout(
    "a probe does not settle",
    timedelta(hours=2),
    "2 h",
    "plan",
    "settled with the noise there is; with fewer than 20 iterations the search ends without it",
)
RELEASE_TIMEOUT = Timeout(
    "a worker was left out and its machine still runs",
    timedelta(seconds=10),
    "10 s",
    "plan",
    "its machine is ended",
)
STANDBY_TIMEOUT = Timeout(
    "a worker was told to stand by and has not said hello again",
    timedelta(minutes=5),
    "5 min since that, once the others have entered the directive that says so",
    "plan",
    "it is ended, and replaced when the search needs another",
)
COMMAND_TIMEOUT = Timeout(
    "training is done and the leader's command goes on",
    timedelta(hours=1),
    "an hour since its last word",
    "plan",
    "the job ends by what the leader said",
)
PAUSE_TIMEOUT = Timeout(
    "a job is paused and a worker has not left",
    timedelta(minutes=1),
    "1 min, and run.drain",
    "plan",
    "its machine is ended; training goes on from the newest checkpoint",
)
ORDERED_PROBE_TIMEOUT = Timeout(
    "a probe was ordered and is not measured",
    timedelta(minutes=15),
    "15 min",
    "plan",
    "the order is refused, and says so",
)
MACHINE_UNLISTED_TIMEOUT = Timeout(
    "lists do not show a machine",
    timedelta(0),
    "for as long as the provider's lists may lag, and its boot when it was never seen",
    "diff",
    "it counts as gone, and is replaced",
)
CLOUD_HIDDEN_TIMEOUT = Timeout(
    "the cloud shows no machines",
    LIST_TIMEOUT,
    "for as long as that lasts; it counts from the first refusal, or after 1 min without an answer",
    "inventory",
    "no machine is made, and none ended but of jobs that have ended; said once, all else goes on",
)
CLOUD_CALL_TIMEOUT = Timeout(
    "its cloud was asked to make or to end its machines",
    timedelta(minutes=1),
    "1 min each, the longest that a call may take",
    "executor",
    "the next call, then the next action; until then the job hears nothing, not even its end",
)
TERMINATION_RETRY = Timeout(
    "a machine was told to end and is still shown",
    MAX_RETRY,
    f"told again after 2 s and ever later, up to 1 min, for ever; an alarm at order {ALARM_ORDERS}",
    "diff",
    "it ends; it does so by itself when its prepaid time does",
)


def is_boot_late(state: JobState, vm: Vm) -> bool:
    """Whether a machine should have been given, or its process said hello, long ago."""
    known = state.worker(vm.id)
    if known is not None:
        return not known.is_up and BOOT_TIMEOUT.is_over(
            state.not_before_start(known.seen_at), state.now
        )
    if vm.state == "intended":
        return LAUNCH_UNANSWERED_TIMEOUT.is_over(vm.intended_at, state.now)
    asked_at = vm.attempted_at or vm.intended_at
    return BOOT_TIMEOUT.is_over(state.not_before_start(asked_at), state.now)


def ignores_standby(state: JobState, vm: Vm) -> bool:
    """Whether a worker should have stood by long ago, and is in its old generation instead.

    A worker whose collective failed at that moment waits for a new generation, of which it is no
    member.
    """
    known = state.worker(vm.id)
    if known is None or vm.id not in state.standby_ids:
        return False
    is_behind = known.generation > 0 and state.is_applied
    return is_behind and STANDBY_TIMEOUT.is_over(directive_deliverable_since(state), state.now)


def directive_deliverable_since(state: JobState) -> datetime | None:
    """Return since when the newest Directive could be heard, and its workers."""
    published_at = state.published_at
    return None if published_at is None else state.not_before_start(published_at)


def pause_deadline(state: JobState) -> datetime:
    """Return when the last worker of a paused job has to have left."""
    since = state.standing.pauses[-1].since
    return since + timedelta(seconds=state.job.spec.run.drain) + PAUSE_TIMEOUT.limit


def has_entry_timed_out(state: JobState) -> bool:
    """Whether the newest Directive should have been entered long ago, and was not."""
    stall = timedelta(seconds=2 * state.job.spec.run.stall)
    return not state.is_applied and ENTRY_TIMEOUT.is_over(
        directive_deliverable_since(state), state.now - stall
    )


def has_first_iteration_timed_out(state: JobState) -> bool:
    """Whether the newest Directive was entered for so long that there must be iterations of it."""
    directive = state.directive
    is_training = directive is not None and directive.purpose == "train"
    return (
        is_training
        and state.is_applied
        and FIRST_ITERATION_TIMEOUT.is_over(directive_deliverable_since(state), state.now)
    )


def may_be_fruitless(state: JobState) -> bool:
    """Whether it matters how many Directives in a row bore no iteration."""
    is_in_doubt = any(
        worker.broken is not None or worker.refused is not None for worker in state.member_workers
    )
    return is_in_doubt or has_entry_timed_out(state) or has_first_iteration_timed_out(state)


def is_fruitless(state: JobState) -> bool:
    """Whether Directive after Directive bore no iteration."""
    published = state.published_without_iteration
    return len(published) >= MAX_FRUITLESS_DIRECTIVES and FRUITLESS_DIRECTIVES_TIMEOUT.is_over(
        published[0], state.now
    )


def regroup_delay(state: JobState) -> timedelta:
    """Return how old a Directive has to be whose workers lost touch, to be formed anew."""
    in_vain = max(len(state.published_without_iteration) - 1, 0)
    pause: timedelta = REGROUP_TIMEOUT.limit * 2 ** min(in_vain, 10)
    return min(pause, MAX_REGROUP_DELAY)
