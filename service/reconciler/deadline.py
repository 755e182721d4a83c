"""Deadlines: how long a job may stay in each state that is not its end, who watches, what follows.

One table of all of them; plan() asks it. Nothing waits for ever: each wait ends in a move, or in an
event that says what is waited for and until when.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from service.db.leases import TERM
from service.db.vms import Vm
from service.reconciler.census import ALARM, SELDOM
from service.reconciler.snapshot import SILENCE, Snapshot

TRIES = 5
LONGEST_BREATH = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Deadline:
    """How long something may last.

    Attributes:
        state: What is waited for.
        after: How long at most, as far as that is a constant.
        span: The same in words, with what it depends on.
        watcher: Who notices.
        successor: What follows.
    """

    state: str
    after: timedelta
    span: str
    watcher: str
    successor: str

    def is_over(self, since: datetime | None, now: datetime) -> bool:
        """Tell whether what began then has lasted for too long."""
        return since is not None and now - since > self.after


PASS = Deadline(
    "submitted, or its cancellation requested, or nothing left to wait for",
    timedelta(seconds=5),
    "one pass of the loop, or the 5 s that a tick which failed rests",
    "loop",
    "the next action; after a crash another controller's, or its own, of what is written down",
)
LEASE = Deadline(
    "its controller is dead",
    TERM,
    "5 s, the term of a lease",
    "every other controller",
    "another controller takes the lease and goes on",
)
FROZEN = Deadline(
    "too many machines were launched lately",
    timedelta(hours=1),
    "an hour after the oldest of them",
    "plan",
    "said once with the time of the next launch, which then follows",
)
UNANSWERED = Deadline(
    "the cloud has not given a machine",
    timedelta(minutes=15),
    "15 min since it was intended; asked again after 2 s and ever later, up to 30 s",
    "plan, census",
    "said after a minute; then its key is given up and another is asked for",
)
BOOT = Deadline(
    "a machine was given, or its process starts again, and has not said hello",
    timedelta(minutes=15),
    "15 min since it was asked for, or since the process ended",
    "plan",
    "it is ended and replaced",
)
ENTRY = Deadline(
    "a directive is published and not entered by all",
    timedelta(minutes=15),
    "15 min, and twice run.stall",
    "plan",
    "newcomers who hold it up are ended and the others go on without; else it is formed anew",
)
BREATH = Deadline(
    "the workers lost touch with each other",
    timedelta(seconds=2),
    "2 s, twice as long after each try in vain, up to 1 min",
    "plan",
    "the generation is formed anew",
)
FRUITLESS = Deadline(
    "directives in a row bore no iteration",
    timedelta(minutes=15),
    "5 directives and 15 min",
    "plan",
    "the job fails, and says what its workers did",
)
SILENT = Deadline(
    "a worker or server does not speak while others do",
    SILENCE,
    "60 s",
    "plan",
    "it is ended and replaced",
)
ALL_SILENT = Deadline(
    "no worker speaks",
    timedelta(minutes=10),
    "10 min, of which this controller could hear each",
    "plan",
    "all are ended and replaced",
)
FIRST = Deadline(
    "a directive is entered, and no iteration of it was measured",
    timedelta(hours=2),
    "2 h",
    "plan",
    "its workers are ended and replaced",
)
STALL = Deadline(
    "iterations stand still",
    timedelta(minutes=5),
    "run.stall (5 min), ten iterations, or three of the longest pauses",
    "each machine's supervisor",
    "stacks are shown, the process is started again, three times an hour; then it counts as lost",
)
PROBE = Deadline(
    "a probe does not settle",
    timedelta(hours=2),
    "2 h",
    "plan",
    "settled with the noise there is; with fewer than 20 iterations the search ends without it",
)
FAREWELL = Deadline(
    "a worker was left out and its machine still runs",
    timedelta(seconds=10),
    "10 s",
    "plan",
    "its machine is ended",
)
STANDBY = Deadline(
    "a worker was told to stand by and has not said hello again",
    timedelta(minutes=5),
    "5 min since that, once the others have entered the directive that says so",
    "plan",
    "it is ended, and replaced when the search needs another",
)
COMMAND = Deadline(
    "training is done and the leader's command goes on",
    timedelta(hours=1),
    "an hour since its last word",
    "plan",
    "the job ends by what the leader said",
)
UNSEEN = Deadline(
    "lists do not show a machine",
    timedelta(0),
    "for as long as the provider's lists may lag, and its boot when it was never seen",
    "census",
    "it counts as gone, and is replaced",
)
HIDDEN = Deadline(
    "the cloud shows no machines",
    timedelta(minutes=1),
    "for as long as that lasts; it counts from the first refusal, or after 1 min without an answer",
    "lookout",
    "no machine is made, and none ended but of jobs that have ended; said once, all else goes on",
)
ASKED = Deadline(
    "its cloud was asked to make or to end its machines",
    timedelta(minutes=1),
    "1 min each, the longest that a call may take",
    "courier",
    "the next call, then the next action; until then the job hears nothing, not even its end",
)
ENDING = Deadline(
    "a machine was told to end and is still shown",
    SELDOM,
    f"told again after 2 s and ever later, up to 1 min, for ever; an alarm at order {ALARM}",
    "census",
    "it ends; it does so by itself when its prepaid time does",
)
DEADLINES = (
    *(PASS, LEASE, FROZEN, UNANSWERED, BOOT, ENTRY, BREATH, FRUITLESS, SILENT, ALL_SILENT),
    *(FIRST, STALL, PROBE, FAREWELL, STANDBY, COMMAND, UNSEEN, HIDDEN, ASKED, ENDING),
)


def is_late(snapshot: Snapshot, vm: Vm) -> bool:
    """Whether a machine should have been given, or its process said hello, long ago."""
    known = snapshot.worker(vm.id)
    if known is not None:
        return not known.is_up and BOOT.is_over(snapshot.audible(known.seen_at), snapshot.now)
    if vm.state == "intended":
        return UNANSWERED.is_over(vm.intended_at, snapshot.now)
    asked_at = vm.attempted_at or vm.intended_at
    return BOOT.is_over(snapshot.audible(asked_at), snapshot.now)


def stays_on(snapshot: Snapshot, vm: Vm) -> bool:
    """Whether a worker should have stood by long ago, and is in its old generation instead.

    One that lost touch while it was told so waits there, for a generation that is not its own.
    """
    known = snapshot.worker(vm.id)
    if known is None or vm.id not in snapshot.aside:
        return False
    is_behind = known.generation > 0 and snapshot.is_applied
    return is_behind and STANDBY.is_over(told_at(snapshot), snapshot.now)


def told_at(snapshot: Snapshot) -> datetime | None:
    """Return since when the newest Directive could be heard, and its workers."""
    told = snapshot.published_at
    return None if told is None else snapshot.audible(told)


def is_entry_over(snapshot: Snapshot) -> bool:
    """Whether the newest Directive should have been entered long ago, and was not."""
    stall = timedelta(seconds=2 * snapshot.job.spec.run.stall)
    return not snapshot.is_applied and ENTRY.is_over(told_at(snapshot), snapshot.now - stall)


def is_idle(snapshot: Snapshot) -> bool:
    """Whether the newest Directive was entered for so long that there must be iterations of it."""
    directive = snapshot.directive
    is_training = directive is not None and directive.purpose == "train"
    return is_training and snapshot.is_applied and FIRST.is_over(told_at(snapshot), snapshot.now)


def is_doubtful(snapshot: Snapshot) -> bool:
    """Whether it matters how many Directives in a row bore no iteration."""
    members = [snapshot.worker(member) for member in snapshot.members]
    is_broken = any(worker is not None and worker.broken is not None for worker in members)
    return is_broken or is_entry_over(snapshot) or is_idle(snapshot)


def is_fruitless(snapshot: Snapshot) -> bool:
    """Whether Directive after Directive bore no iteration."""
    told = snapshot.fruitless
    return len(told) >= TRIES and FRUITLESS.is_over(told[0], snapshot.now)


def breath(snapshot: Snapshot) -> timedelta:
    """Return how old a Directive has to be whose workers lost touch, to be formed anew."""
    in_vain = max(len(snapshot.fruitless) - 1, 0)
    pause: timedelta = BREATH.after * 2 ** min(in_vain, 10)
    return min(pause, LONGEST_BREATH)


def table() -> str:
    """Render all deadlines as Markdown."""
    head = ("| State | At most | Who watches | What follows |", "|---|---|---|---|")
    rows = (f"| {d.state} | {d.span} | {d.watcher} | {d.successor} |" for d in DEADLINES)
    return "\n".join((*head, *rows)) + "\n"
