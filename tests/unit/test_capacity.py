"""When a job has no machine because the clouds gave none: what they answered last counts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from scavenger.schemas.jobs import JobPhase
from service.state.capacity import lacks_capacity
from tests.builders import NOW, job, snapshot, vm

RUNS: dict[str, Any] = {}
ENDED = {"state": "gone", "ended_at": NOW - timedelta(minutes=1)}
RAN_TO_THE_END = {"state": "gone", "ended_at": NOW + timedelta(seconds=5)}
ASKED = {"state": "intended", "provider_id": None}
TAKEN = ENDED | {"warned_at": NOW - timedelta(minutes=3)}
NEVER_SEEN = ENDED | {"provider_id": None}


def refused(label: str) -> dict[str, Any]:
    return NEVER_SEEN | {"refusal": "none left", "refusal_label": label}


FULL, UNSOLD, QUOTA = refused("capacity"), refused("unsold"), refused("quota")
HOPELESS, DENIED = refused("refused"), refused("credentials")
STARTING, TRAINING = JobPhase.STARTING, JobPhase.TRAINING
FAILED, CAPPED = JobPhase.FAILED, JobPhase.CAPPED


@pytest.mark.parametrize(
    ("phase", "machines", "code", "lacks"),
    [
        (JobPhase.PENDING, [], None, False),
        (STARTING, [FULL], None, True),
        (STARTING, [UNSOLD, QUOTA], None, True),
        (STARTING, [FULL, ASKED], None, True),
        (STARTING, [FULL, RUNS], None, False),
        (STARTING, [ASKED], None, False),
        (STARTING, [NEVER_SEEN], None, False),
        (STARTING, [FULL, HOPELESS], None, False),
        (STARTING, [FULL, DENIED], None, False),
        (TRAINING, [ENDED, FULL], None, True),
        (TRAINING, [RUNS, FULL], None, False),
        (TRAINING, [FULL, ENDED], None, False),
        (CAPPED, [FULL, FULL], None, True),
        (CAPPED, [ENDED, FULL], None, True),
        (CAPPED, [RAN_TO_THE_END, FULL], None, False),
        (CAPPED, [RUNS], None, False),
        (CAPPED, [TAKEN], None, True),
        (CAPPED, [TAKEN, RUNS], None, False),
        (CAPPED, [TAKEN, HOPELESS], None, False),
        (TRAINING, [TAKEN], None, False),
        (FAILED, [TAKEN], None, False),
        (FAILED, [TAKEN] * 9 + [RAN_TO_THE_END], None, True),
        (FAILED, [TAKEN] * 8 + [ENDED] * 9, None, False),
        (FAILED, [TAKEN] * 17, 1, False),
        (FAILED, [NEVER_SEEN, NEVER_SEEN], None, True),
        (FAILED, [], None, False),
        (FAILED, [HOPELESS], None, False),
        (FAILED, [ENDED, ENDED], None, False),
        (FAILED, [ENDED, FULL], 1, False),
        (JobPhase.CANCELLED, [FULL], None, False),
        (JobPhase.SUCCEEDED, [ENDED, FULL], 0, False),
    ],
)
def test_a_job_lacks_capacity(
    phase: JobPhase, machines: list[dict[str, Any]], code: int | None, lacks: bool
) -> None:
    finished = NOW if phase.is_final else None
    ended = job(phase=phase, worker_exit_code=code, finished_at=finished)
    vms = tuple(vm(number, **facts) for number, facts in enumerate(machines, 1))
    assert lacks_capacity(snapshot(job=ended, vms=vms)) == lacks
