"""A loss or a target metric that is not finite comes first in the reason a job ends with."""

from __future__ import annotations

from typing import Any

import pytest

from scavenger.protocol import NotFinite
from scavenger.schemas.jobs import JobPhase
from service.reconciler.actions import Finish
from service.reconciler.plan import plan
from service.state.job_state import JobState
from tests.builders import NOW, directive, job, snapshot, spec, vm, worker

LIMITS = {"max_cost": "1 USD", "workers": "1..2", "batch": [32, 128]}
DIVERGED, RECOVERED = NotFinite("NaN", 40, 40), NotFinite("NaN", 40, None)
AGAIN = NotFinite("Infinity", 40, 70)
NAN = "loss became NaN at iteration 40 on w1 and has not been finite since"
WHOLE = "; look at the data of that iteration, lower the learning rate, or clip gradients"


def ended(leader: dict[str, Any], follower: dict[str, Any] | None = None, **now: Any) -> JobState:
    """A job of two workers whose leader's command has ended well, at the last iteration allowed."""
    said = {"finished": "exhausted", "metrics": {"accuracy": 0.5}, **leader}
    facts = {"vms": (vm(1, exit_code=0), vm(2)), "directive": directive(2, 128), **now}
    return snapshot(workers=(worker(1, **said), worker(2, **(follower or {}))), **facts)


ENDS: dict[str, tuple[JobState, JobPhase, bool, str]] = {
    "the loss stays NaN": (
        ended({"not_finite": {"loss": DIVERGED}}),
        JobPhase.FAILED,
        True,
        f"the last value was 0.5; {NAN}{WHOLE}",
    ),
    "the follower was first": (
        ended(
            {"not_finite": {"loss": NotFinite("NaN", 41, 41)}},
            {"not_finite": {"loss": NotFinite("-Infinity", 40, 40)}},
        ),
        JobPhase.FAILED,
        True,
        "; loss became -Infinity at iteration 40 on w2 and has not been finite since; look",
    ),
    "a follower's part is empty": (
        ended({}, {"not_finite": {"loss": DIVERGED}}),
        JobPhase.FAILED,
        False,
        "the last value was 0.5; raise target.max_epochs",
    ),
    "the loss recovered": (
        ended({"not_finite": {"loss": RECOVERED}}),
        JobPhase.FAILED,
        False,
        "the last value was 0.5; raise target.max_epochs",
    ),
    "the loss recovered, and not again": (
        ended({"not_finite": {"loss": AGAIN}}),
        JobPhase.FAILED,
        True,
        "loss became Infinity at iteration 40 on w1, recovered, and has not been finite since "
        "iteration 70",
    ),
    "the metric was never finite": (
        ended({"metrics": {}, "not_finite": {"accuracy": DIVERGED}}),
        JobPhase.FAILED,
        True,
        "2.00 reference epochs and 100 iterations; accuracy became NaN at iteration 40 on w1",
    ),
    "the metric was never seen": (
        ended({"metrics": {}}),
        JobPhase.FAILED,
        False,
        "no accuracy was ever seen: call job.log(accuracy=...)",
    ),
    "the goal was met before": (
        ended({"metrics": {"accuracy": 0.99}, "not_finite": {"accuracy": DIVERGED}}),
        JobPhase.FAILED,
        True,
        "accuracy became NaN",
    ),
    "the goal is met all the same": (
        ended({"metrics": {"accuracy": 0.99}, "not_finite": {"loss": DIVERGED}}),
        JobPhase.SUCCEEDED,
        False,
        f"the last value was 0.99; {NAN}",
    ),
    "another metric": (
        ended({"not_finite": {"accuracy_of_rare_classes": DIVERGED}}),
        JobPhase.FAILED,
        False,
        "raise target.max_epochs",
    ),
    "so many epochs were asked for": (
        ended(
            {"finished": "target", "not_finite": {"loss": DIVERGED}},
            job=job(spec=spec(target={"epochs": 2, "at_batch": 32})),
        ),
        JobPhase.SUCCEEDED,
        False,
        f"100 iterations; {NAN}",
    ),
    "a limit": (
        ended(
            {"finished": None, "not_finite": {"loss": DIVERGED}},
            vms=(vm(1), vm(2)),
            job=job(spec=spec(limits={**LIMITS, "max_time": "30s"})),
        ),
        JobPhase.CAPPED,
        True,
        f"max_time reached after 60 s; {NAN}{WHOLE}",
    ),
    "the script noticed": (
        ended(
            {"finished": None, "not_finite": {"loss": DIVERGED}},
            vms=(vm(1, exit_code=1, tail="ValueError: loss is nan"), vm(2)),
        ),
        JobPhase.FAILED,
        True,
        f"its last lines:\nValueError: loss is nan\n{NAN}",
    ),
    "a wish": (
        ended({"not_finite": {"loss": DIVERGED}}, job=job(cancel_requested_at=NOW)),
        JobPhase.CANCELLED,
        False,
        f"cancelled on request; {NAN}",
    ),
}


@pytest.mark.parametrize(("now", "phase", "has_diverged", "why"), ENDS.values(), ids=ENDS)
def test_a_reason_tells_what_is_not_finite(
    now: JobState, phase: JobPhase, *, has_diverged: bool, why: str
) -> None:
    end = plan(now)
    assert isinstance(end, Finish)
    assert (end.phase, end.has_diverged, why in end.why) == (phase, has_diverged, True), end.why
