"""What a tick does in each situation: one row, one situation, one action."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from decimal import Decimal

import pytest

from scavenger.cluster import ClusterConfig
from scavenger.planning.decision import progress_per_iteration
from scavenger.planning.search.strategy import Probe
from scavenger.protocol import Directive, ExchangeInterval, LbfgsSettings, Member
from scavenger.schemas.jobs import JobPhase
from service import ledger
from service.db.measurements import RecordedDrift
from service.db.measurements import SettledProbe as Stored
from service.reconciler.actions import (
    Action,
    Advise,
    Blocked,
    ChooseConfig,
    Finish,
    Idle,
    KeepConfig,
    Launch,
    NoteFramework,
    PublishDirective,
    Replan,
    StoreProbe,
    Terminate,
    Unblocked,
)
from service.reconciler.apply import priced_probe
from service.reconciler.plan import end_spare_machines, launch_missing, plan, publish_target
from service.reconciler.target import WantedConfig, choose_wanted_config
from service.state.job_state import JobState
from tests.builders import (
    NOW,
    directive,
    document,
    job,
    observation,
    probe,
    server,
    serving,
    snapshot,
    spec,
    steps,
    vm,
    worker,
)

FRESH = {"vms": (), "workers": (), "directive": None, "published_at": None}
CHOSEN = ClusterConfig(2, 128)
DEAD = {"state": "gone", "ended_at": NOW}
LONG_DEAD = {
    **DEAD,
    "intended_at": NOW - timedelta(minutes=61),
    "ended_at": NOW - timedelta(minutes=60),
}


LONG_ASKED = {
    "intended_at": NOW - timedelta(minutes=16),
    "attempted_at": NOW - timedelta(minutes=16),
}


def chosen(**changes: object) -> object:
    return job(**{"chosen": CHOSEN, "choice": "the knee", **changes})


CASES = {
    "a new job starts with one machine for the first probe": (
        snapshot(job=job(phase=JobPhase.PENDING), **FRESH),
        Launch,
        "1 machine for K=1 B=32",
    ),
    "it waits for the machine to boot": (
        snapshot(job=job(), **{**FRESH, "vms": (vm(1),)}),
        Idle,
        "waiting for 1 worker to boot",
    ),
    "a ready worker is told the first probe": (
        snapshot(job=job(), **{**FRESH, "vms": (vm(1),), "workers": (worker(1, generation=0),)}),
        PublishDirective,
        "probe 1 of 3",
    ),
    "nothing changes while workers regroup": (
        snapshot(workers=(worker(1), worker(2, generation=0)), directive=directive(2, 32)),
        Idle,
        "waiting for the workers to regroup",
    ),
    "what the workers train with is written down": (
        snapshot(workers=(worker(1, framework="pytorch"), worker(2))),
        NoteFramework,
        "the workers train with pytorch",
    ),
    "and once only": (
        snapshot(
            job=chosen(framework="pytorch"), workers=(worker(1, framework="tensorflow"), worker(2))
        ),
        Idle,
        "running K=2 B=128",
    ),
    "a choice by times of another framework is made anew": (
        snapshot(workers=(worker(1, framework="tensorflow"), worker(2))),
        NoteFramework,
        "times that jobs with pytorch measured are not used; framework: tensorflow in the job "
        "document says so before they start; the configuration is chosen anew",
    ),
    "a document that names another framework is contradicted": (
        snapshot(
            job=chosen(spec=spec(framework="pytorch")),
            workers=(worker(1, framework="tensorflow"), worker(2)),
            probes=(probe(1, 32),),
        ),
        NoteFramework,
        "the job document says framework: pytorch, but the workers train with tensorflow",
    ),
    "training as chosen needs nothing": (snapshot(), Idle, "running K=2 B=128"),
    "probes that are enough lead to a choice": (
        snapshot(job=job(), probes=(probe(1, 32), probe(1, 128), probe(2, 128), probe(2, 32))),
        ChooseConfig,
        "after 4 probes",
    ),
    "the next probe launches what it needs and goes on training": (
        snapshot(
            job=job(),
            vms=(vm(1),),
            workers=(worker(1),),
            directive=directive(1, 128, purpose="probe"),
            probes=(probe(1, 32), probe(1, 128)),
        ),
        Launch,
        "1 machine for K=2 B=128",
    ),
    "a cancelled job ends in every other state": (
        snapshot(job=chosen(cancel_requested_at=NOW), vms=(vm(1, exit_code=1), vm(2))),
        Finish,
        "cancelled on request",
    ),
    "after the end machines are ended": (
        snapshot(job=chosen(phase=JobPhase.CANCELLED)),
        Terminate,
        "job cancelled: 2 machines left",
    ),
    "and then nothing is left to do": (
        snapshot(job=chosen(phase=JobPhase.SUCCEEDED), vms=(vm(1, **DEAD),)),
        Idle,
        "job succeeded",
    ),
    "the cap ends a job before it is passed": (
        snapshot(
            job=chosen(spec=spec(limits={**document()["limits"], "max_cost": "0.0125 USD"})),
        ),
        Finish,
        "max_cost reached: $0.01 of $0.01",
    ),
    "max_time ends a job": (
        snapshot(job=chosen(spec=spec(limits={**document()["limits"], "max_time": "59s"}))),
        Finish,
        "max_time reached after 60 s",
    ),
    "the leader reached the target and its command ended well": (
        snapshot(
            vms=(vm(1, exit_code=0), vm(2)),
            workers=(worker(1, finished="target", metrics={"accuracy": 0.975}), worker(2)),
        ),
        Finish,
        "target accuracy >= 0.97 reached after 2.00 reference epochs and 100 iterations; "
        "the last value was 0.975",
    ),
    "the command is still ending": (
        snapshot(workers=(worker(1, finished="target"), worker(2))),
        Idle,
        "its command is still ending",
    ),
    "a worker that ends before its leader is not replaced": (
        snapshot(workers=(worker(1), worker(2, finished="target"))),
        Idle,
        "training is ending, no machine is replaced",
    ),
    "epochs ran out": (
        snapshot(
            vms=(vm(1, exit_code=0), vm(2)),
            workers=(worker(1, finished="exhausted", metrics={"accuracy": 0.9}), worker(2)),
        ),
        Finish,
        "ended without reaching accuracy >= 0.97",
    ),
    "a script that fails fails the job, with its last words": (
        snapshot(vms=(vm(1), vm(2, exit_code=3, tail="boom\nNameError: x"))),
        Finish,
        "w2 exited with code 3 (others stopped by Scavenger); its last lines:\nboom\nNameError: x",
    ),
    "a leader that fails after training fails the job": (
        snapshot(
            vms=(vm(1, exit_code=2, tail="disk full"), vm(2)),
            workers=(worker(1, finished="target"), worker(2)),
        ),
        Finish,
        "w1 exited with code 2",
    ),
    "a released worker's exit code harms no other worker": (
        snapshot(
            vms=(vm(1), vm(2), vm(3, exit_code=1, **DEAD)),
            workers=(worker(1), worker(2), worker(3, finished="released")),
        ),
        Idle,
        "running K=2 B=128",
    ),
    "survivors of a killed worker go on": (
        snapshot(vms=(vm(1), vm(2, **DEAD))),
        PublishDirective,
        "lost w2: the survivors go on with K=1 B=128",
    ),
    "survivors of a killed leader go on": (
        snapshot(vms=(vm(1, exit_code=-9), vm(2))),
        PublishDirective,
        "lost w1: the survivors go on with K=1 B=128",
    ),
    "a member that hangs while another waits is ended": (
        snapshot(
            workers=(worker(1, broken=1), worker(2, seen_at=NOW - timedelta(seconds=61))),
        ),
        Terminate,
        "w2 silent while the others wait",
    ),
    "workers that lost touch but live form the generation anew": (
        snapshot(workers=(worker(1, broken=1), worker(2, broken=1))),
        PublishDirective,
        "the workers lost touch: forming K=2 B=128 anew",
    ),
    "but not before they have had time to form it at all": (
        snapshot(
            workers=(worker(1, broken=1), worker(2, generation=0)),
            published_at=NOW - timedelta(seconds=1),
        ),
        Idle,
        "waiting for the workers to regroup",
    ),
    "newcomers the leader cannot reach are ended": (
        snapshot(
            workers=(worker(1, generation=1, refused=2), worker(2, generation=0)),
            directive=directive(2, 128, generation=2),
        ),
        Terminate,
        "w2 cannot be reached by the leader",
    ),
    "a machine that never says hello is ended": (
        snapshot(
            vms=(vm(1), vm(2), vm(3, **LONG_ASKED)),
            job=chosen(chosen=ClusterConfig(3, 128)),
        ),
        Terminate,
        "w3 did not say hello in 0:15:00",
    ),
    "a command that ends well without taking part fails the job": (
        snapshot(job=job(), vms=(vm(1, exit_code=0),), workers=(), directive=None),
        Finish,
        "w1 ended without taking part; does the script open worker_agent.session()",
    ),
    "a command that never ends after training is not waited for": (
        snapshot(
            workers=(
                worker(1, finished="target", seen_at=NOW - timedelta(hours=2)),
                worker(2),
            ),
        ),
        Finish,
        "target accuracy >= 0.97 reached",
    ),
    "no machine at all and no money for those needed ends the job": (
        snapshot(
            job=chosen(spec=spec(limits={**document()["limits"], "max_cost": "0.003 USD"})),
            **FRESH,
        ),
        Finish,
        "max_cost leaves no room for 2 more machines",
    ),
    "a probe the cap cannot pay ends the search": (
        snapshot(
            job=job(spec=spec(limits={**document()["limits"], "max_cost": "0.038 USD"})),
            vms=(vm(1),),
            workers=(worker(1),),
            directive=directive(1, 128, purpose="probe"),
            probes=(probe(1, 32), probe(1, 128)),
        ),
        ChooseConfig,
        "max_cost leaves no room for 1 more machine, so the search ends after 2 probes",
    ),
    "all are lost: machines are launched anew": (
        snapshot(vms=(vm(1, **DEAD), vm(2, **DEAD))),
        Launch,
        "2 machines for K=2 B=128",
    ),
    "a lost worker is replaced while the others train": (
        snapshot(
            vms=(vm(1), vm(2, **DEAD)),
            workers=(worker(1, generation=2), worker(2)),
            directive=directive(1, 128, generation=2),
        ),
        Launch,
        "1 machine for K=2 B=128",
    ),
    "a worker that keeps dying does not empty the purse": (
        snapshot(
            vms=(*(vm(n, **DEAD) for n in range(3, 20)), vm(1), vm(2)),
        ),
        Finish,
        "workers keep dying",
    ),
    "nor is another one launched at once when many died within an hour": (
        snapshot(
            vms=(*(vm(n, **DEAD) for n in range(3, 8)), vm(1, **DEAD), vm(2)),
            workers=(worker(2),),
            directive=directive(1, 128, generation=2),
        ),
        Blocked,
        "7 machines were launched within an hour, where 6 are allowed: none before 12:59 UTC",
    ),
    "but later it is": (
        snapshot(
            vms=(
                *(vm(n, **LONG_DEAD) for n in range(3, 8)),
                vm(1, **DEAD),
                vm(2),
            ),
            workers=(worker(2),),
            directive=directive(1, 128, generation=2),
        ),
        Launch,
        "1 machine for K=2 B=128",
    ),
    "no machine is launched that the cap cannot pay": (
        snapshot(
            job=chosen(spec=spec(limits={**document()["limits"], "max_cost": "0.038 USD"})),
            vms=(vm(1, prepaid_until=NOW + timedelta(minutes=5)),),
            workers=(worker(1, generation=1),),
            directive=directive(1, 128),
        ),
        Blocked,
        "max_cost leaves no room for 1 more machine",
    ),
    "released workers may end by themselves": (
        snapshot(
            job=job(chosen=ClusterConfig(1, 128)),
            directive=directive(1, 128),
            published_at=NOW - timedelta(seconds=2),
        ),
        Idle,
        "letting released workers end",
    ),
    "and are ended if they do not": (
        snapshot(job=job(chosen=ClusterConfig(1, 128)), directive=directive(1, 128)),
        Terminate,
        "1 machine released by K=1 B=128",
    ),
    "a limit that nothing meets ends the job and names the nearest": (
        snapshot(
            job=job(
                spec=spec(
                    target={"epochs": 60, "at_batch": 32},
                    limits={**document()["limits"], "max_time": "20s"},
                )
            ),
            probes=(probe(1, 32), probe(1, 128), probe(2, 128), probe(2, 32)),
            vms=(vm(1, intended_at=NOW - timedelta(seconds=5)), vm(2)),
        ),
        Finish,
        "no configuration meets the limits; the nearest",
    ),
}


POOR = {**document()["limits"], "max_cost": "0.038 USD"}  # pays for the machine there is
UNSETTLED = tuple(
    replace(timed, observation=replace(timed.observation, has_settled_noise=False))
    for timed in (probe(1, 32), probe(1, 128), probe(2, 128))
)


def unmeasured(timed: Stored) -> Stored:
    """The same probe without noise."""
    shown = replace(timed.observation.indicators, noise=None, noise_scale=None)
    return replace(timed, observation=replace(timed.observation, indicators=shown))


# One worker of an unchanged script measures no noise.
SILENT = (unmeasured(UNSETTLED[0]), unmeasured(UNSETTLED[1]), UNSETTLED[2])
LONE = {
    "vms": (vm(1),),
    "workers": (worker(1),),
    "directive": directive(1, 128, purpose="probe", is_provisional=True),
}
TWO_NEEDED = {**POOR, "workers": "2..2"}
UNPAID = {
    "noise settles on the machines there are": (
        snapshot(job=job(spec=spec(limits=POOR, objective="fastest")), probes=UNSETTLED, **LONE),
        PublishDirective,
        "max_cost leaves no room for 1 more machine, so the search ends and the noise settles at "
        "K=1 B=",
    ),
    "and so it does when a probe of time is what cannot be paid": (
        snapshot(
            job=job(spec=spec(limits=POOR, objective="fastest")), probes=UNSETTLED[:2], **LONE
        ),
        PublishDirective,
        "max_cost leaves no room for 1 more machine, so the search ends and the noise settles at "
        "K=1 B=",
    ),
    "no noise settles where that needs a machine that cannot be paid": (
        snapshot(job=job(spec=spec(limits=POOR, objective="fastest")), probes=SILENT, **LONE),
        ChooseConfig,
        "no configuration within the limits measures noise, so the epochs rest on noise that did "
        "not settle in this job",
    ),
    "nor where nothing of it was seen": (
        snapshot(job=job(spec=spec(limits=POOR)), probes=SILENT[:2], **LONE),
        ChooseConfig,
        "within the limits measures noise, so every batch is taken to need as many epochs",
    ),
    "the choice is one that is paid": (
        snapshot(
            job=job(spec=spec(limits=POOR, objective="fastest")),
            probes=(probe(1, 32), probe(1, 128), probe(2, 128)),
            **LONE,
        ),
        ChooseConfig,
        "max_cost leaves no room for 1 more machine, so the search ends after 3 probes: K=1 B=",
    ),
    "also where nothing that is paid meets the limits": (
        snapshot(
            job=job(
                spec=spec(
                    limits={**POOR, "max_time": "80s"}, target={"epochs": 60, "at_batch": 32}
                ),
            ),
            probes=(probe(1, 32), probe(1, 128), probe(2, 128)),
            **{**LONE, "vms": (vm(1, intended_at=NOW - timedelta(seconds=50)),)},
        ),
        ChooseConfig,
        "so the search ends after 3 probes: K=1 B=",
    ),
    "a job that was chosen trains on the machines it has": (
        snapshot(job=chosen(spec=spec(limits=POOR)), **LONE),
        PublishDirective,
        "max_cost leaves no room for 1 more machine: training on K=1 B=128",
    ),
    "and waits for nothing else": (
        snapshot(job=chosen(spec=spec(limits=POOR)), **{**LONE, "directive": directive(1, 128)}),
        Blocked,
        "max_cost leaves no room for 1 more machine",
    ),
    "one of which nothing is known keeps the machines it has": (
        snapshot(
            job=job(spec=spec(limits=TWO_NEEDED)),
            vms=(vm(1),),
            workers=(worker(1, generation=0),),
            directive=None,
            published_at=None,
        ),
        KeepConfig,
        "max_cost leaves no room for 1 more machine: training on K=1 B=32",
    ),
}


@pytest.mark.parametrize(("now", "kind", "why"), UNPAID.values(), ids=UNPAID)
def test_a_job_that_cannot_pay_more_machines_trains_on_those_it_has(
    now: JobState, kind: type[Action], why: str
) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


def test_a_search_that_cannot_be_paid_ends_in_training_for_good() -> None:
    now, said = UNPAID["the choice is one that is paid"][0], []
    for generation in (1, 2):
        action = plan(now)
        said.append(action.why)
        match action:
            case ChooseConfig(run):
                now = replace(now, job=replace(now.job, chosen=run.config))
            case PublishDirective(told):
                known = tuple(replace(w, generation=generation) for w in now.workers)
                now = replace(now, directive=told, workers=known)
    assert now.directive is not None, said
    assert (now.directive.purpose, now.directive.is_provisional) == ("train", False), said
    assert isinstance(plan(now), Idle), said


LEFT = {"finished": "released"}
SERVED = spec(strategy={"parameter_server": {"servers": 2}})
SEATS = (Member("s3", "127.0.0.1:9003"), Member("s4", "127.0.0.1:9004"))


def served(**changes: object) -> JobState:
    """A job that trains on two workers and two parameter servers, all well."""
    facts: dict[str, object] = {
        "job": chosen(spec=SERVED),
        "vms": (server(3), server(4), vm(1), vm(2)),
        "workers": (serving(3), serving(4), worker(1), worker(2)),
        "directive": directive(2, 128, strategy="parameter_server", servers=SEATS),
    }
    return snapshot(**{**facts, **changes})


LEAVING = {
    "a member told to leave is let go at once, and nothing is broken": (
        snapshot(vms=(vm(1), vm(2, exit_code=0)), workers=(worker(1), worker(2, **LEFT))),
        PublishDirective,
        "w2 was told to leave: the others go on with K=1 B=128",
    ),
    "a worker that is ready steps in for it": (
        snapshot(
            vms=(vm(1), vm(2), vm(3)),
            workers=(worker(1), worker(2, **LEFT), worker(3, generation=0)),
        ),
        PublishDirective,
        "w2 was told to leave: the others go on with K=2 B=128",
    ),
    "a leader told to leave neither ends nor fails the job": (
        snapshot(vms=(vm(1, exit_code=0), vm(2)), workers=(worker(1, **LEFT), worker(2))),
        PublishDirective,
        "w1 was told to leave: the others go on with K=1 B=128",
    ),
    "not even when its script ends badly": (
        snapshot(vms=(vm(1, exit_code=143), vm(2)), workers=(worker(1, **LEFT), worker(2))),
        PublishDirective,
        "w1 was told to leave: the others go on with K=1 B=128",
    ),
    "the leader's metric is no verdict when it was told to leave": (
        snapshot(
            vms=(vm(1, exit_code=0), vm(2)),
            workers=(worker(1, metrics={"accuracy": 0.99}, **LEFT), worker(2)),
        ),
        PublishDirective,
        "w1 was told to leave",
    ),
    "a machine told to end is replaced": (
        snapshot(
            vms=(vm(1), vm(2, exit_code=0)),
            workers=(worker(1, generation=2), worker(2, **LEFT)),
            directive=directive(1, 128, generation=2),
        ),
        Launch,
        "1 machine for K=2 B=128",
    ),
    "and so is the only one": (
        snapshot(
            job=chosen(chosen=ClusterConfig(1, 128)),
            vms=(vm(1, exit_code=0),),
            workers=(worker(1, **LEFT),),
            directive=directive(1, 128),
        ),
        Launch,
        "1 machine for K=1 B=128",
    ),
    "whose successor takes over": (
        snapshot(
            job=chosen(chosen=ClusterConfig(1, 128)),
            vms=(vm(1, **DEAD, exit_code=0), vm(2)),
            workers=(worker(1, generation=0, **LEFT), worker(2, generation=0)),
            directive=directive(1, 128),
        ),
        PublishDirective,
        "training on K=1 B=128",
    ),
    "one that was killed besides breaks the generation": (
        snapshot(
            vms=(vm(1), vm(2, exit_code=0), vm(3, **DEAD)),
            workers=(worker(1), worker(2, **LEFT), worker(3)),
            directive=directive(3, 128),
            job=chosen(chosen=ClusterConfig(3, 128)),
        ),
        PublishDirective,
        "lost w3: the survivors go on with K=1 B=128",
    ),
}


@pytest.mark.parametrize(("now", "kind", "why"), LEAVING.values(), ids=LEAVING)
def test_a_worker_that_is_told_to_leave_harms_no_other(
    now: JobState, kind: type[Action], why: str
) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


def test_no_worker_gives_up_a_collective_for_one_that_has_left() -> None:
    left = snapshot(workers=(worker(1, **LEFT), worker(2)))
    assert not published(left).repairs
    assert published(left).handover is None
    assert published(snapshot(workers=(worker(1), worker(2, **LEFT)))).handover is not None


SERVING = {
    "servers are launched with the first worker": (
        served(job=job(phase=JobPhase.PENDING, spec=SERVED), **FRESH),
        Launch,
        "1 machine for K=1 B=32, and 2 servers",
    ),
    "no worker trains before they are there": (
        served(
            job=job(spec=SERVED),
            vms=(server(3), server(4), vm(1)),
            workers=(serving(3), worker(1, generation=0)),
            directive=None,
            published_at=None,
        ),
        Idle,
        "waiting for the parameter servers to boot",
    ),
    "servers are neither workers nor spare": (served(), Idle, "running K=2 B=128"),
    "a server that never says hello is ended": (
        served(
            vms=(server(3), server(4, **LONG_ASKED), vm(1)),
            workers=(serving(3), worker(1, generation=0)),
            directive=None,
            published_at=None,
            job=job(spec=SERVED),
        ),
        Terminate,
        "s4 did not say hello in 0:15:00",
    ),
    "a lost server is replaced": (
        served(vms=(server(3), server(4, **DEAD), vm(1), vm(2))),
        Launch,
        "1 server instead of s4",
    ),
    "with any exit code": (
        served(vms=(server(3), server(4, exit_code=1), vm(1), vm(2))),
        Launch,
        "1 server instead of s4",
    ),
    "the workers wait for the new one": (
        served(
            vms=(server(3), server(4, **DEAD), server(5), vm(1), vm(2)),
            workers=(serving(3), serving(4), worker(1, broken=1), worker(2, broken=1)),
        ),
        Idle,
        "waiting for the parameter servers to boot",
    ),
    "and go on with it": (
        served(
            vms=(server(3), server(4, **DEAD), server(5), vm(1), vm(2)),
            workers=(serving(3), serving(4), serving(5), worker(1), worker(2)),
        ),
        PublishDirective,
        "lost s4: the workers go on with K=2 B=128 and other servers",
    ),
    "without those who died meanwhile": (
        served(
            vms=(server(3), server(4, **DEAD), server(5), vm(1), vm(2, **DEAD)),
            workers=(serving(3), serving(4), serving(5), worker(1), worker(2)),
        ),
        PublishDirective,
        "lost s4: the workers go on with K=1 B=128 and other servers",
    ),
    "a server that starts again is waited for": (
        served(workers=(serving(3), serving(4, address=""), worker(1), worker(2))),
        Idle,
        "waiting for the parameter servers to boot",
    ),
    "a server that began anew is empty": (
        served(workers=(serving(3), serving(4, address="127.0.0.1:7"), worker(1), worker(2))),
        PublishDirective,
        "lost s4: the workers go on with K=2 B=128 and other servers",
    ),
    "a server that fell silent is ended": (
        served(
            workers=(
                serving(3),
                serving(4, seen_at=NOW - timedelta(seconds=61), hello_at=NOW - timedelta(hours=1)),
                worker(1),
                worker(2),
            ),
        ),
        Terminate,
        "s4 silent while the workers wait",
    ),
    "a job ends when the cap does not pay its servers": (
        served(
            job=chosen(
                spec=spec(
                    strategy={"parameter_server": {"servers": 2}},
                    limits={**document()["limits"], "max_cost": "0.117 USD"},
                )
            ),
            vms=(server(3), server(4, **DEAD), vm(1), vm(2)),
        ),
        Finish,
        "max_cost leaves no room for 1 more server",
    ),
    "lost workers are left behind while the servers go on": (
        served(vms=(server(3), server(4), vm(1), vm(2, **DEAD))),
        PublishDirective,
        "lost w2: the survivors go on with K=1 B=128",
    ),
    "after the end servers are ended too": (
        served(job=chosen(phase=JobPhase.SUCCEEDED, spec=SERVED)),
        Terminate,
        "job succeeded: 4 machines left",
    ),
}


@pytest.mark.parametrize(("now", "kind", "why"), SERVING.values(), ids=SERVING)
def test_servers_serve_and_are_replaced(now: JobState, kind: type[Action], why: str) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


def test_a_new_server_takes_the_shard_of_the_lost_one() -> None:
    told = published(
        served(
            vms=(server(3, **DEAD), server(4), server(5), vm(1), vm(2)),
            workers=(serving(3), serving(4), serving(5), worker(1), worker(2)),
        )
    )
    assert [server.worker for server in told.servers] == ["s5", "s4"]
    assert (told.strategy, told.repairs) == ("parameter_server", True)
    assert [member.worker for member in told.members] == ["w1", "w2"]


def test_a_launch_counts_servers_apart() -> None:
    action = plan(served(job=job(phase=JobPhase.PENDING, spec=SERVED), **FRESH))
    assert isinstance(action, Launch)
    assert (action.workers, action.servers) == (1, 2)


ONE = {**document()["limits"], "workers": 2, "batch": 128}
SANDBLASTER = spec(strategy={"sandblaster": {"history": 7, "portions": 40}}, limits=ONE)
DOWNPOUR = spec(strategy={"downpour": {"n_push": 2, "n_fetch": 4}}, limits=ONE)
OBSERVED, ADVISED = spec(level="observe"), spec(level="advise")
START = ClusterConfig(1, 32)
ALONE = {"vms": (vm(1),), "workers": (worker(1),), "directive": directive(1, 32)}
UNSEARCHED = {
    "a job that is observed measures where it starts": (
        snapshot(job=job(spec=OBSERVED), vms=(vm(1),), workers=(worker(1),), directive=None),
        PublishDirective,
        "level observe: measuring K=1 B=32",
    ),
    "and stays there": (
        snapshot(job=job(spec=OBSERVED), probes=(probe(1, 32),), **ALONE),
        KeepConfig,
        "level observe: the job stays on K=1 B=32",
    ),
    "for good": (
        snapshot(job=job(spec=OBSERVED, chosen=START, choice=""), probes=(probe(1, 32),), **ALONE),
        Idle,
        "running K=1 B=32",
    ),
    "a job that is advised hears what it would do better with": (
        snapshot(job=job(spec=ADVISED, chosen=START, choice=""), probes=(probe(1, 32),), **ALONE),
        Advise,
        "advice: K=",
    ),
    "but nothing before anything is known": (
        snapshot(job=job(spec=ADVISED, chosen=START, choice=""), **ALONE),
        Idle,
        "running K=1 B=32",
    ),
    "downpour is never searched": (
        snapshot(job=job(spec=DOWNPOUR), **FRESH),
        KeepConfig,
        "downpour is not searched: training on K=2 B=128",
    ),
    "nor is sandblaster": (
        snapshot(job=job(spec=SANDBLASTER), **FRESH),
        KeepConfig,
        "sandblaster is not searched: training on K=2 B=128",
    ),
    "and starts with all its machines": (
        snapshot(job=chosen(spec=DOWNPOUR), **FRESH),
        Launch,
        "2 machines for K=2 B=128, and 1 server",
    ),
}


@pytest.mark.parametrize(("now", "kind", "why"), UNSEARCHED.values(), ids=UNSEARCHED)
def test_a_job_that_is_not_searched_keeps_its_configuration(
    now: JobState, kind: type[Action], why: str
) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


def test_advice_is_given_once() -> None:
    facts = {"spec": ADVISED, "chosen": START, "choice": ""}
    first = plan(snapshot(job=job(**facts), probes=(probe(1, 32),), **ALONE))
    assert isinstance(first, Advise)
    heard = job(**facts, advised=first.config, advice=first.why)
    assert isinstance(plan(snapshot(job=heard, probes=(probe(1, 32),), **ALONE)), Idle)


def test_workers_of_downpour_are_told_how_often_to_speak() -> None:
    told = published(
        snapshot(
            job=chosen(spec=DOWNPOUR),
            vms=(vm(1), vm(2), server(3)),
            workers=(worker(1, generation=0), worker(2, generation=0), serving(3)),
            directive=None,
        )
    )
    assert (told.strategy, told.exchange) == ("downpour", ExchangeInterval(2, 4))
    assert told.progress_per_iteration == pytest.approx(128 / 1437)


def test_workers_of_sandblaster_are_told_how_their_servers_step() -> None:
    now = snapshot(
        job=chosen(spec=SANDBLASTER),
        vms=(vm(1), vm(2), server(3)),
        workers=(worker(1, generation=0), worker(2, generation=0), serving(3)),
        directive=None,
    )
    told = published(now)
    assert (told.strategy, told.lbfgs) == ("sandblaster", LbfgsSettings(7, 40))


def test_progress_goes_back_with_the_job() -> None:
    """Workers that died were further than those that went on from a checkpoint."""
    now = snapshot(
        vms=(vm(1, **DEAD), vm(2)),
        workers=(worker(1, iteration=900, epochs=18.0), worker(2, generation=2)),
        directive=replace(directive(1, 128, generation=2), members=(Member("w2", "a:1"),)),
    )
    assert now.epochs == 2.0
    assert now.most_advanced is not None
    assert now.most_advanced.iteration == 100


def test_no_worker_is_silent_to_a_controller_that_has_just_begun_to_listen() -> None:
    long_ago = NOW - timedelta(hours=2)
    quiet = snapshot(workers=(worker(1), worker(2, seen_at=long_ago)))
    assert isinstance(plan(quiet), Terminate)
    assert isinstance(plan(replace(quiet, listening_since=NOW - timedelta(seconds=30))), Idle)


SEARCHED = WantedConfig(ClusterConfig(1, 64), "", Probe(ClusterConfig(1, 64), ""))
SETTLING = WantedConfig(ClusterConfig(1, 64), "", Probe(ClusterConfig(1, 64), "", measures="noise"))
BOOTED = dict.fromkeys(("intended_at", "began_at", "attempted_at"), NOW - timedelta(minutes=55))
GREETED = {"hello_at": NOW - timedelta(minutes=54)}


def probing(idle: float, **changes: object) -> JobState:
    """A search on one of two machines, which boot in a minute; the other was left out a while ago.

    Args:
        idle: Seconds since it said that it stands by.
        changes: What else is other.
    """
    aside = worker(2, generation=0, hello_at=NOW - timedelta(seconds=idle))
    facts: dict[str, object] = {
        "job": job(),
        "vms": (vm(1, **BOOTED), vm(2, **BOOTED)),
        "workers": (worker(1, **GREETED), aside),
        "directive": directive(1, 64, purpose="probe", standby=("w2",)),
    }
    return snapshot(**{**facts, **changes})


def test_a_worker_that_a_probe_leaves_out_stands_by() -> None:
    both = probing(0, directive=directive(2, 64, purpose="probe"), workers=(worker(1), worker(2)))
    told = publish_target(both, SEARCHED)
    assert isinstance(told, PublishDirective)
    assert told.directive.standby == ("w2",)
    settling = publish_target(both, SETTLING)
    assert isinstance(settling, PublishDirective)
    assert settling.directive.standby == ()


@pytest.mark.parametrize(
    "end",
    [
        {"vms": (vm(2),)},
        {"workers": (worker(1, finished="released"), worker(2))},
        {"workers": (worker(1, address="127.0.0.1:9100"), worker(2))},
    ],
    ids=["lost", "released", "restarted"],
)
def test_a_worker_is_not_awaited_to_stand_by_when_no_member_is_left_to_let_it(
    end: dict[str, object],
) -> None:
    facts: dict[str, object] = {"vms": (vm(1), vm(2)), "workers": (worker(1), worker(2)), **end}
    left = probing(0, **facts)
    assert "w2" in [ready.worker for ready in left.ready_workers]
    assert "w2" not in [
        ready.worker for ready in probing(0, workers=(worker(1), worker(2))).ready_workers
    ]


@pytest.mark.parametrize(
    ("now", "wanted", "ended"),
    [
        (probing(49), SEARCHED, None),
        (probing(61), SEARCHED, ("w2",)),
        (probing(49), SETTLING, ("w2",)),
        (probing(49), WantedConfig(ClusterConfig(1, 64), ""), ("w2",)),
        (probing(61, boot=timedelta(minutes=2)), SEARCHED, None),
        (probing(3000, vms=(vm(1, **BOOTED), vm(2, **BOOTED, quantum=3600.0))), SEARCHED, None),
        (probing(3000, vms=(vm(1), vm(2, price_per_hour=Decimal(0)))), SEARCHED, None),
        (probing(0, workers=(worker(1, **GREETED),)), SEARCHED, None),
        (probing(49, published_at=NOW), SETTLING, ("w2",)),
    ],
    ids=[
        "as long as that costs less than a boot",
        "and no longer",
        "nor while noise settles",
        "nor after the search",
        "for as long as the provider says a boot may take",
        "within the hour that is billed anyway",
        "where it costs nothing",
        "one that still boots is waited for",
        "one that waits does not end by itself",
    ],
)
def test_a_machine_is_kept_for_the_next_probe(
    now: JobState, wanted: WantedConfig, ended: tuple[str, ...] | None
) -> None:
    action = end_spare_machines(now, wanted)
    assert (action.vms if isinstance(action, Terminate) else action) == ended


def test_a_worker_is_not_named_again_before_it_stands_by() -> None:
    busy = worker(2, generation=1)  # it has not heard yet that it is left out
    assert [w.worker for w in probing(0, workers=(worker(1), busy)).ready_workers] == ["w1"]
    assert [w.worker for w in probing(0).ready_workers] == ["w1", "w2"]


BUSY = (
    worker(1, **GREETED),
    worker(2),
)  # the second stays in the generation that it was told to leave
LONG_LEFT = {"workers": BUSY, "published_at": NOW - timedelta(minutes=6)}


@pytest.mark.parametrize(
    ("now", "ended"),
    [
        (probing(0, **LONG_LEFT), ("w2",)),
        (probing(0, workers=BUSY), None),
        (probing(0, **LONG_LEFT, listening_since=NOW - timedelta(minutes=4)), None),
        (
            probing(
                0,
                **LONG_LEFT,
                directive=directive(1, 64, generation=2, purpose="probe", standby=("w2",)),
            ),
            None,
        ),
        (probing(0, published_at=NOW - timedelta(minutes=6)), None),
        (probing(0, **LONG_LEFT, directive=directive(1, 64, purpose="probe")), None),
        (probing(0, **LONG_LEFT, vms=(vm(1, **DEAD), vm(2, **BOOTED))), None),
    ],
    ids=[
        "after a while",
        "but not at once",
        "nor by a controller that could not hear it",
        "nor before the others have entered what tells it so",
        "nor once it does",
        "nor without being told to",
        "nor when no other is left",
    ],
)
def test_a_worker_that_never_stands_by_is_ended(
    now: JobState, ended: tuple[str, ...] | None
) -> None:
    action = launch_missing(now, SEARCHED)
    assert (action.vms if isinstance(action, Terminate) else action) == ended
    if isinstance(action, Terminate):
        assert action.why == "w2 did not stand by in 0:05:00"
        again = replace(now, vms=(now.vms[0], replace(now.vms[1], state="ending")))
        assert isinstance(launch_missing(again, WantedConfig(ClusterConfig(2, 64), "")), Launch)


AHEAD = WantedConfig(
    ClusterConfig(1, 64), "", Probe(ClusterConfig(1, 64), "", next_config=ClusterConfig(2, 64))
)


@pytest.mark.parametrize(
    ("rows", "boot", "is_launched"),
    [(5, 0.2, True), (5, 0.1, False), (5, 0.0, False), (0, 9.0, False)],
)
def test_machines_of_the_next_probe_boot_while_this_one_ends(
    rows: int, boot: float, is_launched: bool
) -> None:
    """18 of 23 iterations are left, which take 11 ms each."""
    alone = probing(
        0,
        vms=(vm(1, **BOOTED),),
        workers=(worker(1, **GREETED),),
        steps=steps(rows, 200.0, ClusterConfig(1, 64)),
        boot=timedelta(seconds=boot),
    )
    action = launch_missing(alone, AHEAD)
    assert isinstance(action, Launch) == is_launched
    if isinstance(action, Launch):
        assert (action.workers, action.why) == (1, "1 machine for K=2 B=64")
        both = replace(alone, vms=(*alone.vms, vm(2)))
        assert launch_missing(both, AHEAD) is None
        assert end_spare_machines(both, AHEAD) is None


@pytest.mark.parametrize(
    "change",
    [
        {"job": job(spec=spec(limits=POOR)), "vms": (vm(1),)},
        {"vms": (vm(1, **BOOTED), *(vm(n, **DEAD) for n in range(3, 9)))},
    ],
    ids=["the cap does not pay for them", "too many were launched lately"],
)
def test_a_probe_goes_on_when_nothing_can_be_launched_for_the_next(
    change: dict[str, object],
) -> None:
    facts: dict[str, object] = {
        "vms": (vm(1, **BOOTED),),
        "workers": (worker(1, **GREETED),),
        "directive": directive(1, 128, purpose="probe", split_every=5),
        "probes": (probe(1, 32),),
        "steps": steps(5, 200.0, ClusterConfig(1, 128)),
        "boot": timedelta(seconds=9),
    }
    rich = snapshot(**{"job": job(), **facts})
    assert isinstance(plan(rich), Launch)
    poor = plan(snapshot(**{"job": job(), **facts, **change}))
    assert not isinstance(poor, Launch | ChooseConfig | Blocked), poor


HERE = ClusterConfig(1, 128)


def settling(**changes: object) -> JobState:
    """Noise settles on one of two machines, while what is known by now would choose both."""
    facts: dict[str, object] = {
        "job": job(spec=spec(objective="fastest")),
        "workers": (worker(1), worker(2, generation=0)),
        "directive": directive(1, 128, purpose="probe", split_every=2, is_provisional=True),
        "probes": UNSETTLED,
        "steps": steps(60, 200.0, HERE),
    }
    return snapshot(**{**facts, **changes})


@pytest.mark.parametrize("objective", ["fastest", "cheapest", "knee"])
@pytest.mark.parametrize("config", [(1, 32), (1, 128), (2, 32), (2, 128)], ids=str)
def test_noise_settles_where_it_began_to_though_another_would_be_chosen_meanwhile(
    objective: str, config: tuple[int, int]
) -> None:
    told = directive(*config, purpose="probe", split_every=2, is_provisional=True)
    wished = job(spec=spec(objective=objective))
    running = settling(job=wished, directive=told, workers=(worker(1), worker(2)))
    assert not isinstance(plan(running), PublishDirective | ChooseConfig | Launch), plan(running)


def test_noise_is_not_awaited_on_one_worker_that_measures_none() -> None:
    """As a controller did that did not know yet where noise can be measured."""
    both = (worker(1), worker(2))
    waiting = settling(job=job(spec=spec(objective="cheapest")), probes=SILENT, workers=both)
    moved = plan(waiting)
    assert isinstance(moved, PublishDirective)
    assert (moved.directive.config.workers, moved.directive.split_every) == (2, 2)
    assert "the noise settles at K=2" in moved.why
    assert "as K=1 B=" in moved.why


def test_noise_that_settles_nowhere_has_one_deadline() -> None:
    long_ago = NOW - timedelta(minutes=121)
    late = plan(settling(published_at=long_ago))
    assert isinstance(late, StoreProbe)
    assert late.settled.observation.config == HERE
    done = (*UNSETTLED, Stored(late.settled.observation, 2.0, Decimal("0.0002"), NOW))
    assert isinstance(plan(settling(probes=done, published_at=long_ago)), ChooseConfig)


def test_noise_does_not_settle_where_no_machine_is_left() -> None:
    assert "the noise settles at K=2" in str(
        choose_wanted_config(settling(vms=(vm(1, **DEAD), vm(2))))
    )


def test_probes_of_one_generation_share_its_time_and_money() -> None:
    """Noise goes on settling where the time of an iteration was measured last."""
    timed = replace(probe(2, 128), settled_at=NOW - timedelta(seconds=20))
    began = NOW - timedelta(seconds=30)
    first = priced_probe(snapshot(now=timed.settled_at, published_at=began), timed.observation)
    noise = priced_probe(snapshot(published_at=began, probes=(timed,)), timed.observation)
    assert (first.seconds, noise.seconds) == (10.0, 20.0)
    whole = snapshot().accrued - ledger.accrued(snapshot().vms, began)
    assert first.cost + noise.cost == whole == Decimal("0.36") / 60


def settled(early: float, late: float) -> JobState:
    """Noise has settled on the configuration of the newest Directive."""
    timed = replace(probe(2, 128), observation=observation(2, 128, noise_scale=early))
    timed = replace(timed, observation=replace(timed.observation, has_settled_noise=False))
    told = directive(2, 128, purpose="probe", is_provisional=True)
    before = snapshot(job=job(), probes=(timed,), directive=told)
    worth = progress_per_iteration(before.knowledge, told.config)
    told = replace(told, progress_per_iteration=worth)
    probes = (timed, Stored(observation(2, 128, noise_scale=late), 2.0, Decimal("0.0002"), NOW))
    return snapshot(job=chosen(chosen=ClusterConfig(1, 128)), probes=probes, directive=told)


def test_progress_is_counted_anew_once_the_noise_has_settled() -> None:
    now = settled(early=600.0, late=200.0)
    first = published(now)
    worth = progress_per_iteration(now.knowledge, ClusterConfig(2, 128))
    assert not first.is_provisional
    assert now.directive is not None
    expected = worth / now.directive.progress_per_iteration
    assert first.correction == pytest.approx(expected)
    assert first.correction < 1
    # It is said again: a worker may go back to a checkpoint from before.
    later = replace(now, directive=first, workers=(worker(1, broken=2), worker(2, broken=2)))
    assert published(later).correction == first.correction


def test_progress_is_provisional_until_the_noise_has_settled() -> None:
    searching = snapshot(
        job=job(), vms=(vm(1),), workers=(worker(1, generation=0),), directive=None
    )
    assert published(searching).is_provisional


SMALL = ClusterConfig(2, 32)


def aged(noise_scale: float, **changes: object) -> JobState:
    """A job chosen with φ = 200 for K=2 B=32, six minutes ago, whose φ has become another."""
    target = {"metric": "accuracy", "goal": 0.97, "max_epochs": 600}
    facts: dict[str, object] = {
        "job": job(chosen=SMALL, choice="the knee", spec=spec(target=target)),
        "directive": directive(2, 32),
        "published_at": NOW - timedelta(minutes=6),
        "probes": (probe(1, 32), probe(1, 128), probe(2, 128), probe(2, 32)),
        "steps": steps(200, noise_scale, SMALL),
    }
    return snapshot(**{**facts, **changes})


AGED = {
    "noise that grew moves a job to a larger batch": (
        aged(640.0),
        Replan,
        "φ grew from 200 to 640 (640 to 640 over 200 noise rows) since the choice: "
        "K=2 B=128 saves 6% of the rest",
    ),
    "unless a resize takes more than it saves": (
        aged(640.0, job=job(chosen=SMALL)),
        Replan,
        "K=2 B=32 stays: K=2 B=128 would save 6.1% of the rest, but a resize has to save 9.1%",
    ),
    "or the choice is still the best": (
        aged(20.0),
        Replan,
        "φ fell from 200 to 20 (20 to 20 over 200 noise rows) since the choice: K=2 B=32 stays",
    ),
    "or nothing meets the limits any more": (
        aged(
            20.0,
            job=job(
                chosen=SMALL,
                spec=spec(
                    target={"epochs": 60, "at_batch": 32},
                    limits={**document()["limits"], "max_time": "62s"},
                ),
            ),
        ),
        Replan,
        "K=2 B=32 stays, since no configuration meets the limits",
    ),
    "or the choice is none of the configurations there are": (
        aged(
            640.0,
            job=job(
                chosen=SMALL,
                spec=spec(
                    target={"epochs": 60, "at_batch": 32},
                    limits={**document()["limits"], "batch": [64, 128]},
                ),
            ),
        ),
        Replan,
        "K=2 B=32 stays, of which the curve tells nothing",
    ),
    "a job that is only advised stays where it is": (
        aged(640.0, job=job(chosen=SMALL, choice="", spec=spec(level="advise"))),
        Replan,
        "the job is only advised",
    ),
    "and one that is only observed is not planned at all": (
        aged(640.0, job=job(chosen=SMALL, choice="", spec=spec(level="observe"))),
        Idle,
        "running K=2 B=32",
    ),
    "noise that is as planned changes nothing": (aged(210.0), Idle, "running K=2 B=32"),
    "few rows say nothing": (
        aged(640.0, steps=steps(100, 640.0, SMALL)),
        Idle,
        "running K=2 B=32",
    ),
    "a plan that is young stands": (
        aged(640.0, published_at=NOW - timedelta(minutes=4)),
        Idle,
        "running K=2 B=32",
    ),
    "and so does one that was looked at lately": (
        aged(640.0, drifted=RecordedDrift(NOW - timedelta(minutes=4), 500.0)),
        Idle,
        "running K=2 B=32",
    ),
    "a job that does not run as chosen is brought there first": (
        aged(640.0, directive=directive(2, 128)),
        PublishDirective,
        "training on K=2 B=32",
    ),
}


@pytest.mark.parametrize(("now", "kind", "why"), AGED.values(), ids=AGED)
def test_a_plan_that_aged_is_made_anew_where_that_pays(
    now: JobState, kind: type[Action], why: str
) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


def test_a_job_moves_only_when_the_plan_made_anew_says_so() -> None:
    advised = plan(aged(640.0, job=job(chosen=SMALL, choice="", spec=spec(level="advise"))))
    assert isinstance(advised, Replan)
    assert advised.config is None
    moves, stays = plan(aged(640.0)), plan(aged(20.0))
    assert isinstance(moves, Replan)
    assert isinstance(stays, Replan)
    assert (moves.config, moves.noise_scale) == (ClusterConfig(2, 128), pytest.approx(640))
    assert (stays.config, stays.noise_scale) == (None, pytest.approx(20))


@pytest.mark.parametrize(("now", "kind", "why"), CASES.values(), ids=CASES)
def test_a_tick_says_what_it_does(now: JobState, kind: type[Action], why: str) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


DYING = {"address": "", "generation": 0}
BACK = {"address": "127.0.0.1:9100", "generation": 0}
SOLE = {
    "vms": (vm(1),),
    "directive": directive(1, 128),
    "job": chosen(chosen=ClusterConfig(1, 128)),
}
RESTARTING = {
    "survivors do not wait for a member that starts again": (
        snapshot(workers=(worker(1), worker(2, **DYING))),
        PublishDirective,
        "w2 started again: going on with K=1 B=128",
    ),
    "who is back already is taken in at its new address": (
        snapshot(workers=(worker(1), worker(2, **BACK))),
        PublishDirective,
        "w2 started again: going on with K=2 B=128",
    ),
    "also when it is the leader": (
        snapshot(workers=(worker(1, **BACK), worker(2))),
        PublishDirective,
        "w1 started again: going on with K=2 B=128",
    ),
    "one may die while another starts again": (
        snapshot(
            vms=(vm(1), vm(2), vm(3, **DEAD)),
            workers=(worker(1), worker(2, **DYING), worker(3)),
            directive=directive(3, 128),
            job=chosen(chosen=ClusterConfig(3, 128)),
        ),
        PublishDirective,
        "lost w3; w2 started again: going on with K=1 B=128",
    ),
    "no machine is launched for one that starts again": (
        snapshot(workers=(worker(1), worker(2, **DYING)), directive=directive(1, 128)),
        Idle,
        "waiting for 1 worker to boot",
    ),
    "who comes back later grows the job again": (
        snapshot(workers=(worker(1), worker(2, **BACK)), directive=directive(1, 128)),
        PublishDirective,
        "training on K=2 B=128",
    ),
    "the only worker is awaited": (
        snapshot(workers=(worker(1, **DYING),), **SOLE),
        Idle,
        "waiting for 1 worker to boot",
    ),
    "and goes on from its checkpoint": (
        snapshot(workers=(worker(1, **BACK),), **SOLE),
        PublishDirective,
        "w1 started again: going on with K=1 B=128",
    ),
    "but not for ever": (
        snapshot(
            workers=(worker(1, **DYING, seen_at=NOW - timedelta(minutes=16)),),
            **SOLE,
        ),
        Terminate,
        "w1 did not say hello in 0:15:00",
    ),
}


@pytest.mark.parametrize(("now", "kind", "why"), RESTARTING.values(), ids=RESTARTING)
def test_a_worker_that_starts_again_is_neither_lost_nor_waited_for(
    now: JobState, kind: type[Action], why: str
) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


def test_a_worker_that_started_again_hands_over_nothing_and_comes_last() -> None:
    told = published(snapshot(workers=(worker(1, **BACK), worker(2))))
    assert told.members == (Member("w2", "127.0.0.1:9002"), Member("w1", "127.0.0.1:9100"))
    assert (told.repairs, told.handover) == (True, None)


def test_a_leader_that_starts_in_another_layout_leads_newcomers_without_a_state() -> None:
    told = published(
        snapshot(
            workers=(worker(1, **BACK), worker(2, generation=0)),
            directive=directive(2, 128, generation=2, layout="P=1 T=1", restarts=True),
        )
    )
    assert [member.worker for member in told.members] == ["w1", "w2"]


def test_workers_whose_leader_cannot_keep_its_state_are_not_started_again_without_it() -> None:
    told = published(
        snapshot(
            workers=(worker(1, refused=2), worker(2)),
            directive=directive(2, 128, generation=2, layout="P=2 T=1", restarts=True),
        )
    )
    assert (told.repairs, told.fence) == (False, 0)


MINUTE = timedelta(minutes=1)
ASKED = {"state": "intended", "provider_id": None}
PARTED = {"broken": 1}
AGO = [NOW - timedelta(minutes=minutes) for minutes in (16, 15, 12, 8, 4)]
NEWER = {"directive": directive(2, 128, generation=2)}
LONG_TOLD = {**NEWER, "published_at": NOW - timedelta(minutes=26)}
PROBING = {
    "job": job(phase=JobPhase.PROBING),
    "directive": directive(1, 128, purpose="probe"),
    "vms": (vm(1),),
    "workers": (worker(1),),
    "published_at": NOW - timedelta(minutes=121),
}
QUIET = NOW - timedelta(minutes=11)
LATE = {
    "no job waits for workers none of which speaks": (
        snapshot(workers=(worker(1, seen_at=QUIET), worker(2, seen_at=QUIET))),
        Terminate,
        "w1, w2 silent for 0:10:00",
    ),
    "nor for the only one": (
        snapshot(workers=(worker(1, seen_at=QUIET),), **SOLE),
        Terminate,
        "w1 silent for 0:10:00",
    ),
    "unless the controller was deaf meanwhile": (
        snapshot(
            workers=(worker(1, seen_at=QUIET),),
            listening_since=NOW - timedelta(minutes=9),
            **SOLE,
        ),
        Idle,
        "running K=1 B=128",
    ),
    "a newcomer that does not join is ended": (
        snapshot(workers=(worker(1), worker(2, generation=0)), **LONG_TOLD),
        Terminate,
        "w2 did not join in 15 min",
    ),
    "a directive that no worker enters is formed anew": (
        snapshot(**LONG_TOLD),
        PublishDirective,
        "directive 2 was not entered: forming K=2 B=128 anew",
    ),
    "but not at once": (
        snapshot(**{**LONG_TOLD, "published_at": NOW - timedelta(minutes=24)}),
        Idle,
        "waiting for the workers to regroup",
    ),
    "nor for a controller that was away": (
        snapshot(**LONG_TOLD, listening_since=NOW - timedelta(minutes=1)),
        Idle,
        "waiting for the workers to regroup",
    ),
    "nor for ever": (
        snapshot(**LONG_TOLD, published_without_iteration=tuple(AGO)),
        Finish,
        "directive 2 was not entered, and no iteration came of 5 directives within 16 min, the "
        "newest not entered by w1, w2",
    ),
    "workers that lose touch again and again are given more and more time": (
        snapshot(
            workers=(worker(1, **PARTED), worker(2, **PARTED)),
            published_without_iteration=tuple(AGO)[1:],
        ),
        PublishDirective,
        "the workers lost touch: forming K=2 B=128 anew",
    ),
    "such as this": (
        snapshot(
            workers=(worker(1, **PARTED), worker(2, **PARTED)),
            published_without_iteration=tuple(AGO),
            published_at=NOW - timedelta(seconds=20),
        ),
        Idle,
        "running K=2 B=128",
    ),
    "and the job fails in the end": (
        snapshot(
            workers=(worker(1, **PARTED), worker(2, **PARTED)),
            published_without_iteration=tuple(AGO),
            published_at=AGO[-1],
        ),
        Finish,
        "the workers lost touch, and no iteration came of 5 directives within 16 min; read",
    ),
    "workers that never finish an iteration get other machines": (
        snapshot(published_at=NOW - timedelta(minutes=121), published_without_iteration=(NOW,)),
        Terminate,
        "w1, w2 finished no iteration in 2 h",
    ),
    "those that do are left alone": (
        snapshot(published_at=NOW - timedelta(minutes=121)),
        Idle,
        "running K=2 B=128",
    ),
    "noise that does not settle is taken as it is": (
        snapshot(
            **{
                **PROBING,
                "job": job(spec=OBSERVED),
                "directive": directive(1, 32, purpose="probe"),
            },
            steps=steps(60, 200.0, START),
        ),
        StoreProbe,
        "probe 1 took 2 h",
    ),
    "a probe that does not end ends the search": (
        snapshot(**PROBING, probes=(probe(1, 32),)),
        ChooseConfig,
        "no probe of K=1 B=128 within 2 h: 0 of 20 iterations timed, so the search ends",
    ),
    "without any the job stays where it is": (
        snapshot(**{**PROBING, "directive": directive(1, 32, purpose="probe")}),
        KeepConfig,
        "no probe of K=1 B=32 within 2 h: 0 of 20 iterations timed; training on it",
    ),
    "a launch is slow only after its minute, as the agenda looks just after it": (
        snapshot(job=job(), **{**FRESH, "vms": (vm(1, **ASKED),), "now": NOW}),
        Idle,
        "waiting for 1 worker to boot",
    ),
    "a cloud that gives no machine is named": (
        snapshot(job=job(), **{**FRESH, "vms": (vm(1, **ASKED),), "now": NOW + MINUTE}),
        Blocked,
        "the cloud has given no machine since 11:59 UTC: it is asked again twice a minute, and for "
        "another at 12:14 UTC",
    ),
    "and asked for another": (
        snapshot(job=job(), **{**FRESH, "vms": (vm(1, **{**LONG_ASKED, **ASKED}),)}),
        Terminate,
        "w1 did not say hello",
    ),
    "until it was asked often enough": (
        snapshot(vms=tuple(vm(n, **{**LONG_DEAD, "provider_id": None}) for n in range(20))),
        Finish,
        "20 machines were asked for, and the cloud gave none",
    ),
    "a machine that was given late has time to boot": (
        snapshot(job=job(), **{**FRESH, "vms": (vm(1, **{**LONG_ASKED, "attempted_at": NOW}),)}),
        Idle,
        "waiting for 1 worker to boot",
    ),
    "a server that started again and never came back is ended": (
        served(
            workers=(
                serving(3),
                serving(4, address="", seen_at=NOW - timedelta(minutes=16)),
                worker(1),
                worker(2),
            ),
        ),
        Terminate,
        "s4 did not say hello in 0:15:00",
    ),
}


@pytest.mark.parametrize(("now", "kind", "why"), LATE.values(), ids=LATE)
def test_nothing_is_waited_for_for_ever(now: JobState, kind: type[Action], why: str) -> None:
    action = plan(now)
    assert (type(action), why in action.why) == (kind, True), action


def test_what_a_job_waits_for_is_said_once_and_taken_back() -> None:
    now = CASES["nor is another one launched at once when many died within an hour"][0]
    wait = plan(now)
    assert isinstance(wait, Blocked)
    waiting = replace(now, job=replace(now.job, waiting=wait.why))
    assert plan(waiting) == Idle(wait.why)
    later = replace(waiting, now=NOW + timedelta(hours=1))
    assert isinstance(plan(later), Unblocked)
    assert isinstance(plan(replace(later, job=now.job)), Launch)


def published(now: JobState) -> Directive:
    action = plan(now)
    assert isinstance(action, PublishDirective)
    return action.directive


def test_ranks_stay_and_newcomers_are_appended() -> None:
    now = snapshot(
        job=job(chosen=ClusterConfig(3, 128)),
        vms=(vm(1), vm(2), vm(3)),
        workers=(worker(3, generation=0), worker(2), worker(1)),
        directive=directive(2, 128),
    )
    assert [member.worker for member in published(now).members] == ["w1", "w2", "w3"]


def test_shrinking_leaves_workers_out_before_machines_are_ended() -> None:
    now = snapshot(job=job(chosen=ClusterConfig(1, 128)))
    assert [member.worker for member in published(now).members] == ["w1"]


def test_survivors_get_no_more_than_their_memory_holds() -> None:
    room = {"machine_gib": 1, "fixed_gib": 0.5, "gib_per_sample": 0.005}
    bounded = spec(limits={"workers": "1..2", "batch": [32, 128], "memory": room})
    chosen = ClusterConfig(2, 128)
    lost = snapshot(job=job(spec=bounded, chosen=chosen), vms=(vm(1), vm(2, state="gone")))
    action = plan(lost)
    assert isinstance(action, PublishDirective)
    assert action.directive.config == ClusterConfig(1, 100)


def test_survivors_are_told_to_give_up_what_they_wait_for() -> None:
    told = published(snapshot(vms=(vm(1, **DEAD), vm(2))))
    assert told.repairs
    assert told.generation == 2


def test_progress_counts_by_the_law_of_the_measured_noise_scale() -> None:
    now = snapshot(
        probes=(probe(1, 32),),
        job=job(chosen=ClusterConfig(2, 32)),
    )
    small = published(now).progress_per_iteration
    large = published(
        snapshot(probes=(probe(1, 32),), job=job(chosen=ClusterConfig(1, 128)))
    ).progress_per_iteration
    assert small == pytest.approx(32 / 1437)
    assert large == pytest.approx(128 / 1437 * (200 + 32) / (200 + 128))


def test_money_is_counted_from_intent_to_end() -> None:
    assert snapshot().accrued == Decimal("0.36") * 2 / 60
