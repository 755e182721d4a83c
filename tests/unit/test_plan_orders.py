"""What a tick does about the orders of users: one row, one situation, one action."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from scavenger.cluster import ClusterConfig
from service.reconciler.actions import (
    Action,
    Blocked,
    EndOrder,
    Finish,
    Idle,
    Launch,
    ObeyOrder,
    PublishDirective,
    StoreProbe,
    Terminate,
    Unblocked,
)
from service.reconciler.agenda import next_deadline
from service.reconciler.orders import paused_reason
from service.reconciler.plan import plan
from service.state.job_state import JobState
from tests.builders import (
    NOW,
    directive,
    document,
    job,
    order,
    ordered,
    probe,
    snapshot,
    spec,
    steps,
    vm,
    worker,
)

CHOSEN = ClusterConfig(2, 128)
PROBES = (probe(1, 32), probe(1, 128), probe(2, 128), probe(2, 32))
EPOCHS = {"target": {"epochs": 60, "at_batch": 32}}
KNOWN = spec(**EPOCHS)
PIN = order(1, "resize", {"to": {"workers": 1, "global_batch": 64}})
GRID = {**document()["limits"], "batch": [32, 64, 128]}
WIDE = spec(**EPOCHS, limits=GRID)
PAUSE, RESUME = order(1, "pause", {}), order(2, "resume", {})
ASKED_PROBE = order(1, "probe", {"workers": 1, "global_batch": 128})
DEAD = {"state": "gone", "ended_at": NOW - timedelta(seconds=1), "exit_code": -15}
LEFT = {"finished": "released"}


def trains(**changes: object) -> JobState:
    """A job that chose two workers from four probes, and knows how many epochs it takes."""
    own = job(spec=WIDE, chosen=CHOSEN, choice="the knee")
    return snapshot(**{"job": own, "probes": PROBES, **changes})


def searches(**changes: object) -> JobState:
    """A job whose first machine is measured."""
    alone = {"vms": (vm(1),), "workers": (worker(1),)}
    told = directive(1, 32, purpose="probe")
    return snapshot(**{"job": job(spec=WIDE), **alone, "directive": told, **changes})


def poor(max_cost: str, told: int = 0, **changes: object) -> JobState:
    """The same job with a lower cap, of which an event said how many percent are spent."""
    limits = {**GRID, "max_cost": max_cost}
    mine = job(
        spec=spec(**EPOCHS, limits=limits),
        chosen=ClusterConfig(1, 128),
        choice="cheap",
        budget_told=told,
    )
    alone = {"vms": (vm(1),), "workers": (worker(1),), "directive": directive(1, 128)}
    return trains(job=mine, **{**alone, **changes})


CASES: dict[str, tuple[JobState, type[Action], str]] = {
    "a configuration that is pinned is moved to": (
        ordered(trains(), PIN),
        ObeyOrder,
        "K=1 B=64, as order 1 asks",
    ),
    "also by a job that is searched": (ordered(searches(), PIN), ObeyOrder, "K=1 B=64, as order"),
    "one that the job is on is kept": (
        ordered(trains(), order(1, "resize", {"to": {"workers": 2, "global_batch": 128}})),
        EndOrder,
        "K=2 B=128 is kept from now on",
    ),
    "a preference chooses of what is left": (
        ordered(trains(), order(1, "resize", {"to": "cheapest"})),
        ObeyOrder,
        "as order 1 asks: the cheapest of what is left",
    ),
    "it stays where nothing is better": (
        ordered(
            trains(job=job(spec=WIDE, chosen=ClusterConfig(1, 32), choice="")),
            order(1, "resize", {"to": "cheapest"}),
        ),
        EndOrder,
        "K=1 B=32 stays: it is the cheapest of what is left",
    ),
    "a search goes on with it": (
        ordered(searches(), order(1, "resize", {"to": "fastest"})),
        EndOrder,
        "the search goes on, and chooses by fastest",
    ),
    "auto chooses again only what pays": (
        ordered(
            trains(job=job(spec=WIDE, chosen=ClusterConfig(2, 64), choice="")),
            order(1, "resize", {"to": "auto"}),
        ),
        EndOrder,
        "planned by knee and the noise from now on: K=2 B=64 stays",
    ),
    "other limits are said to hold": (
        ordered(searches(), order(1, "change", {"limits": {"max_cost": "2 USD"}})),
        EndOrder,
        "limits.max_cost to 2.00 USD from now on: the search goes on",
    ),
    "another objective is chosen by at once": (
        ordered(trains(), order(1, "change", {"objective": "cheapest"})),
        ObeyOrder,
        "objective to cheapest from now on: K=1 B=32 saves",
    ),
    "but a configuration that is pinned stays": (
        ordered(
            trains(),
            replace(order(1, "resize", {"to": {"workers": 2, "global_batch": 128}}), state="done"),
            order(2, "change", {"objective": "cheapest"}),
        ),
        EndOrder,
        "K=2 B=128 stays",
    ),
    "a later order replaces an earlier one": (
        ordered(trains(), PIN, order(2, "resize", {"to": "auto"})),
        EndOrder,
        "order 2 came after it",
    ),
    "what the cap does not pay is refused": (
        ordered(poor("0.02 USD"), order(1, "resize", {"to": {"workers": 2, "global_batch": 128}})),
        EndOrder,
        "max_cost leaves no room for the machines of K=2 B=128",
    ),
    "a probe that was ordered is told to the workers": (
        ordered(trains(), ASKED_PROBE),
        PublishDirective,
        "measuring K=1 B=128, as order 1 asks",
    ),
    "it is stored once it has been measured": (
        ordered(
            trains(
                directive=directive(1, 128, purpose="probe"),
                vms=(vm(1), vm(2)),
                workers=(worker(1), worker(2, generation=0)),
                steps=steps(60, 200.0, ClusterConfig(1, 128)),
            ),
            ASKED_PROBE,
        ),
        StoreProbe,
        "settled",
    ),
    "then the job goes back": (
        ordered(
            trains(
                directive=directive(1, 128, purpose="probe"),
                workers=(worker(1), worker(2, generation=0)),
            ),
            replace(ASKED_PROBE, state="done"),
        ),
        PublishDirective,
        "training on K=2 B=128",
    ),
    "a probe that is not measured in time is refused": (
        ordered(trains(), replace(ASKED_PROBE, at=NOW - timedelta(minutes=16))),
        EndOrder,
        "K=1 B=128 was not measured within 15 min",
    ),
    "and one that the cap does not pay any more": (
        ordered(poor("0.02 USD"), order(1, "probe", {"workers": 2, "global_batch": 128})),
        EndOrder,
        "max_cost leaves no room",
    ),
    "and one whose job was paused": (
        ordered(trains(), ASKED_PROBE, order(2, "pause", {})),
        EndOrder,
        "the job was paused first",
    ),
    "the workers of a paused job may leave": (
        ordered(trains(), PAUSE),
        Idle,
        "pausing: 2 workers to save a checkpoint and leave",
    ),
    "machines whose workers have left are ended": (
        ordered(trains(vms=(vm(1, exit_code=-15), vm(2)), workers=(worker(1), worker(2))), PAUSE),
        Terminate,
        "1 machine of the paused job",
    ),
    "those that boot hold nothing and are ended": (
        ordered(trains(vms=(vm(1), vm(2), vm(3)), workers=(worker(1), worker(2))), PAUSE),
        Terminate,
        "1 machine of the paused job",
    ),
    "those that do not leave are ended in the end": (
        ordered(trains(), replace(PAUSE, at=NOW - timedelta(seconds=91))),
        Terminate,
        "2 machines of the paused job",
    ),
    "machines that end are awaited": (
        ordered(trains(vms=(vm(1, state="ending"), vm(2, **DEAD))), PAUSE),
        Idle,
        "pausing: 1 machine still ending",
    ),
    "a pause is over once no machine is left": (
        ordered(trains(vms=(vm(1, **DEAD), vm(2, **DEAD))), PAUSE),
        EndOrder,
        "paused after iteration 100: no machine runs",
    ),
    "then the job says that it is paused": (
        ordered(trains(vms=(vm(1, **DEAD), vm(2, **DEAD))), replace(PAUSE, state="done")),
        Blocked,
        paused_reason("job_1"),
    ),
    "a paused job is cancelled all the same": (
        ordered(
            trains(job=job(spec=WIDE, chosen=CHOSEN, cancel_requested_at=NOW)),
            replace(PAUSE, state="done"),
        ),
        Finish,
        "cancelled on request",
    ),
    "a paused job that is short of money waits": (
        ordered(poor("0.007 USD", 80, vms=(vm(1, **DEAD),)), replace(PAUSE, state="done")),
        Blocked,
        paused_reason("job_1"),
    ),
    "also one whose workers are leaving as the money ends": (
        ordered(
            poor("0.0065 USD", 80, vms=(vm(1, prepaid_until=NOW - timedelta(seconds=4)),)), PAUSE
        ),
        Idle,
        "pausing: 1 worker to save a checkpoint and leave",
    ),
    "it is not resumed before its cap is raised": (
        ordered(poor("0.007 USD", vms=(vm(1, **DEAD),)), replace(PAUSE, state="done"), RESUME),
        EndOrder,
        "max_cost leaves no room for a machine: raise it first",
    ),
    "a job that is resumed says so": (
        ordered(trains(vms=(vm(1, **DEAD),)), replace(PAUSE, state="done"), RESUME),
        EndOrder,
        "machines are launched again",
    ),
    "and launches machines": (
        ordered(
            trains(vms=(vm(1, **DEAD), vm(2, **DEAD))),
            replace(PAUSE, state="done"),
            replace(RESUME, state="done"),
        ),
        Launch,
        "2 machines for K=2 B=128",
    ),
    "a cap that was raised lets a job go on": (
        ordered(
            poor("0.0125 USD", vms=(vm(1, prepaid_until=NOW - timedelta(seconds=4)),)),
            replace(order(1, "change", {"limits": {"max_cost": "2 USD"}}), state="done"),
        ),
        Idle,
        "running K=1 B=128",
    ),
}


@pytest.mark.parametrize(("now", "kind", "why"), CASES.values(), ids=CASES)
def test_orders_are_obeyed(now: JobState, kind: type[Action], why: str) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


ENDS = {
    "a later order replaces an earlier one": "replaced",
    "what the cap does not pay is refused": "refused",
    "a probe that is not measured in time is refused": "refused",
    "a search goes on with it": "done",
}


@pytest.mark.parametrize("name", ENDS)
def test_an_order_says_how_it_ended(name: str) -> None:
    action = plan(CASES[name][0])
    assert isinstance(action, EndOrder)
    assert (action.order, action.state) == (1, ENDS[name])


def test_a_paused_job_that_waited_for_another_reason_says_so() -> None:
    waits = trains(
        job=job(spec=WIDE, chosen=CHOSEN, waiting="sold out"), vms=(vm(1, **DEAD), vm(2, **DEAD))
    )
    action = plan(ordered(waits, replace(PAUSE, state="done")))
    assert isinstance(action, Blocked)
    again = ordered(waits, replace(PAUSE, state="done"), replace(RESUME, state="done"))
    said = replace(again, job=replace(again.job, waiting=paused_reason("job_1")))
    assert isinstance(plan(said), Unblocked)


def test_a_job_may_be_paused_as_often_as_its_user_likes() -> None:
    began, gone = NOW - timedelta(minutes=30), NOW - timedelta(minutes=20)
    left = {**DEAD, "intended_at": began, "ordered_at": gone}
    many = trains(vms=tuple(vm(number, **left) for number in range(1, 40)), workers=())
    assert isinstance(plan(many), Finish)
    paused = order(1, "pause", {}, state="done", at=NOW - timedelta(minutes=25))
    resumed = order(2, "resume", {}, state="done", at=NOW - timedelta(minutes=10))
    assert isinstance(plan(ordered(many, paused, resumed)), Launch)


def test_a_pinned_configuration_is_not_replanned() -> None:
    aged = trains(published_at=NOW - timedelta(minutes=6), steps=steps(200, 40_000.0, CHOSEN))
    assert type(plan(aged)).__name__ == "Replan"
    kept = order(1, "resize", {"to": {"workers": 2, "global_batch": 128}}, state="done")
    assert isinstance(plan(ordered(aged, kept)), Idle)


@pytest.mark.parametrize("waiting", [PAUSE, ASKED_PROBE])
def test_the_tick_looks_again_when_an_order_is_late(waiting: object) -> None:
    state = ordered(trains(), waiting)  # type: ignore[arg-type]
    deadline = next_deadline(state)
    assert deadline is not None
    assert isinstance(plan(replace(state, now=deadline)), Action)
