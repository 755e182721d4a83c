"""judge(): from what one sweep saw to what may be ended. Pure; in doubt a machine is spared.

A machine is a candidate when it is provably ours and the database gives it no reason to be there.
It is ended once it has been one for a while, unless so many are that the database is the likelier
culprit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from service.clouds.provider import Instance, InstanceState
from service.db.epochs import is_remembered
from service.db.sweeps import Fate, Suspect, Sweep
from service.db.vms import Known
from service.reconciler.ownership import Ownership, stamp_of

ALIVE = (InstanceState.PENDING, InstanceState.RUNNING)
FAREWELL = timedelta(seconds=120)
MEMORY = timedelta(minutes=5)
FEW, SHARE = 3, 0.2
LONGEST = 200


@dataclass(frozen=True, slots=True)
class Sight:
    """Everything one sweep knows.

    Attributes:
        shown: The machines as the cloud showed them, before the rest was read.
        known: What the database knows of their launch keys.
        launches: Launches the database remembers, by epoch.
        before: The sweep before this one.
        confirmed: Machines that somebody saw when they were held, with their fate then.
        grace: How long a machine is a candidate before it is ended.
    """

    now: datetime
    shown: Sequence[Instance]
    known: Mapping[str, Known]
    launches: Mapping[str, int]
    before: Sweep | None
    confirmed: Mapping[str, Fate]
    grace: timedelta


@dataclass(frozen=True, slots=True)
class Verdict:
    """What may be ended.

    Attributes:
        shown: Machines of ours the cloud shows alive.
        tripped: Why candidates are held, in one sentence; None where none are.
    """

    shown: int
    suspects: tuple[Suspect, ...]
    tripped: str | None

    @property
    def ended(self) -> tuple[Suspect, ...]:
        """What is to be ended now."""
        return tuple(suspect for suspect in self.suspects if suspect.fate == "end")


def judge(ownership: Ownership, sight: Sight) -> Verdict:
    """Return what may be ended, what is spared, and why."""
    carriers = Counter(one.launch_key for one in sight.shown)
    spared: list[Suspect] = []
    ours: list[Instance] = []
    for one in (one for one in sight.shown if one.state in ALIVE):
        objection = ownership.objection(one) or doubt(sight, one, carriers[one.launch_key])
        if objection is None:
            ours.append(one)
        else:
            spared.append(name(one, "spare", objection))
    tripped = trip(sight, ours)
    found = [assess(sight, one, is_held=tripped is not None) for one in ours]
    suspects = [suspect for suspect in found if suspect is not None]
    return Verdict(len(ours), (*suspects, *spared), tripped)


def doubt(sight: Sight, instance: Instance, carriers: int) -> str | None:
    """Say why a machine may be a copy of ours, with all its labels; None if it is not.

    A launch key makes one machine, ever, so of several that carry it only the one the database
    knows by its name is ours, even when the others are gone.
    """
    known = sight.known.get(instance.launch_key)
    if known is not None and known.provider_id is not None:
        is_known = known.provider_id == instance.provider_id
        return None if is_known else f"its launch key is that of {known.provider_id}"
    return "another machine carries its launch key, too" if carriers > 1 else None


def charge(sight: Sight, instance: Instance) -> str | None:
    """Say why a machine of ours should not be there; None if it should."""
    known = sight.known.get(instance.launch_key)
    if known is None:
        return "the database does not know it"
    if not known.is_alive:
        return "the database knows it as gone"
    if known.over_since is not None and sight.now - known.over_since > FAREWELL:
        return f"its job ended at {known.over_since:%H:%M:%S} UTC"
    return None


def trip(sight: Sight, ours: Sequence[Instance]) -> str | None:
    """Say why nothing may be ended that nobody has confirmed; None if nothing speaks against it."""
    news = [one for one in ours if is_news(sight, one) and one.provider_id not in sight.confirmed]
    if news:
        return (
            f"{len(news)} of {len(ours)} machines were launched after this database was saved: "
            "it seems to be a restored backup, or a copy"
        )
    accused = [one for one in ours if is_open(sight, one) and charge(sight, one) is not None]
    if len(accused) > max(FEW, SHARE * len(ours)):
        return f"{len(accused)} of {len(ours)} machines would be ended: too many for an accident"
    return None


def is_news(sight: Sight, instance: Instance) -> bool:
    """Whether a machine was launched after the last thing the database remembers."""
    return not is_remembered(stamp_of(instance), sight.launches)


def is_open(sight: Sight, instance: Instance) -> bool:
    """Whether nobody has let a machine be ended."""
    return sight.confirmed.get(instance.provider_id) != "hold"


def assess(sight: Sight, instance: Instance, *, is_held: bool) -> Suspect | None:
    """Say what becomes of a machine of ours; None for one that is as it should be."""
    reason = charge(sight, instance)
    if reason is None:
        is_odd = is_news(sight, instance)
        return name(instance, "keep", "the database is older than it") if is_odd else None
    since = first_seen(sight, instance)
    if is_held and is_open(sight, instance):
        return name(instance, "hold", reason, since)
    is_ripe = sight.now - since >= sight.grace
    return name(instance, "end" if is_ripe else "wait", reason, since)


def first_seen(sight: Sight, instance: Instance) -> datetime:
    """Return from when on a machine has been a candidate in every sweep.

    After a long break, or a clock that was set, all begin anew.
    """
    before = sight.before
    if before is None or not timedelta(0) <= sight.now - before.at <= MEMORY:
        return sight.now
    found = (one.since for one in before.suspects if one.machine == instance.provider_id)
    return next((since for since in found if since is not None), sight.now)


def name(instance: Instance, fate: Fate, reason: str, since: datetime | None = None) -> Suspect:
    """Write down a machine and its fate."""
    return Suspect(
        machine=legible(instance.provider_id),
        launch_key=legible(instance.launch_key),
        job=legible(instance.job),
        fate=fate,
        reason=reason,
        since=since,
    )


def legible(text: str) -> str:
    r"""Return a stranger's words as they can be stored and shown.

    >>> legible("key-1"), legible("a\x00b")
    ('key-1', 'a?b')
    """
    shown = (character if character.isprintable() else "?" for character in text[:LONGEST])
    return "".join(shown)
