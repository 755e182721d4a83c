"""What a list of the cloud's tells about one machine, as a truth table."""

from __future__ import annotations

from datetime import timedelta

import pytest

from service import ledger
from service.clouds.provider import Instance, InstanceState
from service.reconciler.diff import FIRST_RETRY, MAX_RETRY, VmChange, diff_machine
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
OVER = {"prepaid_until": NOW - ledger.POWER_OFF_GRACE - timedelta(seconds=1)}


def shown(state: InstanceState) -> Instance:
    return Instance("provider-1", "key-1", "job_1", state, 0.36)


@pytest.mark.parametrize(
    ("machine", "is_final", "expected"),
    [
        (NEVER, False, VmChange.LAUNCH),
        (INTENDED, False, VmChange.LAUNCH),
        ({**INTENDED, "attempted_at": NOW}, False, VmChange.NOTHING),
        ({**INTENDED, "attempted_at": NOW - timedelta(seconds=31)}, False, VmChange.LAUNCH),
        ({**INTENDED, "attempted_at": NOW - timedelta(seconds=29)}, False, VmChange.NOTHING),
        ({**INTENDED, **ASKED_SOON}, False, VmChange.LAUNCH),
        ({**INTENDED, "missed_at": LONG_AGO}, False, VmChange.LAUNCH),
        (NEVER, True, VmChange.BURY),
        (INTENDED, True, VmChange.MISS),
        ({**INTENDED, **BEFORE, "missed_at": EARLIER}, True, VmChange.NOTHING),
        ({**INTENDED, **BEFORE, "missed_at": LONG_AGO}, True, VmChange.BURY),
        ({}, False, VmChange.MISS),
        ({"missed_at": EARLIER}, False, VmChange.NOTHING),
        ({"missed_at": LONG_AGO}, False, VmChange.BURY),
        (ENDING, False, VmChange.MISS),
        ({**ENDING, "missed_at": EARLIER}, True, VmChange.NOTHING),
        ({**ENDING, "missed_at": LONG_AGO}, True, VmChange.BURY),
        (UNSEEN, False, VmChange.MISS),
        ({**UNSEEN, **BEFORE, "missed_at": LONG_AGO}, False, VmChange.BURY),
        ({**UNSEEN, "attempted_at": None}, False, VmChange.BURY),
        ({**UNSEEN, "attempted_at": NOW - BOOT / 2}, False, VmChange.NOTHING),
        ({**UNSEEN, "attempted_at": NOW - BOOT}, False, VmChange.MISS),
        ({**UNSEEN, "attempted_at": LONG_AGO, "missed_at": LONG_AGO}, False, VmChange.MISS),
        ({**ENDING, "attempted_at": LONG_AGO, "missed_at": LONG_AGO}, False, VmChange.BURY),
    ],
)
def test_a_machine_that_no_list_shows(
    machine: dict[str, object], is_final: bool, expected: VmChange
) -> None:
    assert diff_machine(vm(1, **machine), None, NOW, LAG, BOOT, is_final=is_final) is expected


@pytest.mark.parametrize("state", [state for state in InstanceState if state != "gone"])
@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (INTENDED, VmChange.CONFIRM),
        ({}, VmChange.NOTHING),
        ({"missed_at": EARLIER}, VmChange.SEE),
        (OVER, VmChange.END),
        (UNSEEN, VmChange.CONFIRM),
        (ENDING, VmChange.NOTHING),
        ({**ENDING, "ordered_at": NOW - FIRST_RETRY}, VmChange.END),
        ({**ENDING, "ordered_at": NOW - FIRST_RETRY, "orders": 2}, VmChange.NOTHING),
        ({**ENDING, "ordered_at": NOW - 2 * FIRST_RETRY, "orders": 2}, VmChange.END),
        ({**ENDING, "ordered_at": NOW - MAX_RETRY, "orders": 1000}, VmChange.END),
    ],
)
def test_a_machine_that_a_list_shows(
    state: InstanceState, machine: dict[str, object], expected: VmChange
) -> None:
    assert diff_machine(vm(1, **machine), shown(state), NOW, LAG, BOOT, is_final=False) is expected


@pytest.mark.parametrize("machine", [NEVER, INTENDED, {}, ENDING, UNSEEN, OVER])
def test_what_the_cloud_shows_as_gone_is_gone(machine: dict[str, object]) -> None:
    gone = shown(InstanceState.GONE)
    assert diff_machine(vm(1, **machine), gone, NOW, LAG, BOOT, is_final=False) is VmChange.BURY


def test_where_lists_do_not_lag_one_is_enough() -> None:
    assert diff_machine(vm(1), None, NOW, timedelta(0), BOOT, is_final=False) is VmChange.BURY
