"""What a tick does while the workers of a job start again in another layout."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from scavenger.cluster import ClusterConfig
from scavenger.layout import Layout
from scavenger.protocol import Directive, Member
from service.db.workers import WorkerRow
from service.reconciler.actions import Action, Idle, PublishDirective, RefuseLayout, Terminate
from service.reconciler.directives import next_directive
from service.reconciler.plan import plan
from service.state.job_state import JobState
from tests.builders import NOW, directive, document, job, snapshot, spec, vm, worker

BEFORE, NEXT = "P=1 T=1", "P=2 T=1 M=4"
SEARCHED = spec(limits={**document()["limits"], "workers": "1..3", "layout": "auto"})
PROBED = {"purpose": "probe", "split_every": 7, "report_after": 99}
GONE = {"state": "gone", "ended_at": NOW}
LONG = timedelta(minutes=41)
AWAITED = f"waiting for the workers to start again with {NEXT}"


def before(number: int, **changes: Any) -> WorkerRow:
    """A worker whose process still trains in the layout before."""
    return worker(number, **changes)


def down(number: int, **changes: Any) -> WorkerRow:
    """A worker whose process has ended and that has not said hello again."""
    return worker(number, **{"address": "", "generation": 0, **changes})


def back(number: int, **changes: Any) -> WorkerRow:
    """A worker whose new process has said hello."""
    return worker(number, **{"address": f"127.0.0.1:{9100 + number}", "generation": 0, **changes})


def changing(workers: int, *rows: WorkerRow, **changes: Any) -> JobState:
    """A job whose newest Directive asks for another layout."""
    config = ClusterConfig(workers, 128, stack=NEXT)
    told = directive(
        workers, 128, generation=2, config=config, layout=NEXT, restarts=True, **PROBED
    )
    chosen = job(spec=SEARCHED, chosen=config, choice="the knee")
    machines = tuple(vm(number) for number in range(1, workers + 1))
    facts: dict[str, Any] = {"vms": machines, "directive": told, "job": chosen, **changes}
    return snapshot(workers=rows, **facts)


def overdue(workers: int, *rows: WorkerRow, **changes: Any) -> JobState:
    """The same, long after the Directive was published."""
    return changing(workers, *rows, published_at=NOW - LONG, **changes)


def staying(workers: int, *rows: WorkerRow, **changes: Any) -> JobState:
    """The same job, whose newest Directive keeps the layout that its workers have."""
    now = changing(workers, *rows, **changes)
    assert now.directive is not None
    return replace(now, directive=replace(now.directive, restarts=False))


def failed(workers: int, *rows: WorkerRow, **changes: Any) -> JobState:
    """The same, where a worker's command failed in the layout."""
    now = changing(workers, *rows, **changes)
    return replace(now, refused_layouts={Layout.parse(NEXT): "no"})


GOES_BACK = f"the job does without {NEXT}: going on with K="
CHANGES: dict[str, tuple[JobState, type[Action], str]] = {
    "all train on until they agree": (
        changing(2, before(1), before(2)),
        Idle,
        "waiting for the workers to regroup",
    ),
    "one alone is awaited": (changing(1, down(1)), Idle, AWAITED),
    "one alone goes on once it is back": (
        changing(1, back(1)),
        PublishDirective,
        f"w1 started again: going on with K=1 B=128 {NEXT}",
    ),
    "the process before has not ended": (changing(2, down(1), before(2)), Idle, AWAITED),
    "none is back": (changing(2, down(1), down(2)), Idle, AWAITED),
    "the leader is back and the other is not": (changing(2, back(1), down(2)), Idle, AWAITED),
    "the leader is not back": (changing(2, down(1), back(2)), Idle, AWAITED),
    "the leader's process before has not ended": (changing(2, before(1), back(2)), Idle, AWAITED),
    "both are back": (
        changing(2, back(1), back(2)),
        PublishDirective,
        f"w1, w2 started again: going on with K=2 B=128 {NEXT}",
    ),
    "a first report tells of the process before": (
        changing(2, back(1), back(2, generation=1)),
        PublishDirective,
        f"w1, w2 started again: going on with K=2 B=128 {NEXT}",
    ),
    "such a report while another is awaited": (
        changing(2, down(1), back(2, generation=1)),
        Idle,
        AWAITED,
    ),
    "a member's machine is lost": (
        changing(2, back(1), down(2), vms=(vm(1), vm(2, **GONE))),
        PublishDirective,
        f"lost w2; w1 started again: going on with K=1 B=128 {NEXT}",
    ),
    "a member's machine is lost and another is awaited": (
        changing(3, down(1), back(2), down(3), vms=(vm(1), vm(2), vm(3, **GONE))),
        Idle,
        AWAITED,
    ),
    "the leader's machine is lost": (
        changing(2, before(1), back(2), vms=(vm(1, **GONE), vm(2))),
        PublishDirective,
        f"lost w1; w2 started again: going on with K=1 B=128 {NEXT}",
    ),
    "the leader's machine is lost before the other is back": (
        changing(2, before(1), down(2), vms=(vm(1, **GONE), vm(2))),
        Idle,
        AWAITED,
    ),
    "a member was told to leave": (
        changing(2, back(1), before(2, finished="released")),
        PublishDirective,
        f"w1 started again: going on with K=1 B=128 {NEXT}",
    ),
    "a worker that stands by is no reason to go on without the others": (
        changing(1, down(1), worker(2, generation=0), vms=(vm(1), vm(2))),
        Idle,
        AWAITED,
    ),
    "a newcomer that has the layout waits with the others": (
        changing(3, down(1), back(2), worker(3, generation=0)),
        Idle,
        AWAITED,
    ),
    "a process that does not end is not awaited for ever": (
        overdue(2, back(1), before(2)),
        PublishDirective,
        f"w1 started again: going on with K=2 B=128 {NEXT}",
    ),
    "a process that does not start is not awaited for ever": (
        overdue(2, back(1), down(2, seen_at=NOW - LONG)),
        PublishDirective,
        f"w2 started again: going on with K=1 B=128 {NEXT}",
    ),
    "nor is a leader's": (
        overdue(2, down(1, seen_at=NOW - LONG), back(2)),
        PublishDirective,
        f"w2 started again: going on with K=1 B=128 {NEXT}",
    ),
    "nor is that of one alone": (
        overdue(1, down(1, seen_at=NOW - LONG)),
        Terminate,
        "w1 did not say hello in 0:15:00",
    ),
    "a process that dies once the layout is entered takes its worker out": (
        changing(2, before(1, generation=2), down(2)),
        PublishDirective,
        f"w2 started again: going on with K=1 B=128 {NEXT}",
    ),
    "none is awaited where the layout stays, though not all have entered": (
        staying(2, before(1), down(2)),
        PublishDirective,
        f"w2 started again: going on with K=1 B=128 {NEXT}",
    ),
    "nor where a newcomer is lost meanwhile": (
        staying(2, before(1), down(2), vms=(vm(1), vm(2, **GONE))),
        PublishDirective,
        f"lost w2: the survivors go on with K=1 B=128 {NEXT}",
    ),
    "one alone goes on without a layout in which it failed": (
        failed(1, back(1)),
        PublishDirective,
        f"{GOES_BACK}1 B=128",
    ),
    "so do all, those that wait in it too": (
        failed(2, back(1), back(2)),
        PublishDirective,
        f"{GOES_BACK}2 B=128",
    ),
    "not before all are back": (
        failed(2, back(1), down(2)),
        Idle,
        f"waiting for the workers to start again without {NEXT}",
    ),
    "nor before the others have left the layout before": (
        failed(2, before(1), back(2)),
        Idle,
        f"waiting for the workers to start again without {NEXT}",
    ),
    "a leader that cannot keep its state trains on while others are back": (
        changing(2, before(1, refused=2), back(2), published_at=NOW),
        Idle,
        f"w1 trains on, and is asked for {NEXT} again soon",
    ),
    "it is asked again after a while": (
        overdue(2, before(1, refused=2), back(2)),
        PublishDirective,
        "the workers train on, since the leader cannot start again yet",
    ),
    "but not for ever": (
        changing(2, before(1, refused=2), back(2), published_without_iteration=(NOW,) * 5),
        RefuseLayout,
        "w1 could not keep its state for a change to it",
    ),
    "nor once a member is lost": (
        changing(2, before(1, refused=2), back(2), vms=(vm(1), vm(2, **GONE))),
        RefuseLayout,
        "w1 could not keep its state for a change to it",
    ),
    "then those that train stay in their layout": (
        failed(2, before(1, refused=2), back(2), trained_layout=BEFORE),
        PublishDirective,
        f"the job does without {NEXT}: staying with K=1 B=128",
    ),
    "what a lost member's process refused does not count": (
        changing(2, down(1, refused=2), back(2)),
        Idle,
        AWAITED,
    ),
    "without a search of layouts none is awaited": (
        snapshot(workers=(down(1), back(2))),
        PublishDirective,
        "going on with K=1 B=128",
    ),
    "nor where all are down": (
        snapshot(workers=(down(1), down(2))),
        Idle,
        "waiting for 2 workers to boot",
    ),
}


@pytest.mark.parametrize(("now", "kind", "why"), CHANGES.values(), ids=CHANGES)
def test_a_change_of_layout_is_over_when_all_are_back(
    now: JobState, kind: type[Action], why: str
) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


def published(state: JobState) -> Directive:
    action = plan(state)
    assert isinstance(action, PublishDirective), action
    return action.directive


def test_what_was_told_still_holds_once_all_are_back() -> None:
    told = published(changing(2, back(1), back(2)))
    assert {name: getattr(told, name) for name in PROBED} == PROBED
    assert (told.generation, told.layout, told.repairs, told.handover) == (3, NEXT, True, None)


@pytest.mark.parametrize("is_lost", [False, True])
def test_those_that_stay_in_their_layout_do_not_start_again(is_lost: bool) -> None:
    machines = (vm(1), vm(2, **GONE) if is_lost else vm(2))
    told = published(failed(2, before(1, refused=2), back(2), vms=machines, trained_layout=BEFORE))
    assert (told.layout, told.restarts, told.repairs) == (BEFORE, False, is_lost)
    assert [member.worker for member in told.members] == ["w1"]


def test_a_directive_says_whether_its_workers_start_again() -> None:
    entered = before(1, generation=2), before(2, generation=2)
    for now, layout, restarts in (
        (changing(2, *entered), NEXT, False),
        (changing(2, *entered), "eager", True),
        (changing(2, before(1), before(2)), NEXT, True),  # none has entered the one before
        (staying(2, before(1), before(2)), NEXT, False),
    ):
        assert now.directive is not None
        config = replace(now.directive.config, stack=layout)
        told = next_directive(now, config, now.directive.members, "why")
        assert told.restarts is restarts


def test_who_goes_on_without_a_lost_member_trains() -> None:
    told = published(changing(2, back(1), down(2), vms=(vm(1), vm(2, **GONE))))
    assert (told.purpose, told.report_after, told.layout) == ("train", 0, NEXT)


@pytest.mark.parametrize(
    "rows",
    [
        (back(1), back(2), back(3)),
        # The order of hello: the leader, whose checkpoint is the newest, comes last.
        (back(2), back(3), back(1)),
        (back(1), back(2), worker(3, generation=0)),
    ],
    ids=["in order", "leader last", "newcomer"],
)
def test_members_that_start_again_keep_their_ranks(rows: tuple[WorkerRow, ...]) -> None:
    told = published(changing(3, *rows))
    addresses = {row.worker: row.address for row in rows}
    assert told.members == tuple(Member(w, addresses[w]) for w in ("w1", "w2", "w3"))


def test_one_that_holds_the_state_leads_those_that_start_again() -> None:
    told = published(changing(3, back(1), before(2, generation=2), worker(3, generation=0)))
    assert [member.worker for member in told.members] == ["w2", "w3", "w1"]


def test_a_change_that_the_leader_refuses_is_asked_for_again_and_never_forced() -> None:
    refused = changing(2, before(1, refused=2), before(2))
    told = published(refused)
    assert (told.layout, told.repairs, told.fence) == (NEXT, False, 0)
    assert {name: getattr(told, name) for name in PROBED} == PROBED
    tries = tuple(NOW - timedelta(seconds=s) for s in (50, 40, 31))
    assert isinstance(plan(replace(refused, published_without_iteration=tries)), PublishDirective)
    soon = replace(refused, published_at=NOW - timedelta(seconds=1))
    assert isinstance(plan(soon), Idle)
