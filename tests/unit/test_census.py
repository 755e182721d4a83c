"""What a list of the cloud's tells about one machine, as a truth table."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from service import ledger
from service.clouds.provider import Instance, InstanceState
from service.reconciler.diff import (
    FIRST_RETRY,
    MAX_RETRY,
    PAID_LATE,
    VmChange,
    diff_machine,
    proven_overrun,
)
from tests.builders import NOW, vm

LAG, BOOT = timedelta(seconds=60), timedelta(seconds=20)
EARLIER = NOW - timedelta(seconds=59)
LONG_AGO = NOW - timedelta(seconds=60)
INTENDED = {"state": "intended", "provider_id": None}
NEVER = {**INTENDED, "attempted_at": None}
ENDING = {"state": "ending", "ordered_at": NOW, "orders": 1}
ASKED_SOON = {
    "began_at": NOW - timedelta(seconds=7),
    "attempted_at": NOW - timedelta(seconds=4),
}
BEFORE = {"attempted_at": LONG_AGO - BOOT}
UNSEEN = {**ENDING, "provider_id": None}
TWICE = {**ENDING, "open_asks": 2}  # one ask was answered, and another may be on its way
OVER = {"prepaid_until": NOW - ledger.POWER_OFF_GRACE - timedelta(seconds=1)}


def shown(state: InstanceState) -> Instance:
    return Instance("provider-1", "key-1", "job_1", state)


@pytest.mark.parametrize(
    ("machine", "is_job_over", "expected"),
    [
        (NEVER, False, VmChange.RETRY_LAUNCH),
        (INTENDED, False, VmChange.RETRY_LAUNCH),
        ({**INTENDED, "attempted_at": NOW}, False, VmChange.NONE),
        ({**INTENDED, "attempted_at": NOW - timedelta(seconds=31)}, False, VmChange.RETRY_LAUNCH),
        ({**INTENDED, "attempted_at": NOW - timedelta(seconds=29)}, False, VmChange.NONE),
        ({**INTENDED, **ASKED_SOON}, False, VmChange.RETRY_LAUNCH),
        ({**INTENDED, "missed_at": LONG_AGO}, False, VmChange.RETRY_LAUNCH),
        (NEVER, True, VmChange.MARK_GONE),
        (INTENDED, True, VmChange.MARK_MISSING),
        ({**INTENDED, **BEFORE, "missed_at": EARLIER}, True, VmChange.NONE),
        ({**INTENDED, **BEFORE, "missed_at": LONG_AGO}, True, VmChange.MARK_GONE),
        ({}, False, VmChange.MARK_MISSING),
        ({"missed_at": EARLIER}, False, VmChange.NONE),
        ({"missed_at": LONG_AGO}, False, VmChange.MARK_GONE),
        (ENDING, False, VmChange.MARK_MISSING),
        ({**ENDING, "missed_at": EARLIER}, True, VmChange.NONE),
        ({**ENDING, "missed_at": LONG_AGO}, True, VmChange.MARK_GONE),
        (UNSEEN, False, VmChange.MARK_MISSING),
        ({**UNSEEN, **BEFORE, "missed_at": LONG_AGO}, False, VmChange.MARK_GONE),
        ({**UNSEEN, "attempted_at": None}, False, VmChange.MARK_GONE),
        ({**UNSEEN, "attempted_at": NOW - BOOT / 2}, False, VmChange.NONE),
        ({**UNSEEN, "attempted_at": NOW - BOOT}, False, VmChange.MARK_MISSING),
        ({**UNSEEN, "attempted_at": LONG_AGO, "missed_at": LONG_AGO}, False, VmChange.MARK_MISSING),
        ({**ENDING, "attempted_at": LONG_AGO, "missed_at": LONG_AGO}, False, VmChange.MARK_GONE),
        ({**TWICE, "attempted_at": NOW - BOOT / 2}, False, VmChange.MARK_MISSING),
        ({**TWICE, "attempted_at": NOW - BOOT / 2, "missed_at": NOW}, False, VmChange.NONE),
        ({**TWICE, "attempted_at": LONG_AGO, "missed_at": LONG_AGO}, False, VmChange.MARK_MISSING),
        ({**TWICE, **BEFORE, "missed_at": LONG_AGO}, False, VmChange.MARK_GONE),
    ],
)
def test_a_machine_that_no_list_shows(
    machine: dict[str, object], is_job_over: bool, expected: VmChange
) -> None:
    assert diff_machine(vm(1, **machine), None, NOW, LAG, BOOT, is_job_over=is_job_over) is expected


@pytest.mark.parametrize(
    "state", [InstanceState.PENDING, InstanceState.RUNNING, InstanceState.ENDING]
)
@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (INTENDED, VmChange.CONFIRM_LAUNCH),
        ({}, VmChange.NONE),
        ({"missed_at": EARLIER}, VmChange.MARK_LISTED),
        (OVER, VmChange.RETRY_END),
        (UNSEEN, VmChange.CONFIRM_LAUNCH),
        (ENDING, VmChange.NONE),
        ({**ENDING, "ordered_at": NOW - FIRST_RETRY}, VmChange.RETRY_END),
        ({**ENDING, "ordered_at": NOW - FIRST_RETRY, "orders": 2}, VmChange.NONE),
        ({**ENDING, "ordered_at": NOW - 2 * FIRST_RETRY, "orders": 2}, VmChange.RETRY_END),
        ({**ENDING, "ordered_at": NOW - MAX_RETRY, "orders": 1000}, VmChange.RETRY_END),
    ],
)
def test_a_machine_that_a_list_shows(
    state: InstanceState, machine: dict[str, object], expected: VmChange
) -> None:
    assert (
        diff_machine(vm(1, **machine), shown(state), NOW, LAG, BOOT, is_job_over=False) is expected
    )


def test_a_second_machine_of_a_name_that_was_free_again_takes_the_place_of_the_first() -> None:
    second = Instance("provider-2", "key-1", "job_1", InstanceState.RUNNING)
    ended = vm(1, **ENDING)
    found = diff_machine(ended, second, NOW, LAG, BOOT, is_job_over=True)
    assert found is VmChange.CONFIRM_LAUNCH
    elsewhere = replace(second, zone="another")
    found = diff_machine(ended, elsewhere, NOW, LAG, BOOT, is_job_over=True)
    assert found is VmChange.NONE


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (INTENDED, VmChange.CONFIRM_LAUNCH),
        ({}, VmChange.END_STOPPED),
        ({"missed_at": EARLIER}, VmChange.END_STOPPED),
        (OVER, VmChange.END_STOPPED),
        ({"state": "ending", "ordered_at": NOW, "orders": 1}, VmChange.NONE),
        ({"state": "ending", "ordered_at": LONG_AGO, "orders": 1}, VmChange.RETRY_END),
    ],
)
def test_a_machine_that_stopped_by_itself_is_ended(
    machine: dict[str, object], expected: VmChange
) -> None:
    stopped = shown(InstanceState.STOPPED)
    found = diff_machine(vm(1, **machine), stopped, NOW, LAG, BOOT, is_job_over=False)
    assert found is expected


@pytest.mark.parametrize("machine", [NEVER, INTENDED, {}, ENDING, UNSEEN, OVER])
def test_what_the_cloud_shows_as_gone_is_gone(machine: dict[str, object]) -> None:
    gone = shown(InstanceState.GONE)
    assert (
        diff_machine(vm(1, **machine), gone, NOW, LAG, BOOT, is_job_over=False)
        is VmChange.MARK_GONE
    )


def test_where_lists_do_not_lag_one_is_enough() -> None:
    assert (
        diff_machine(vm(1), None, NOW, timedelta(0), BOOT, is_job_over=False) is VmChange.MARK_GONE
    )


@pytest.mark.parametrize(
    ("state", "beyond", "is_proven"),
    [
        (InstanceState.RUNNING, 1.0, True),
        (InstanceState.PENDING, 1.0, True),
        (InstanceState.RUNNING, 0.0, False),
        (InstanceState.ENDING, 1.0, False),
        (InstanceState.STOPPED, 1.0, False),
        (InstanceState.GONE, 1.0, False),
        (None, 1.0, False),
    ],
)
def test_only_a_machine_that_is_shown_running_outlives_its_paid_time(
    state: InstanceState | None, beyond: float, is_proven: bool
) -> None:
    paid = vm(1)
    proven = paid.prepaid_until + ledger.POWER_OFF_GRACE + timedelta(seconds=beyond)
    now = proven + LAG + PAID_LATE
    found = proven_overrun(paid, None if state is None else shown(state), now, LAG)
    assert found == (proven if is_proven else None)
