"""A job ends, no matter what its machines and workers do or leave undone.

The world is a dictionary of fates, one for each machine in the order of their launch, and of times
at which the cloud hides them; time passes, and plan() alone decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scavenger.cluster import ClusterConfig
from scavenger.job.planning import planning_state
from scavenger.layout import PLAIN
from scavenger.measurement.layout_profile import USUAL_LINK, BlockProfile, LayoutProfile
from scavenger.measurement.steps import StepColumns
from scavenger.protocol import Directive, Member
from scavenger.schemas.jobs import JobPhase
from scavenger.stack import EAGER_NAME, StackCheck, refused_layouts
from service.db.jobs import StoredJob
from service.db.measurements import SettledProbe
from service.db.vms import Vm
from service.db.workers import WorkerRow
from service.reconciler import timeouts
from service.reconciler.actions import (
    Action,
    Blocked,
    ChooseConfig,
    Finish,
    Idle,
    KeepConfig,
    Launch,
    NoteBudget,
    NoteFramework,
    PublishDirective,
    RefuseLayout,
    SearchAnew,
    StoreProbe,
    Terminate,
    Unblocked,
)
from service.reconciler.apply import priced_probe
from service.reconciler.plan import plan
from service.reconciler.timeouts import Timeout, may_be_fruitless
from service.state.capacity import has_left_in_order, max_launches
from service.state.job_state import JobState
from tests.builders import NOW, document, job, server, snapshot, spec, steps, vm, worker

STEP = timedelta(minutes=5)
HELLO, DEATH = timedelta(minutes=2), timedelta(minutes=20)
EPOCHS_PER_STEP = 2.0
MOST_AT_ONCE = 20
DEADLINES = [each for each in vars(timeouts).values() if isinstance(each, Timeout)]
WHOLE = sum((deadline.limit for deadline in DEADLINES), timedelta(0))


class Fate(StrEnum):
    """What becomes of a machine and of the process on it."""

    WORKS = "it does what it is told"
    UNGIVEN = "the cloud never gives it"
    DUMB = "its process never says hello"
    SILENT = "its process says hello and nothing more"
    MUTED = "it works for a while, then says nothing more and does nothing"
    DEAF = "it speaks, and enters nothing"
    IDLE = "it enters what it is told, and never finishes an iteration"
    PARTED = "it loses touch with the others at once"
    REFUSES = "it reaches no other worker"
    RESTARTS = "its process starts again and never comes back"
    DIES = "it is gone after a while"
    RECLAIMED = "its cloud takes it back after a while, and its worker leaves in time"
    LINGERS = "its cloud takes it back after a while, and its worker does not leave"
    FAILS = "its command fails"
    STAYS = "it works, and never stands by when it is told to"
    CLINGS = "it works, and its command never ends"
    VANISHES = "it works, and does not come back when it starts again in another layout"
    STICKS = "it works, and its process does not end for another layout"
    UNSAVED = "it works, and cannot keep its state for another layout"
    UNABLE = "it works, and its command fails where processes share the model"


FRAMEWORKS = ("", "pytorch", "tensorflow")
MUTE = (Fate.UNGIVEN, Fate.DUMB)
WARNED = (Fate.RECLAIMED, Fate.LINGERS)
ODD_CHANGES = (Fate.VANISHES, Fate.STICKS, Fate.UNSAVED, Fate.UNABLE)
WORKING = (Fate.WORKS, Fate.MUTED, Fate.DIES, *WARNED, Fate.STAYS, Fate.CLINGS, *ODD_CHANGES)
ENTERING = (*WORKING, Fate.IDLE, Fate.PARTED)


@dataclass
class World:
    """A job, its machines and their workers, in a time of their own."""

    fates: list[Fate]
    is_measured: bool
    job: StoredJob
    hidden: list[bool] = field(default_factory=list)
    framework: str = ""
    now: datetime = NOW
    vms: list[Vm] = field(default_factory=list)
    workers: dict[str, WorkerRow] = field(default_factory=dict)
    directive: Directive | None = None
    told: list[datetime] = field(default_factory=list)
    bearing: int = 0
    rows: int = 0
    probes: tuple[SettledProbe, ...] = ()
    said: list[str] = field(default_factory=list)
    kept: float = 0.0  # epochs of the checkpoint that the last one writes who leaves in time
    layouts: dict[str, str] = field(default_factory=dict)  # of each worker's process
    trained_layouts: list[str] = field(default_factory=list)  # of what bore an iteration, in turn
    checks: tuple[StackCheck, ...] = ()

    def see(self) -> JobState:
        seen = snapshot(
            now=self.now,
            job=self.job,
            vms=tuple(self.vms),
            workers=tuple(self.workers.values()),
            directive=self.directive,
            published_at=self.told[-1] if self.told else None,
            probes=self.probes,
            steps=self.columns(),
            knowledge=planning_state(
                self.job.spec,
                tuple(p.observation for p in self.probes),
                None,
                stack_checks=self.checks,
                profile=PROFILE if self.is_searched else None,
            ),
            refused_layouts=refused_layouts(self.checks),
            trained_layout=self.trained_layouts[-1] if self.trained_layouts else "",
            is_hidden=self.is_hidden,
        )
        return replace(
            seen,
            published_without_iteration=tuple(self.told[self.bearing :] if doubts(seen) else ()),
        )

    @property
    def is_searched(self) -> bool:
        """Whether the layout of workers is."""
        return self.job.spec.limits.layout_search is not None

    @property
    def is_hidden(self) -> bool:
        step = (self.now - NOW) // STEP
        return step < len(self.hidden) and self.hidden[step]

    def columns(self) -> StepColumns:
        if self.directive is None or self.directive.purpose != "probe" or self.job.chosen:
            return StepColumns()
        return steps(self.rows, 200.0, self.directive.config)

    def act(self) -> None:
        """Do all that plan() wants now; it must come to rest."""
        for _ in range(MOST_AT_ONCE):
            action = plan(self.see())
            self.said.append(f"{self.now - NOW} {type(action).__name__}: {action.why}")
            if isinstance(action, Idle):
                return
            self.apply(action)
        raise AssertionError(f"it never rests: {self.said[-MOST_AT_ONCE:]}")

    def apply(self, action: Action) -> None:
        if self.is_hidden and not self.job.phase.is_final:
            assert not isinstance(action, Launch | Terminate), "nothing is known of machines"
        match action:
            case Launch(workers=count, servers=servers):
                for _ in range(servers):
                    self.launch("server")
                for _ in range(count):
                    self.launch("worker")
            case Terminate(names):
                assert names, "nothing is ended for no reason"
                for name in names:
                    self.change(name, state="ending", ordered_at=self.now, orders=1)
            case PublishDirective(directive):
                assert directive.generation == len(self.told) + 1
                self.directive, self.rows = directive, 0
                self.told.append(self.now)
                if directive.purpose == "probe":
                    self.job = replace(self.job, phase=JobPhase.PROBING)
            case StoreProbe(settled):
                self.probes += (priced_probe(self.see(), settled.observation),)
            case ChooseConfig(run, why):
                self.choose(run.config, why)
            case KeepConfig(config, why):
                self.choose(config, why)
            case RefuseLayout(layout, _, why):
                self.checks = (*self.checks, StackCheck(str(layout), 0, 0.0, 0.0, why))
            case SearchAnew(why):
                self.job = replace(self.job, chosen=None, choice=None, reason=why)
            case NoteBudget(share):
                assert share > self.job.budget_told
                self.job = replace(self.job, budget_told=share)
            case NoteFramework(framework, searches_anew=searches_anew):
                assert framework
                assert not self.job.framework, "it is written down once"
                self.job = replace(self.job, framework=framework)
                if searches_anew:
                    self.job = replace(self.job, chosen=None, choice=None)
            case Blocked(why):
                self.job = replace(self.job, waiting=why)
            case Unblocked():
                self.job = replace(self.job, waiting=None)
            case Finish(phase, why):
                ended = {"phase": phase, "reason": why, "finished_at": self.now}
                self.job = replace(self.job, waiting=None, **ended)
            case _:
                raise AssertionError(action)

    def choose(self, config: ClusterConfig, why: str) -> None:
        self.job = replace(self.job, phase=JobPhase.TRAINING, chosen=config, choice=why)

    def launch(self, role: str) -> None:
        number = len(self.vms) + 1
        make = server if role == "server" else vm
        times = {"intended_at": self.now, "attempted_at": self.now}
        given = {"state": "intended", "provider_id": None} if self.fate(number) in MUTE[:1] else {}
        until = self.now + timedelta(days=99)
        self.vms.append(make(number, **times, **given, prepaid_until=until))

    def fate(self, number: int) -> Fate:
        return self.fates[min(number, len(self.fates)) - 1]

    def change(self, name: str, **changes: object) -> None:
        self.vms = [replace(vm, **changes) if vm.id == name else vm for vm in self.vms]

    def note(self, name: str, **changes: object) -> None:
        self.workers[name] = replace(self.workers[name], **changes)

    def pass_time(self) -> None:
        self.now += STEP
        for number, one in enumerate(self.vms, 1):
            if one.state == "ending":
                self.change(one.id, state="gone", ended_at=self.now)
            elif one.state == "launched" and one.exit_code is None:
                self.live(one, number, self.fate(number))
        self.train()

    def live(self, one: Vm, number: int, fate: Fate) -> None:
        """One machine's share of the time that passes."""
        age = self.now - one.intended_at
        if fate in MUTE or age < HELLO:
            return
        if one.id not in self.workers:
            quiet = {"generation": 0, "iteration": 0, "samples": 0, "epochs": 0.0}
            times = {"hello_at": self.now, "seen_at": self.now}
            told = {"worker": one.id, "framework": self.framework}
            self.workers[one.id] = worker(number, **{**quiet, **times, **told})
            # As it enrolled: in the layout that the job is in.
            newest = "" if self.directive is None else self.directive.layout
            is_refused = any(newest == check.stack for check in self.checks)
            self.layouts[one.id] = str(PLAIN) if is_refused else newest or str(PLAIN)
            self.fail_in_layout(one.id, fate)
            return
        if (fate is Fate.DIES and age > DEATH) or one.warned_at is not None:
            self.change(one.id, state="gone", ended_at=self.now)
        elif fate in WARNED and age > DEATH:
            self.change(one.id, warned_at=self.now)
            if fate is Fate.RECLAIMED and self.workers[one.id].finished is None:
                self.note(one.id, finished="released", seen_at=self.now)
                self.kept = max(self.kept, self.workers[one.id].epochs)
        elif fate is Fate.FAILS and age > DEATH:
            self.change(one.id, exit_code=1, tail="no")
        elif fate is Fate.RESTARTS and age > DEATH:
            if self.workers[one.id].address:
                self.note(one.id, address="", generation=0, seen_at=self.now)
        elif not self.workers[one.id].address:
            self.come_back(one.id, number, fate)
        elif fate is not Fate.SILENT and not (fate is Fate.MUTED and age > DEATH):
            self.speak(one.id, fate)

    def speak(self, name: str, fate: Fate) -> None:
        """A worker reports and hears what it is told."""
        known = self.workers[name]
        if known.finished is not None:
            if fate is not Fate.CLINGS:
                self.change(name, exit_code=0)
            return
        self.note(name, seen_at=self.now)
        told = self.directive
        if told is not None and told.layout and self.change_layout(name, told, fate):
            return
        if told is not None and name in told.standby and fate is not Fate.STAYS:
            self.note(name, generation=0, hello_at=self.now)
        if told is None or name not in [member.worker for member in told.members]:
            return
        if fate is Fate.REFUSES and told.members[0].worker == name:
            self.note(name, refused=told.generation)
        if fate in ENTERING:
            broken = told.generation if fate is Fate.PARTED else None
            self.note(name, generation=told.generation, broken=broken)

    def change_layout(self, name: str, told: Directive, fate: Fate) -> bool:
        """Whether a worker starts again in another layout, or waits for the others that do."""
        known = self.workers[name]
        is_listed = Member(name, known.address) in told.members
        if self.layouts[name] == told.layout:
            return told.rank_of(name) is not None and not is_listed
        if not (is_listed or known.generation > 0):
            return False
        leader = told.members[0].worker
        lead = self.workers[leader]
        is_unsaved = self.fate(int(leader.removeprefix("w"))) is Fate.UNSAVED
        if is_unsaved and lead.generation > 0 and lead.finished is None and known.generation > 0:
            if name == leader:
                self.note(name, refused=told.generation)
            return True
        if fate is not Fate.STICKS:
            self.layouts[name] = told.layout
            self.note(name, address="", generation=0)
        return True

    def come_back(self, name: str, number: int, fate: Fate) -> None:
        """The process of a worker that started again says hello, if ever."""
        if fate is Fate.VANISHES or self.fail_in_layout(name, fate):
            return
        address = f"127.0.0.1:{10_000 + 100 * len(self.told) + number}"
        self.note(name, address=address, hello_at=self.now, seen_at=self.now)

    def fail_in_layout(self, name: str, fate: Fate) -> bool:
        """Whether the command of a worker fails in its layout; it starts again in another, if any.

        Where workers have trained in the layout its end is final.
        """
        layout = self.layouts[name]
        if fate is not Fate.UNABLE or layout == str(PLAIN):
            return False
        if layout in self.trained_layouts:
            self.change(name, exit_code=1, tail="no")
            return True
        self.checks = (*self.checks, StackCheck(layout, 0, 0.0, 0.0, "no"))
        self.layouts[name] = str(PLAIN)
        self.note(name, address="", generation=0, seen_at=self.now)
        return True

    def train(self) -> None:
        """Those who all entered the newest Directive and work finish iterations."""
        told, alive = self.directive, {one.id: n for n, one in enumerate(self.vms, 1)}
        if told is None or self.job.phase.is_final:
            return
        names = [member.worker for member in told.members]
        running = [n for n in names if self.vms[alive[n] - 1].state == "launched"]
        heard = all(self.workers[n].seen_at == self.now for n in names)
        entered = [n for n in names if self.workers[n].generation == told.generation]
        works = all(self.fate(alive[n]) in WORKING for n in names)
        served = all(
            self.vms[alive[member.worker] - 1].state == "launched" for member in told.servers
        )
        if not (works and heard and served and running == entered == names):
            return
        self.bearing, self.rows = told.generation, self.rows + 60 * self.is_measured
        self.trained_layouts.append(told.layout)
        for name in names:
            before = self.workers[name]
            epochs = max(before.epochs, self.kept) + EPOCHS_PER_STEP
            is_over = epochs >= self.job.spec.stop_rule.max_progress
            finished = "exhausted" if is_over else None
            self.note(name, iteration=before.iteration + 60, epochs=epochs, finished=finished)

    @property
    def is_over(self) -> bool:
        return self.job.phase.is_final and not any(one.is_alive for one in self.vms)


def doubts(seen: JobState) -> bool:
    return not seen.job.phase.is_final and may_be_fruitless(seen)


LIMITS = {**document()["limits"], "max_cost": "10000 USD"}
FOR_ONE = {**LIMITS, "max_cost": "855.361 USD"}  # one machine's 99 days, not another's
LAYOUTS = {**LIMITS, "layout": {"pipeline": "1..2"}}
CUT = "P=2 T=1 C=blocks.2"
KINDS = st.sampled_from([{}, {"strategy": {"parameter_server": {"servers": 1}}}])
BLOCKS = tuple(BlockProfile(f"blocks.{place}", 1e-3, 1e-3, 1e3, 1e4, 1e6) for place in range(4))
PROFILE = LayoutProfile(
    BLOCKS, USUAL_LINK, USUAL_LINK, processes_per_machine=2, concurrent_processes=1
)


@given(
    fates=st.lists(st.sampled_from(Fate), min_size=2, max_size=6),
    is_measured=st.booleans(),
    kind=KINDS,
    limits=st.sampled_from([LIMITS, FOR_ONE]),
    chosen=st.sampled_from([None, ClusterConfig(1, 128), ClusterConfig(2, 128)]),
    hidden=st.lists(st.booleans(), max_size=12),
    framework=st.sampled_from(FRAMEWORKS),
)
@settings(max_examples=40)
def test_every_job_ends_within_its_deadlines(
    fates: list[Fate],
    is_measured: bool,
    kind: dict[str, object],
    limits: dict[str, object],
    chosen: ClusterConfig | None,
    hidden: list[bool],
    framework: str,
) -> None:
    made = job(spec=spec(limits=limits, **kind), phase=JobPhase.PENDING, chosen=chosen)
    live_through(World(fates, is_measured, made, hidden, framework))


@pytest.mark.parametrize("fate", Fate)
def test_every_job_ends_whose_machines_share_a_fate(fate: Fate) -> None:
    chosen = job(spec=spec(limits=LIMITS), phase=JobPhase.PENDING, chosen=ClusterConfig(2, 128))
    live_through(World([fate], is_measured=True, job=chosen))
    live_through(World([Fate.WORKS, fate, Fate.WORKS], is_measured=True, job=chosen))
    live_through(World([fate], is_measured=False, job=replace(chosen, chosen=None)))


@given(
    fates=st.lists(st.sampled_from(Fate), min_size=2, max_size=6),
    is_measured=st.booleans(),
    chosen=st.sampled_from([None, *(ClusterConfig(k, 128, stack=CUT) for k in (1, 2))]),
    hidden=st.lists(st.booleans(), max_size=12),
)
@settings(max_examples=20)
def test_every_job_that_searches_its_layout_ends_within_its_deadlines(
    fates: list[Fate], is_measured: bool, chosen: ClusterConfig | None, hidden: list[bool]
) -> None:
    made = job(spec=spec(limits=LAYOUTS), phase=JobPhase.PENDING, chosen=chosen)
    live_through(World(fates, is_measured, made, hidden))


@pytest.mark.parametrize("fate", Fate)
def test_every_job_ends_whose_machines_share_a_fate_as_its_layout_changes(fate: Fate) -> None:
    searched = job(spec=spec(limits=LAYOUTS), phase=JobPhase.PENDING)
    chosen = replace(searched, chosen=ClusterConfig(2, 128, stack=CUT))
    for world in (
        World([fate], is_measured=True, job=chosen),
        World([Fate.WORKS, fate, Fate.WORKS], is_measured=True, job=chosen),
        World([fate, Fate.WORKS], is_measured=True, job=searched),
    ):
        live_through(world)


def test_workers_start_again_in_the_layout_that_was_chosen() -> None:
    chosen = ClusterConfig(2, 128, stack=CUT)
    made = job(spec=spec(limits=LAYOUTS), phase=JobPhase.PENDING, chosen=chosen)
    world = World([Fate.WORKS], is_measured=True, job=made)
    live_through(world)
    assert set(world.layouts.values()) == {CUT}
    assert any("w1, w2 started again: going on" in line for line in world.said), world.said


UNABLE = [[Fate.UNABLE], [Fate.WORKS, Fate.UNABLE], [Fate.UNABLE, Fate.WORKS]]
UNSAVED = [[Fate.UNSAVED], [Fate.UNSAVED, Fate.WORKS]]


def change_in_midst(fates: list[Fate], workers: int) -> World:
    """Let a job live that trains and is then to train in another layout, on two workers."""
    chosen = ClusterConfig(workers, 128)
    made = job(spec=spec(limits=LAYOUTS), phase=JobPhase.PENDING, chosen=chosen)
    world = World(fates, is_measured=True, job=made)
    while not world.bearing:
        world.act()
        world.pass_time()
    world.choose(ClusterConfig(2, 128, stack=CUT), "it is better")
    live_through(world)
    return world


@pytest.mark.parametrize("fates", UNABLE, ids=str)
@pytest.mark.parametrize("before", [0, 1, 2])
def test_a_job_whose_workers_cannot_train_in_a_layout_goes_on_without_it(
    fates: list[Fate], before: int
) -> None:
    if before == 0:
        chosen = ClusterConfig(2, 128, stack=CUT)
        made = job(spec=spec(limits=LAYOUTS), phase=JobPhase.PENDING, chosen=chosen)
        world = World(fates, is_measured=True, job=made)
        live_through(world)
    else:
        world = change_in_midst(fates, before)
    assert set(world.trained_layouts) == {str(PLAIN)}, world.said
    assert {check.stack for check in world.checks} == {CUT}, world.said
    assert world.job.chosen is not None
    assert world.job.chosen.stack == EAGER_NAME
    assert not any(one.exit_code for one in world.vms), world.said


@pytest.mark.parametrize("fates", UNSAVED, ids=str)
@pytest.mark.parametrize("before", [1, 2])
def test_a_leader_that_cannot_keep_its_state_stays_in_its_layout(
    fates: list[Fate], before: int
) -> None:
    world = change_in_midst(fates, before)
    assert set(world.trained_layouts) == {str(PLAIN)}, world.said
    assert [check.stack for check in world.checks] == [CUT], world.said
    assert world.checks[0].refusal == "w1 could not keep its state for a change to it"
    assert sum("the workers train on" in line for line in world.said) == 4, world.said
    assert sum("staying with" in line for line in world.said) == 1, world.said
    assert world.workers["w1"].epochs >= world.job.spec.stop_rule.max_progress, world.said


@pytest.mark.parametrize("objective", ["fastest", "knee", "cheapest"])
def test_a_job_whose_cap_pays_for_one_machine_comes_to_train_on_it(objective: str) -> None:
    made = job(spec=spec(limits=FOR_ONE, objective=objective), phase=JobPhase.PENDING)
    world = World([Fate.WORKS], is_measured=True, job=made)
    live_through(world)
    assert world.directive is not None
    assert (world.directive.purpose, world.directive.is_provisional) == ("train", False), world.said
    assert world.job.chosen is not None
    assert world.job.chosen.workers == world.directive.config.workers == 1, world.said


def live_through(world: World) -> None:
    """Let time pass until the job is final and its machines are gone, or the deadlines are."""
    launches = max_launches(world.see()) + 2
    while not world.is_over:
        assert world.now - NOW < launches * WHOLE, world.said[-MOST_AT_ONCE:]
        world.act()
        world.pass_time()
    assert world.job.reason
    seen = world.see()
    # What left because its cloud took it back is no machine that dies again and again.
    counted = [one for one in world.vms if not has_left_in_order(seen, one)]
    assert len(counted) <= launches + 2
