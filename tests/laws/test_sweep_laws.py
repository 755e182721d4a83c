"""Laws of the sweeper over random clouds: what it must never end, and what it must.

Every machine of a world knows the truth about itself, which the sweeper has to find out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scavenger.schemas.machines import SweepView
from service.clouds.labels import LAUNCH_COUNT_LABEL, OWNER_LABEL, SIGNATURE_LABEL, ResourceLabels
from service.clouds.provider import Instance, InstanceState
from service.db.vms import MachineRecord, is_counted
from service.garbage_collection.judge import (
    JOB_END_GRACE,
    MAX_SWEEP_GAP,
    SweepInput,
    SweepVerdict,
    judge,
)
from tests.builders import NOW

WORLDS = int(os.environ.get("SWEEP_WORLDS", "150"))
GRACE = timedelta(seconds=30)
OURS = ResourceLabels("ours", b"our secret")
NEIGHBOURS = ResourceLabels("theirs", b"their secret")
SIBLING = ResourceLabels("another", OURS.secret)
ALIVE = (InstanceState.PENDING, InstanceState.RUNNING, InstanceState.STOPPED)
REMEMBERED, LATER = "epoch-5", "epoch-6"
LAUNCHES = {"epoch": 5}

worlds = settings(max_examples=WORLDS, suppress_health_check=[HealthCheck.too_slow])


@dataclass(frozen=True)
class Machine:
    """A machine the cloud shows, and the truth about it.

    Attributes:
        known: What the database says of its launch key.
        is_ours: Whether this installation launched it.
    """

    instance: Instance
    known: MachineRecord | None
    is_ours: bool

    @property
    def is_alive(self) -> bool:
        return self.instance.state in ALIVE

    @property
    def is_new(self) -> bool:
        """Whether it was launched after the database was saved."""
        return self.is_ours and self.instance.labels[LAUNCH_COUNT_LABEL] == LATER

    def is_unwanted(self, now: datetime) -> bool:
        """Whether it is ours and no job has a use for it."""
        if not (self.is_ours and self.is_alive):
            return False
        if self.known is None or not self.known.is_alive:
            return True
        ended_at = self.known.over_since
        return ended_at is not None and now - ended_at > timedelta(seconds=120)


def instance(number: int, state: InstanceState, labels: Mapping[str, str], key: str) -> Instance:
    return Instance(f"i-{number}", key, f"job_{number % 3}", state, "", labels)


@st.composite
def machines_of_ours(draw: st.DrawFn, number: int, stamp: str, known: bool | None) -> Machine:
    """One we launched: known as alive (True), as gone (False), or not at all (None)."""
    key = f"key-{number}"
    state = draw(st.sampled_from(InstanceState))
    mine = instance(number, state, OURS.labels(key, stamp), key)
    if known is None:
        return Machine(mine, None, True)
    name = draw(st.sampled_from([mine.provider_id, None])) if known else mine.provider_id
    over = draw(st.none() | st.sampled_from([0, 60, 119, 120, 121, 3600]))
    over_since = None if over is None else NOW - timedelta(seconds=over)
    return Machine(mine, MachineRecord(known, name, over_since), True)


@st.composite
def machines_of_others(draw: st.DrawFn, number: int, ours: Sequence[Machine]) -> Machine:
    """A machine that a stranger launched, maybe with labels that were copied or made up."""
    key, state = f"key-{number}", draw(st.sampled_from(InstanceState))
    proofs = [OURS.signature(f"key-{n}") for n in range(number)]
    made_up = draw(st.sampled_from(["", "0" * 32, OURS.signature(key)[:-1], "é", "\ud800", "\0"]))
    labels = draw(
        st.sampled_from(
            [
                {},
                {"name": "a stranger's", "scavenger": "ours"},
                NEIGHBOURS.labels(key, REMEMBERED),
                SIBLING.labels(key, REMEMBERED),
                {**NEIGHBOURS.labels(key, REMEMBERED), OWNER_LABEL: OURS.installation},
                {**SIBLING.labels(key, REMEMBERED), OWNER_LABEL: OURS.installation},
                {**OURS.labels(key, REMEMBERED), OWNER_LABEL: "theirs"},
                {OWNER_LABEL: OURS.installation, LAUNCH_COUNT_LABEL: REMEMBERED},
                {
                    OWNER_LABEL: OURS.installation,
                    LAUNCH_COUNT_LABEL: REMEMBERED,
                    SIGNATURE_LABEL: made_up,
                },
                *({**OURS.labels(key, LATER), SIGNATURE_LABEL: proof} for proof in proofs),
            ]
        )
    )
    # A stranger's launch key may be anything, one of ours among them.
    if SIGNATURE_LABEL not in labels and ours and draw(st.booleans()):
        key = draw(st.sampled_from(ours)).instance.launch_key
    return Machine(instance(number, state, labels, key), None, False)


@st.composite
def twins(draw: st.DrawFn, number: int, ours: Sequence[Machine]) -> Machine:
    """A copy of one of ours, down to the last label, made by a stranger."""
    original = draw(st.sampled_from(ours))
    state = draw(st.sampled_from(InstanceState))
    copied = replace(original.instance, provider_id=f"i-{number}", state=state)
    return Machine(copied, original.known, False)


@st.composite
def clouds(draw: st.DrawFn, *, is_restored: bool | None = None) -> tuple[Machine, ...]:
    """Any mixture; of a restored database, there are machines launched since it was saved."""
    restored = draw(st.booleans()) if is_restored is None else is_restored
    counts = st.integers(0, draw(st.sampled_from([2, 5, 25])))
    kinds: list[tuple[str, bool | None]] = [(REMEMBERED, True)] * draw(counts)
    kinds += [(REMEMBERED, draw(st.sampled_from([False, None]))) for _ in range(draw(counts))]
    if restored:
        kinds += [(LATER, draw(st.sampled_from([True, None]))) for _ in range(draw(counts) + 1)]
    found = [
        draw(machines_of_ours(number, stamp, known)) for number, (stamp, known) in enumerate(kinds)
    ]
    ours = tuple(found)
    for _ in range(draw(st.integers(0, 6))):
        is_twin = ours and draw(st.booleans())
        kind = twins if is_twin else machines_of_others
        found.append(draw(kind(len(found), ours)))
    return tuple(draw(st.permutations(found)))


@dataclass
class Watch:
    """Sweeps of one world, one after the other."""

    machines: Sequence[Machine]
    confirmed: dict[str, str] = field(default_factory=dict)
    before: SweepView | None = None
    candidates: dict[str, datetime] = field(default_factory=dict)

    def look(self, now: datetime, hidden: frozenset[str] = frozenset()) -> SweepVerdict:
        """Judge what is shown, and check the verdict against the truth."""
        shown = [m for m in self.machines if m.instance.provider_id not in hidden]
        known = {m.instance.launch_key: m.known for m in self.machines if m.known is not None}
        sweep_input = SweepInput(
            now=now,
            instances=[machine.instance for machine in shown],
            known=known,
            launches=LAUNCHES,
            previous_sweep=self.before,
            confirmed=self.confirmed,
            grace=GRACE,
        )
        verdict = judge(OURS, sweep_input)
        self._check(now, verdict, tuple(shown))
        self.before = SweepView(
            number=1,
            cloud="local",
            at=now,
            shown=verdict.shown,
            suspects=list(verdict.suspects),
            ended=0,
            tripped=verdict.tripped,
            confirmed_at=None,
        )
        return verdict

    def _check(self, now: datetime, verdict: SweepVerdict, shown: Sequence[Machine]) -> None:
        ours = [m for m in shown if m.is_ours and m.is_alive and not is_double(m, shown)]
        unwanted = {m.instance.provider_id for m in ours if m.is_unwanted(now)}
        new = {m.instance.provider_id for m in ours if m.is_new} - self.confirmed.keys()
        open_ = {name for name in unwanted if self.confirmed.get(name) != "hold"}
        is_mass = len(open_) > 3 and 5 * len(open_) > len(ours)
        assert (verdict.tripped is not None) == (is_mass or bool(new))
        is_late = self.before is None or not timedelta(0) <= now - self.before.at <= MAX_SWEEP_GAP
        since = {} if is_late else self.candidates
        self.candidates = {name: since.get(name, now) for name in unwanted}
        ripe = {name for name, at in self.candidates.items() if now - at >= GRACE}
        assert {one.machine for one in verdict.ended} == (ripe - open_ if verdict.tripped else ripe)
        assert verdict.shown == len(ours)

    def confirm(self) -> None:
        """Let what is held be ended, as a person does."""
        assert self.before is not None
        held = {one.machine: one.fate for one in self.before.suspects}
        self.confirmed |= {name: fate for name, fate in held.items() if fate in ("hold", "keep")}


def is_double(machine: Machine, shown: Sequence[Machine]) -> bool:
    """Whether a machine cannot be told from a copy of it."""
    mine = machine.instance
    is_named = machine.known is not None and machine.known.provider_id is not None
    carriers = [m for m in shown if m.instance.launch_key == mine.launch_key]
    return not is_named and len(carriers) > 1


def ended_of(verdict: SweepVerdict) -> set[str]:
    return {suspect.machine for suspect in verdict.ended}


STEPS = st.lists(st.sampled_from([-3600, -1, 0, 1, 10, 29, 30, 31, 60, 300, 301, 3600]), max_size=8)


@given(cloud=clouds(), steps=STEPS, data=st.data())
@worlds
def test_what_is_ended_is_ours_and_unwanted_and_was_so_for_a_while(
    cloud: tuple[Machine, ...], steps: list[int], data: st.DataObject
) -> None:
    """At any pace, with lists that leave machines out and clocks that are set."""
    watch, now = Watch(cloud), NOW
    # While the original is hidden, a perfect copy cannot be told from it.
    names = [m.instance.provider_id for m in cloud if not is_double(m, cloud)]
    for step in [0, *steps]:
        now += timedelta(seconds=step)
        hidden = data.draw(
            st.frozensets(st.sampled_from(names), max_size=2) if names else st.just(frozenset())
        )
        verdict = watch.look(now, hidden)
        truth = {machine.instance.provider_id: machine for machine in cloud}
        assert all(truth[name].is_unwanted(now) for name in ended_of(verdict))
        if verdict.tripped and data.draw(st.booleans()):
            watch.confirm()


@given(cloud=clouds(is_restored=True), pause=st.integers(10, 299))
@worlds
def test_a_restored_database_ends_nothing_until_a_person_confirms(
    cloud: tuple[Machine, ...], pause: int
) -> None:
    watch = Watch(cloud)
    moments = [NOW + timedelta(seconds=pause * number) for number in range(6)]
    verdicts = [watch.look(moment) for moment in moments]
    is_seen = any(m.is_new and m.is_alive and not is_double(m, cloud) for m in cloud)
    for verdict in verdicts:
        assert not (is_seen and verdict.ended)
        assert (verdict.tripped is not None) or not is_seen


@given(cloud=clouds(), orphans=st.integers(4, 40), pause=st.integers(30, 299))
@worlds
def test_who_confirms_ends_what_was_held_and_nothing_that_came_later(
    cloud: tuple[Machine, ...], orphans: int, pause: int
) -> None:
    lost = tuple(orphan(1000 + number, REMEMBERED) for number in range(max(orphans, len(cloud))))
    watch = Watch((*cloud, *lost))
    for number in range(3):
        assert not watch.look(NOW + timedelta(seconds=pause * number)).ended
    assert watch.before is not None
    held = {one.machine for one in watch.before.suspects if one.fate == "hold"}
    assert {machine.instance.provider_id for machine in lost} <= held
    watch.confirm()
    late = orphan(5000, LATER)
    watch.machines = (*watch.machines, late)
    for number in range(3, 6):
        verdict = watch.look(NOW + timedelta(seconds=pause * number))
        assert verdict.tripped
        assert held <= ended_of(verdict)
        assert late.instance.provider_id not in ended_of(verdict)


def orphan(number: int, stamp: str) -> Machine:
    """A machine of ours that the database does not know."""
    key = f"key-{number}"
    labels = OURS.labels(key, stamp)
    return Machine(instance(number, InstanceState.RUNNING, labels, key), None, True)


@given(stamps=st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 9)), max_size=9))
def test_a_launch_is_remembered_by_a_database_that_counted_it_or_a_later_one(
    stamps: list[tuple[str, int]],
) -> None:
    known: dict[str, int] = {}
    for token, number in stamps:
        known[token] = max(known.get(token, 0), number)
    for token, number in stamps:
        assert is_counted(f"{token}-{number}", known)
        assert not is_counted(f"{token}-{known[token] + 1}", known)
        assert not is_counted(f"other-{number}", known)


def test_figures_are_the_promised_ones() -> None:
    assert timedelta(seconds=120) == JOB_END_GRACE
    assert timedelta(minutes=5) >= MAX_SWEEP_GAP


def moments() -> Iterator[datetime]:
    return (NOW + timedelta(seconds=60 * number) for number in range(100))


def test_a_few_of_many_are_ended_and_more_are_not() -> None:
    """On both sides of the breaker: three, or one in five."""
    for working, unwanted, is_tripped in [
        (0, 3, False),
        (0, 4, True),
        (15, 4, True),
        (16, 4, False),
        (80, 20, False),
        (80, 21, True),
    ]:
        used = [
            replace(orphan(n, REMEMBERED), known=MachineRecord(True, f"i-{n}", None))
            for n in range(working)
        ]
        lost = [orphan(1000 + n, REMEMBERED) for n in range(unwanted)]
        watch = Watch((*used, *lost))
        *_, verdict = [watch.look(at) for at, _ in zip(moments(), range(2), strict=False)]
        assert (verdict.tripped is not None) == is_tripped
        assert len(verdict.ended) == (0 if is_tripped else unwanted)
