"""judge(): from what one sweep saw to what may be terminated. Pure.

In doubt a machine is spared. A machine is an orphan when its labels prove it ours and the database
gives it no reason to exist. It is terminated once it has been an orphan for a while, unless there
are so many that the database is more likely to be wrong.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scavenger.schemas import OrphanView, SweepView
from service.clouds.labels import ResourceLabels, launch_stamp_of
from service.clouds.provider import Instance, InstanceState
from service.db.sweeps import Disposition
from service.db.vms import MachineRecord, is_counted

LIVE_STATES = (InstanceState.PENDING, InstanceState.RUNNING)
JOB_END_GRACE = timedelta(seconds=120)
MAX_SWEEP_GAP = timedelta(minutes=5)
FEW_ORPHANS, MAX_ORPHAN_SHARE = 3, 0.2
MAX_SHOWN_TEXT = 200


@dataclass(frozen=True, slots=True)
class SweepInput:
    """Everything one sweep knows.

    Attributes:
        shown: The machines as the cloud showed them, before the rest was read.
        known: What the database knows of their launch keys.
        launches: Launches the database remembers, by epoch.
        before: The sweep before this one.
        confirmed: Machines that a person confirmed while they were held, with their fate then.
        grace: How long a machine is a candidate before it is ended.
    """

    now: datetime
    shown: Sequence[Instance]
    known: Mapping[str, MachineRecord]
    launches: Mapping[str, int]
    before: SweepView | None
    confirmed: Mapping[str, str]
    grace: timedelta


@dataclass(frozen=True, slots=True)
class SweepVerdict:
    """What may be ended.

    Attributes:
        shown: Machines of ours the cloud shows alive.
        tripped: Why candidates are held, in one sentence; None where none are.
    """

    shown: int
    suspects: tuple[OrphanView, ...]
    tripped: str | None

    @property
    def ended(self) -> tuple[OrphanView, ...]:
        return tuple(suspect for suspect in self.suspects if suspect.fate == "end")


def judge(resource_labels: ResourceLabels, sight: SweepInput) -> SweepVerdict:
    """Return what may be ended, what is spared, and why."""
    carriers = Counter(one.launch_key for one in sight.shown)
    spared: list[OrphanView] = []
    ours: list[Instance] = []
    # A machine that is ending already has its order; another one would change nothing.
    for one in (one for one in sight.shown if one.state in LIVE_STATES):
        objection = resource_labels.objection(one) or ambiguity(
            sight, one, carriers[one.launch_key]
        )
        if objection is None:
            ours.append(one)
        else:
            spared.append(to_orphan(one, "spare", objection))
    tripped = breaker_reason(sight, ours)
    found = [dispose(sight, one, is_held=tripped is not None) for one in ours]
    suspects = [suspect for suspect in found if suspect is not None]
    return SweepVerdict(len(ours), (*suspects, *spared), tripped)


def ambiguity(sight: SweepInput, instance: Instance, carriers: int) -> str | None:
    """Say why a machine may be a copy of ours, with all its labels; None if it is not.

    A launch key makes one machine, ever, so of several that carry it only the one the database
    knows by its name is ours, even when the others are gone.
    """
    known = sight.known.get(instance.launch_key)
    if known is not None and known.provider_id is not None:
        is_known = known.provider_id == instance.provider_id
        return None if is_known else f"its launch key is that of {known.provider_id}"
    return "another machine carries its launch key, too" if carriers > 1 else None


def orphan_reason(sight: SweepInput, instance: Instance) -> str | None:
    """Say why a machine of ours should not be there; None if it should."""
    known = sight.known.get(instance.launch_key)
    if known is None:
        return "the database does not know it"
    if not known.is_alive:
        return "the database knows it as gone"
    if known.over_since is not None and sight.now - known.over_since > JOB_END_GRACE:
        return f"its job ended at {known.over_since:%H:%M:%S} UTC"
    return None


def breaker_reason(sight: SweepInput, ours: Sequence[Instance]) -> str | None:
    """Say why only confirmed machines may be terminated; None while the breaker is closed."""
    news = [
        one
        for one in ours
        if is_newer_than_database(sight, one) and one.provider_id not in sight.confirmed
    ]
    if news:
        return (
            f"{len(news)} of {len(ours)} machines were launched after this database was saved: "
            "it seems to be a restored backup, or a copy"
        )
    accused = [
        one for one in ours if is_unconfirmed(sight, one) and orphan_reason(sight, one) is not None
    ]
    if len(accused) > max(FEW_ORPHANS, MAX_ORPHAN_SHARE * len(ours)):
        return f"{len(accused)} of {len(ours)} machines would be ended: too many for an accident"
    return None


def is_newer_than_database(sight: SweepInput, instance: Instance) -> bool:
    """Whether a machine was launched after the last thing the database remembers."""
    return not is_counted(launch_stamp_of(instance), sight.launches)


def is_unconfirmed(sight: SweepInput, instance: Instance) -> bool:
    """Whether no person has confirmed that a machine may be terminated."""
    return sight.confirmed.get(instance.provider_id) != "hold"


def dispose(sight: SweepInput, instance: Instance, *, is_held: bool) -> OrphanView | None:
    """Say what becomes of a machine of ours; None for one that is as it should be."""
    reason = orphan_reason(sight, instance)
    if reason is None:
        is_odd = is_newer_than_database(sight, instance)
        return to_orphan(instance, "keep", "the database is older than it") if is_odd else None
    since = orphan_since(sight, instance)
    if is_held and is_unconfirmed(sight, instance):
        return to_orphan(instance, "hold", reason, since)
    is_ripe = sight.now - since >= sight.grace
    return to_orphan(instance, "end" if is_ripe else "wait", reason, since)


def orphan_since(sight: SweepInput, instance: Instance) -> datetime:
    """Return from when on a machine has been a candidate in every sweep.

    After a long break, or a clock that was set, all begin anew.
    """
    before = sight.before
    if before is None or not timedelta(0) <= sight.now - before.at <= MAX_SWEEP_GAP:
        return sight.now
    found = (one.since for one in before.suspects if one.machine == instance.provider_id)
    return next((since for since in found if since is not None), sight.now)


def to_orphan(
    instance: Instance, fate: Disposition, reason: str, since: datetime | None = None
) -> OrphanView:
    """Write down a machine and its fate."""
    return OrphanView(
        machine=printable(instance.provider_id),
        launch_key=printable(instance.launch_key),
        job=printable(instance.job),
        fate=fate,
        reason=reason,
        since=since,
    )


def printable(text: str) -> str:
    r"""Return a stranger's words as they can be stored and shown.

    >>> printable("key-1"), printable("a\x00b")
    ('key-1', 'a?b')
    """
    shown = (character if character.isprintable() else "?" for character in text[:MAX_SHOWN_TEXT])
    return "".join(shown)
