"""Membership: the rows of its truth tables, and the ways it leads on over real meetings."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from scavenger.protocol import Directive, Hello, Member, Progress, Reply, StepReport
from tests.builders import directive
from tests.controller_double import LONG, until
from worker_agent.errors import GenerationBroken, LayoutChanged
from worker_agent.frameworks import BatchSlice, ControlFlags, JoinRole, StepSummary
from worker_agent.rendezvous import rendezvous as meetings
from worker_agent.rendezvous.rendezvous import _INVITATION, Invitation, StoreRendezvous
from worker_agent.rendezvous.store import KeyValueClient
from worker_agent.state.progress import TrainingProgress
from worker_agent.telemetry.reporter import WAITING_REPORT_INTERVAL, Reporter
from worker_agent.training.membership import Membership

HOST = "127.0.0.1"
IN_TIME = LONG
NOWHERE = f"{HOST}:1"  # no process serves it
PROGRESS = Progress(0, 0, 0, 0.0, {})
CLOCK = TrainingProgress(iteration=7, samples=84)


class Formed:
    """A strategy that forms a generation at once if all live and it is not to break."""

    def __init__(self, rendezvous: StoreRendezvous) -> None:
        self.rendezvous = rendezvous
        self.breaks = 0  # so often
        self.joined: list[tuple[int, int, JoinRole, bool]] = []

    def join(
        self, directive: Directive, role: JoinRole, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        if self.breaks > 0 or self.rendezvous.proven_dead(directive.members):
            self.breaks -= 1
            raise GenerationBroken("a member is gone")
        self.joined.append((directive.generation, directive.revision, role, is_new))
        return CLOCK if is_new else progress

    def begin(self, part: BatchSlice, flags: ControlFlags) -> None: ...

    def end(self) -> bool:
        return True

    @property
    def previous_summary(self) -> StepSummary | None:
        return None

    def snapshot(self, progress: TrainingProgress) -> Any: ...

    def scale_learning_rate(self, factor: float) -> None: ...

    def seed(self, seed: int, sample_position: int) -> None: ...

    def to_batch(self, indices: Any) -> Any:
        return indices

    def close(self) -> None:
        """End as a process does: its port is closed and its connections break."""
        self.rendezvous.close()
        for client in self.rendezvous.reached.values():
            if isinstance(client, KeyValueClient):
                client.close()


class Controller:
    """Remembers what it is told, and answers with the Directive it was given last."""

    def __init__(self) -> None:
        self.directive: Directive | None = None
        self.refused: list[int] = []
        self.broken: list[int] = []

    def hello(self, _: Hello) -> Reply:
        return Reply(self.directive, 0)

    def report(self, report: StepReport) -> Reply:
        if report.refused is not None:
            self.refused.append(report.refused)
        if report.broken is not None:
            self.broken.append(report.broken)
        return Reply(self.directive, report.sequence + len(report.steps))


class Worker:
    """All of a worker that decides where it belongs."""

    def __init__(self, name: str, layout: str = "") -> None:
        self.controller = Controller()
        self.can_save, self.saves = True, 0
        self.reporter = Reporter(self.controller, name, lambda _: None)
        self.rendezvous = StoreRendezvous(
            name, HOST, lambda each: self.membership.is_superseded(each)
        )
        self.strategy = Formed(self.rendezvous)
        self.is_leaving = threading.Event()
        self.membership = Membership(
            name,
            self.strategy,
            self.reporter,
            self.is_leaving.is_set,
            save=self.save,
            layout=layout,
        )
        self.me = Member(name, self.rendezvous.address)

    def told(self, told: Directive | None) -> None:
        self.reporter.newest = told

    def called(self, called: Directive, caller: Member) -> None:
        content = _INVITATION.dump_json(Invitation(called, caller)).decode()
        self.rendezvous.own.set("invitation", content)

    def save(self) -> bool:
        self.saves += 1
        return self.can_save

    def speaks(self) -> None:
        """Let the reporter speak to the controller."""
        self.reporter.start(Hello(self.me.worker, self.me.address))
        self.reporter.set_interval(WAITING_REPORT_INTERVAL)

    def close(self) -> None:
        self.is_leaving.set()
        self.strategy.close()
        self.reporter.stop_without_final_report(1.0)


Hire = Callable[..., Worker]


@pytest.fixture
def hire() -> Iterator[Hire]:
    """Have workers, who are gone in the end."""
    hired: list[Worker] = []

    def hire(name: str, layout: str = "") -> Worker:
        hired.append(Worker(name, layout))
        return hired[-1]

    yield hire
    for worker in hired:
        worker.close()


@pytest.fixture
def pool(hire: Hire) -> Iterator[ThreadPoolExecutor]:
    pool = ThreadPoolExecutor(16)
    yield pool
    pool.shutdown(wait=False)  # who still waits ends when the workers are gone


def of(number: int, *members: Member, **facts: Any) -> Directive:
    planned = directive(len(members), 12 * len(members), generation=number, members=members)
    return replace(planned, **facts)


def enter(pool: ThreadPoolExecutor, planned: Directive, *workers: Worker) -> None:
    """Let the controller form a generation of these workers."""
    for worker in workers:
        worker.told(planned)
    began = [
        pool.submit(worker.membership.begin, TrainingProgress(), PROGRESS) for worker in workers
    ]
    assert [each.result(IN_TIME) for each in began] == [CLOCK] * len(workers)


def go(
    pool: ThreadPoolExecutor, workers: Sequence[Worker], where: str, *what: Any
) -> list[Future[TrainingProgress]]:
    return [
        pool.submit(getattr(worker.membership, where), *what, CLOCK, PROGRESS) for worker in workers
    ]


def places(*workers: Worker) -> list[tuple[int, int, int]]:
    """Return generation, revision and rank of each."""
    entered = [(worker.membership.current_directive, worker.membership.rank) for worker in workers]
    return [(now.generation, now.revision, rank) for now, rank in entered]


# Who is out.

A, B, C = Member("a", NOWHERE), Member("b", NOWHERE), Member("c", NOWHERE)
AB, BC = (A, B), (B, C)


@pytest.mark.parametrize(
    ("newest", "is_out"),
    [
        (None, False),
        (of(4, *BC, fence=4), True),
        (of(6, *BC, fence=4), True),  # the repair itself was missed
        (of(4, *BC, fence=4, handover=B), True),
        (of(4, *BC, repairs=True), True),
        (of(4, *BC), False),  # a change, to which it is led by the leader
        (of(4, *BC, fence=3), False),  # the repair is the generation it is in
        (of(4, *BC, fence=2), False),
        (of(3, *BC, fence=3), False),
        (of(2, *BC, fence=2), False),
        (of(4, *AB, fence=4), False),
        (of(4, *BC, fence=4, handover=A), False),
    ],
)
def test_who_is_named_nowhere_after_a_repair_is_fenced_out(
    hire: Hire, newest: Directive | None, *, is_out: bool
) -> None:
    worker = hire("a")
    worker.told(newest)
    assert not worker.membership.is_fenced_out()  # it is in no generation yet
    worker.membership.directive = of(3, *AB)
    assert worker.membership.is_fenced_out() is is_out


@pytest.mark.parametrize("is_call", [False, True])
@pytest.mark.parametrize(
    ("newest", "has_state", "will_not_come"),
    [
        (of(3, *AB), False, False),
        (of(3, *AB, repairs=True), False, False),
        (of(2, *AB, repairs=True), False, False),
        (of(4, *AB), True, False),  # the others hold on to this one until they make the change
        (of(4, *AB), False, True),
        (of(4, *AB, fence=3), True, False),
        (of(4, *AB, repairs=True), True, True),
        (of(5, *AB, fence=4), True, True),
    ],
)
def test_a_generation_does_not_come_after_a_repair_nor_for_newcomers_after_a_newer_one(
    hire: Hire, newest: Directive, *, is_call: bool, has_state: bool, will_not_come: bool
) -> None:
    worker = hire("a")
    assert not worker.membership.is_superseded(of(3, *AB))
    worker.membership.has_state = has_state
    if is_call:
        worker.told(of(1, *AB))
        worker.called(newest, B)
    else:
        worker.told(newest)
        worker.called(of(1, *AB), B)
    assert worker.membership.is_superseded(of(3, *AB)) is will_not_come
    assert not worker.membership.should_abort()
    worker.membership.directive = of(3, *AB)
    assert worker.membership.should_abort() is will_not_come


# Where a newcomer goes.


@pytest.mark.parametrize(
    ("told", "called", "summons"),
    [
        (None, None, None),
        (2, None, (2, "b")),
        (None, 2, (2, "c")),
        (3, 2, (3, "b")),
        (2, 3, (3, "c")),
        (2, 2, (2, "c")),
    ],
)
def test_a_newcomer_follows_the_newest_summons_and_of_two_equal_ones_the_call(
    hire: Hire, told: int | None, called: int | None, summons: tuple[int, str] | None
) -> None:
    worker = hire("a")
    if told is not None:
        worker.told(of(told, B, worker.me))
    if called is not None:
        worker.called(of(called, B, worker.me), C)
    found, where = worker.membership._find_invitation()
    assert (None if found is None else (found.generation, where.worker)) == summons


def test_a_newcomer_meets_the_others_at_the_leader_before_or_at_the_first_of_them(
    hire: Hire,
) -> None:
    worker = hire("a")
    worker.told(of(2, B, worker.me, handover=C))
    assert worker.membership._find_invitation() == (of(2, B, worker.me, handover=C), C)
    worker.told(of(2, B, worker.me))
    assert worker.membership._find_invitation() == (of(2, B, worker.me), B)


@pytest.mark.parametrize("members", [(A, B), (B, A), (B, C)])
@pytest.mark.parametrize("called", [None, 1])
def test_a_newcomer_is_not_meant_by_a_directive_that_names_another_address_or_not_it(
    hire: Hire, members: tuple[Member, ...], called: int | None
) -> None:
    worker = hire("a")
    worker.told(of(2, *members))
    if called is not None:
        worker.called(of(called, worker.me), B)
    assert worker.membership._find_invitation() == (None, Member("", ""))


def test_a_worker_that_was_started_again_waits_for_a_directive_with_its_own_address(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    worker = hire("a")
    worker.told(of(2, A))
    beginning = pool.submit(worker.membership.begin, TrainingProgress(), PROGRESS)
    with pytest.raises(TimeoutError):
        beginning.result(0.1)
    worker.told(of(3, worker.me))
    assert beginning.result(IN_TIME) == CLOCK
    assert worker.strategy.joined == [(3, 0, JoinRole(0), True)]
    assert not worker.membership.is_released


def test_a_newcomer_that_is_to_end_waits_no_longer(hire: Hire, pool: ThreadPoolExecutor) -> None:
    worker = hire("a")
    beginning = pool.submit(worker.membership.begin, TrainingProgress(), PROGRESS)
    worker.is_leaving.set()
    assert beginning.result(IN_TIME) == TrainingProgress()
    assert worker.membership.is_released


def test_a_newcomer_tries_a_generation_once_and_says_that_it_broke(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    worker = hire("a")
    worker.speaks()
    worker.strategy.breaks = 1
    worker.told(of(2, worker.me))
    beginning = pool.submit(worker.membership.begin, TrainingProgress(), PROGRESS)
    until(lambda: 2 in worker.controller.broken)
    with pytest.raises(TimeoutError):
        beginning.result(0.1)
    worker.told(of(3, worker.me))
    assert beginning.result(IN_TIME) == CLOCK
    assert [generation for generation, *_ in worker.strategy.joined] == [3]


# Changes.


def test_all_change_to_a_generation_that_the_leader_announced(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    a, b, c = hire("a"), hire("b"), hire("c")
    enter(pool, of(1, a.me, b.me), a, b)
    planned = of(2, b.me, a.me, c.me)
    coming = pool.submit(c.membership.begin, TrainingProgress(), PROGRESS)
    for worker in (a, b):
        worker.membership.announce(planned)
    until(lambda: a.membership.announced_generation == 2)
    assert b.membership.announced_generation == 1  # it does not lead
    assert b.membership.is_newer_generation(2)
    assert not b.membership.is_newer_generation(1)
    changed = go(pool, (a, b), "change", 2)
    assert [each.result(IN_TIME) for each in (*changed, coming)] == [CLOCK] * 3
    assert places(a, b, c) == [(2, 0, 1), (2, 0, 0), (2, 0, 2)]
    assert not any(worker.membership.is_released for worker in (a, b, c))
    assert c.strategy.joined == [(2, 0, JoinRole(2), True)]
    assert a.strategy.joined[-1] == (2, 0, JoinRole(1), False)


def test_a_leader_that_is_no_member_hands_over_and_another_that_is_none_just_goes(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    a, b, c = hire("a"), hire("b"), hire("c")
    enter(pool, of(1, a.me, b.me), a, b)
    coming = pool.submit(c.membership.begin, TrainingProgress(), PROGRESS)
    a.membership.announce(of(2, c.me, handover=a.me))
    until(lambda: a.membership.announced_generation == 2)
    for each in (*go(pool, (a, b), "change", 2), coming):
        each.result(IN_TIME)
    assert a.strategy.joined[-1] == (2, 0, JoinRole(None, a.me), False)
    assert c.strategy.joined == [(2, 0, JoinRole(0, a.me), True)]
    assert [worker.membership.is_released for worker in (a, b, c)] == [True, True, False]
    assert b.membership.current_directive.generation == 1


def test_all_stay_when_a_newcomer_dies_after_the_announcement(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    a, b, c = hire("a"), hire("b"), hire("c")
    enter(pool, of(1, a.me, b.me), a, b)
    a.speaks()
    a.membership.announce(of(2, a.me, b.me))  # no new member has to be called
    until(lambda: a.membership.announced_generation == 2)
    planned = of(3, a.me, b.me, c.me)
    a.rendezvous.own.set("directive/3", meetings._DIRECTIVE.dump_json(planned).decode())
    c.close()
    changed = go(pool, (a, b), "change", 3)
    assert [each.result(IN_TIME) for each in changed] == [CLOCK] * 2
    assert places(a, b) == [(1, 0, 0), (1, 0, 1)]
    assert a.membership.announced_generation == 1
    assert not a.membership.is_newer_generation(3)
    assert b.membership.is_newer_generation(4)
    until(lambda: 3 in a.controller.refused)


def test_a_newcomer_that_cannot_be_reached_is_refused_and_training_goes_on(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    a = hire("a")
    enter(pool, of(1, a.me), a)
    a.speaks()
    a.membership.announce(of(2, a.me, Member("gone", NOWHERE)))
    until(lambda: 2 in a.controller.refused)
    assert a.membership.announced_generation == 1


@pytest.mark.parametrize("generation", [0, 1])
def test_a_leader_announces_nothing_that_is_not_newer(
    hire: Hire, pool: ThreadPoolExecutor, generation: int
) -> None:
    a = hire("a")
    a.membership.announce(of(generation, a.me))  # it is in no generation yet
    enter(pool, of(1, a.me), a)
    a.membership.announce(of(generation, a.me))
    assert (a.membership.announced_generation, a.membership.inviting_generation) == (1, 0)


def test_the_others_part_from_who_leaves(hire: Hire, pool: ThreadPoolExecutor) -> None:
    a, b, c = hire("a"), hire("b"), hire("c")
    enter(pool, of(1, a.me, b.me, c.me), a, b, c)
    parted = go(pool, (a, b, c), "drop_leaving_members", (0,))
    assert [each.result(IN_TIME) for each in parted] == [CLOCK] * 3
    assert a.membership.is_released
    assert places(b, c) == [(1, 1, 0), (1, 1, 1)]
    assert [member.worker for member in b.membership.current_directive.members] == ["b", "c"]


def test_when_all_leave_at_once_none_goes_on(hire: Hire, pool: ThreadPoolExecutor) -> None:
    a, b = hire("a"), hire("b")
    enter(pool, of(1, a.me, b.me), a, b)
    parted = go(pool, (a, b), "drop_leaving_members", (0, 1))
    assert [each.result(IN_TIME) for each in parted] == [CLOCK] * 2
    assert a.membership.is_released
    assert b.membership.is_released


# Changes of layout.

WHOLE, CUT = "P=1 T=1", "P=2 T=1"


def announce_layout(
    hire: Hire, pool: ThreadPoolExecutor, *, speaks: bool = False
) -> tuple[Worker, Worker]:
    """Have two workers whose leader has announced a generation in another layout."""
    a, b = hire("a", WHOLE), hire("b", WHOLE)
    enter(pool, of(1, a.me, b.me, layout=WHOLE), a, b)
    if speaks:
        a.speaks()
    a.membership.announce(of(2, a.me, b.me, layout=CUT))
    until(lambda: a.membership.announced_generation == 2)
    return a, b


def change_and_end(worker: Worker, generation: int) -> str:
    """Change to a generation, and end at once if that is in another layout, as a process does."""
    try:
        worker.membership.change(generation, CLOCK, PROGRESS)
    except LayoutChanged as change:
        worker.close()
        return change.layout
    return ""


def test_all_start_again_in_a_layout_that_the_leader_announced_once_its_state_is_kept(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    a, b = announce_layout(hire, pool)
    changed = [pool.submit(change_and_end, worker, 2) for worker in (a, b)]
    assert [each.result(IN_TIME) for each in changed] == [CUT, CUT]
    assert (a.saves, b.saves) == (1, 1)  # the leader's machine may be lost
    assert places(a, b) == [(1, 0, 0), (1, 0, 1)]
    assert len(b.strategy.joined) == 1  # it did not go on without the leader


def test_all_stay_in_their_layout_when_the_leader_cannot_keep_its_state(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    a, b = announce_layout(hire, pool, speaks=True)
    a.can_save = False
    changed = go(pool, (a, b), "change", 2)
    assert [each.result(IN_TIME) for each in changed] == [CLOCK] * 2
    assert places(a, b) == [(1, 0, 0), (1, 0, 1)]
    assert not a.membership.is_newer_generation(2)
    until(lambda: 2 in a.controller.refused)
    a.can_save = True
    a.membership.announce(of(3, a.me, b.me, layout=CUT))  # asked again
    until(lambda: a.membership.announced_generation == 3)
    again = [pool.submit(change_and_end, worker, 3) for worker in (a, b)]
    assert [each.result(IN_TIME) for each in again] == [CUT, CUT]


def test_a_newcomer_in_another_layout_starts_again_before_it_takes_part(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    worker = hire("a", WHOLE)
    worker.told(of(1, worker.me, layout=CUT))
    beginning = pool.submit(worker.membership.begin, TrainingProgress(), PROGRESS)
    with pytest.raises(LayoutChanged, match="the workers go on with P=2 T=1"):
        beginning.result(IN_TIME)
    assert (worker.saves, worker.strategy.joined) == (0, [])


# Recovery.


def test_survivors_of_a_dead_member_go_on_by_themselves(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    a, b, c = hire("a"), hire("b"), hire("c")
    enter(pool, of(1, a.me, b.me, c.me), a, b, c)
    b.speaks()
    a.close()
    recovered = go(pool, (b, c), "recover")
    assert [each.result(IN_TIME) for each in recovered] == [CLOCK] * 2
    assert places(b, c) == [(1, 1, 0), (1, 1, 1)]
    assert not b.membership.is_broken
    assert 1 in b.controller.broken


def test_survivors_of_a_silent_member_wait_for_the_controller(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    a, b, c = hire("a"), hire("b"), hire("c")
    enter(pool, of(1, a.me, b.me, c.me), a, b, c)
    recovering = go(pool, (b, c), "recover")
    with pytest.raises(TimeoutError):
        recovering[0].result(0.5)
    for worker in (b, c):
        worker.told(of(2, a.me, b.me))  # a change repairs nothing
    with pytest.raises(TimeoutError):
        recovering[1].result(0.1)
    for worker in (b, c):
        worker.told(of(3, b.me, repairs=True))
    assert [each.result(IN_TIME) for each in recovering] == [CLOCK] * 2
    assert places(b) == [(3, 0, 0)]
    assert [worker.membership.is_released for worker in (b, c)] == [False, True]


def test_who_is_to_end_waits_for_no_repair(hire: Hire, pool: ThreadPoolExecutor) -> None:
    a, b = hire("a"), hire("b")
    enter(pool, of(1, a.me, b.me), a, b)
    (recovering,) = go(pool, (b,), "recover")
    b.is_leaving.set()
    assert recovering.result(IN_TIME) == CLOCK
    assert b.membership.is_released


@pytest.mark.parametrize("is_told", [False, True])
def test_a_member_that_failed_to_hand_over_goes_back_once_none_of_the_new_generation_lives(
    hire: Hire, pool: ThreadPoolExecutor, *, is_told: bool
) -> None:
    a, b, c = hire("a"), hire("b"), hire("c")
    enter(pool, of(1, a.me), a)
    coming = [pool.submit(each.membership.begin, TrainingProgress(), PROGRESS) for each in (b, c)]
    planned = of(2, b.me, c.me, handover=a.me)
    if is_told:  # by the controller, which is away from now on
        a.told(planned)
    a.membership.announce(planned)
    until(lambda: a.membership.announced_generation == 2)
    a.strategy.breaks = 1
    (handing,) = go(pool, (a,), "change", 2)
    for each in coming:
        each.result(IN_TIME)
    b.close()
    with pytest.raises(TimeoutError):  # c may have the state and train on
        handing.result(0.5)
    assert a.membership.current_directive.generation == 2
    c.close()
    assert handing.result(IN_TIME) == CLOCK
    assert places(a) == [(1, 1, 0)]
    assert not a.membership.is_released


# Changes of layout.


def test_who_leads_in_another_layout_keeps_the_state_when_the_leader_is_gone(
    hire: Hire, pool: ThreadPoolExecutor
) -> None:
    leader, other = hire("a"), hire("b")
    enter(pool, of(1, leader.me, other.me), leader, other)
    kept: list[bool] = []
    other.membership.layout = "P=1 T=1"
    other.membership.save = lambda: kept.append(True) or True
    leader.close()
    other.told(of(2, other.me, layout="P=2 T=1", repairs=True))
    (recovering,) = go(pool, [other], "recover")
    with pytest.raises(LayoutChanged, match="P=2 T=1"):
        recovering.result(IN_TIME)
    assert kept == [True]
