"""When a target is due: what the curve says of the part that is left, from now on."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from scavenger.cluster import ClusterConfig
from scavenger.planning.search.strategy import TrainOn
from scavenger.planning.state import ProbeOverhead
from service.reconciler.actions import ChooseConfig
from service.reconciler.apply import estimate_eta, estimate_eta_of_rest
from service.reconciler.orders import draw_curve_of_rest
from service.reconciler.plan import plan
from service.state.job_state import JobState
from tests.builders import NOW, directive, job, probe, snapshot, spec, worker

PROBES = (probe(1, 32), probe(1, 128), probe(2, 128), probe(2, 32))


def chosen(**changes: object) -> tuple[JobState, TrainOn]:
    known = job(spec=spec(target={"epochs": 20, "at_batch": 64}))
    seen = snapshot(job=known, probes=PROBES, **changes)
    action = plan(seen)
    assert isinstance(action, ChooseConfig)
    return seen, action.run


@pytest.mark.parametrize("share", [0.0, 0.25, 0.9, 1.0, 2.0])
def test_what_is_left_is_due_in_that_share_of_the_whole(share: float) -> None:
    seen, run = chosen()
    expected = seen.knowledge.expected_epochs
    assert expected is not None
    epochs = share * expected
    part = replace(seen, workers=(worker(1, epochs=epochs), worker(2, epochs=epochs)))
    part = replace(part, directive=directive(run.config.workers, run.config.global_batch))
    found = estimate_eta(part, run)
    assert found is not None
    low, high = (max(1 - share, 0.0) * seconds for seconds in run.choice.point.time_range)
    since, until = found
    assert since == NOW + timedelta(seconds=low)
    assert until == NOW + timedelta(seconds=high)
    assert since < until or share >= 1


def test_getting_there_takes_its_pause() -> None:
    seen, run = chosen(directive=directive(1, 32))
    effort = ProbeOverhead(pause=0.0)
    without = replace(seen, knowledge=replace(seen.knowledge, probe_overhead=effort))
    later = replace(
        seen, knowledge=replace(seen.knowledge, probe_overhead=replace(effort, pause=60.0))
    )
    first, second = estimate_eta(without, run), estimate_eta(later, run)
    assert first is not None
    assert second is not None
    assert second[0] - first[0] == second[1] - first[1] == timedelta(minutes=1)


def test_nothing_is_foreseen_where_nothing_is_uncertain_or_only_shares_are_known() -> None:
    seen, run = chosen()
    sure = replace(run.choice, point=replace(run.choice.point, deviation=0.0))
    assert estimate_eta(seen, replace(run, choice=sure)) is None
    assert estimate_eta(seen, replace(run, curve=replace(run.curve, basis="relative"))) is None


def test_what_an_order_moves_is_due_by_the_curve_of_what_is_left() -> None:
    seen, run = chosen(directive=directive(1, 32))
    known = job(spec=seen.job.spec, chosen=run.config, choice="the knee")
    seen = replace(seen, job=known, workers=(worker(1, epochs=5.0), worker(2, epochs=5.0)))
    rest = draw_curve_of_rest(seen)
    assert rest.basis == "remaining"
    there = rest.points[-1].point
    found = estimate_eta_of_rest(seen, rest, there.config)
    assert found is not None
    pause = timedelta(seconds=seen.knowledge.probe_overhead.pause)
    assert found == tuple(NOW + pause + timedelta(seconds=each) for each in there.time_range)
    assert estimate_eta_of_rest(seen, replace(rest, part="whole"), there.config) is None
    assert estimate_eta_of_rest(seen, rest, ClusterConfig(7, 7)) is None
