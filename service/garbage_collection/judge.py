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

from scavenger.schemas.machines import OrphanView, SweepView
from service.clouds.labels import ResourceLabels, launch_stamp_of
from service.clouds.provider import Instance, InstanceState
from service.db.sweeps import Fate
from service.db.vms import MachineRecord, is_counted

LIVE_STATES = (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPED)
JOB_END_GRACE = timedelta(seconds=120)
MAX_SWEEP_GAP = timedelta(minutes=5)
FEW_ORPHANS, MAX_ORPHAN_SHARE = 3, 0.2
MAX_SHOWN_TEXT = 200


@dataclass(frozen=True, slots=True)
class SweepInput:
    """Everything one sweep knows.

    Attributes:
        instances: The machines as the cloud showed them, before the rest was read.
        known: What the database knows of their launch keys.
        launches: Launches the database remembers, by launch counter.
        previous_sweep: The sweep before this one.
        confirmed: Machines that a person confirmed while they were held, with their fate then.
        grace: How long a machine is an orphan before it is ended.
    """

    now: datetime
    instances: Sequence[Instance]
    known: Mapping[str, MachineRecord]
    launches: Mapping[str, int]
    previous_sweep: SweepView | None
    confirmed: Mapping[str, str]
    grace: timedelta


@dataclass(frozen=True, slots=True)
class SweepVerdict:
    """What may be ended.

    Attributes:
        shown: Machines of ours the cloud shows alive.
        tripped: Why orphans are held, in one sentence; None where none are.
    """

    shown: int
    suspects: tuple[OrphanView, ...]
    tripped: str | None

    @property
    def ended(self) -> tuple[OrphanView, ...]:
        return tuple(orphan for orphan in self.suspects if orphan.fate == "end")


def judge(resource_labels: ResourceLabels, sweep_input: SweepInput) -> SweepVerdict:
    """Return what may be ended, what is spared, and why."""
    carriers = Counter(one.launch_key for one in sweep_input.instances)
    spared: list[OrphanView] = []
    ours: list[Instance] = []
    # A machine that is ending already has its order; another one would change nothing.
    for one in (one for one in sweep_input.instances if one.state in LIVE_STATES):
        reason = resource_labels.foreign_reason(one) or ambiguity(
            sweep_input, one, carriers[one.launch_key]
        )
        if reason is None:
            ours.append(one)
        else:
            spared.append(orphan_view(one, "spare", reason))
    tripped = breaker_reason(sweep_input, ours)
    found = [decide_fate(sweep_input, one, is_held=tripped is not None) for one in ours]
    orphans = [orphan for orphan in found if orphan is not None]
    return SweepVerdict(len(ours), (*orphans, *spared), tripped)


def ambiguity(sweep_input: SweepInput, instance: Instance, carriers: int) -> str | None:
    """Say why a machine may be a copy of ours, with all its labels; None if it is not.

    A launch key makes one machine, ever, so of several that carry it only the one the database
    knows by its name is ours, even when the others are gone.
    """
    known = sweep_input.known.get(instance.launch_key)
    if known is not None and known.provider_id is not None:
        is_known = known.provider_id == instance.provider_id
        return None if is_known else f"its launch key is that of {known.provider_id}"
    return "another machine carries its launch key, too" if carriers > 1 else None


def orphan_reason(sweep_input: SweepInput, instance: Instance) -> str | None:
    """Say why a machine of ours should not be there; None if it should."""
    known = sweep_input.known.get(instance.launch_key)
    if known is None:
        return "the database does not know it"
    if not known.is_alive:
        return "the database knows it as gone"
    if known.over_since is not None and sweep_input.now - known.over_since > JOB_END_GRACE:
        return f"its job ended at {known.over_since:%H:%M:%S} UTC"
    return None


def breaker_reason(sweep_input: SweepInput, ours: Sequence[Instance]) -> str | None:
    """Say why only confirmed machines may be terminated; None while the breaker is closed."""
    news = [
        one
        for one in ours
        if is_newer_than_database(sweep_input, one) and one.provider_id not in sweep_input.confirmed
    ]
    if news:
        return (
            f"{len(news)} of {len(ours)} machines were launched after this database was saved: "
            "it seems to be a restored backup, or a copy"
        )
    orphans = [
        one
        for one in ours
        if is_unconfirmed(sweep_input, one) and orphan_reason(sweep_input, one) is not None
    ]
    if len(orphans) > max(FEW_ORPHANS, MAX_ORPHAN_SHARE * len(ours)):
        return (
            f"{len(orphans)} of {len(ours)} machines would be ended: so many that the database is "
            "more likely to be wrong"
        )
    return None


def is_newer_than_database(sweep_input: SweepInput, instance: Instance) -> bool:
    """Whether a machine was launched after the last thing the database remembers."""
    return not is_counted(launch_stamp_of(instance), sweep_input.launches)


def is_unconfirmed(sweep_input: SweepInput, instance: Instance) -> bool:
    """Whether no person has confirmed that a machine may be terminated."""
    return sweep_input.confirmed.get(instance.provider_id) != "hold"


def decide_fate(sweep_input: SweepInput, instance: Instance, *, is_held: bool) -> OrphanView | None:
    """Say what becomes of a machine of ours; None for one that is as it should be."""
    reason = orphan_reason(sweep_input, instance)
    if reason is None:
        is_odd = is_newer_than_database(sweep_input, instance)
        return orphan_view(instance, "keep", "the database is older than it") if is_odd else None
    since = orphan_since(sweep_input, instance)
    if is_held and is_unconfirmed(sweep_input, instance):
        return orphan_view(instance, "hold", reason, since)
    is_ripe = sweep_input.now - since >= sweep_input.grace
    return orphan_view(instance, "end" if is_ripe else "wait", reason, since)


def orphan_since(sweep_input: SweepInput, instance: Instance) -> datetime:
    """Return from when on a machine has been an orphan in every sweep.

    After a long break, or a clock that was set, all begin anew.
    """
    previous = sweep_input.previous_sweep
    if previous is None or not timedelta(0) <= sweep_input.now - previous.at <= MAX_SWEEP_GAP:
        return sweep_input.now
    found = (one.since for one in previous.suspects if one.machine == instance.provider_id)
    return next((since for since in found if since is not None), sweep_input.now)


def orphan_view(
    instance: Instance, fate: Fate, reason: str, since: datetime | None = None
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
