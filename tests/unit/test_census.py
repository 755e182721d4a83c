"""What a list of the cloud's tells about one machine, as a truth table."""

from __future__ import annotations

from datetime import timedelta

import pytest

from service import ledger
from service.clouds.provider import Instance, InstanceState
from service.reconciler.census import AGAIN, SELDOM, Finding, census
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
OVER = {"prepaid_until": NOW - ledger.GRACE - timedelta(seconds=1)}


def shown(state: InstanceState) -> Instance:
    return Instance("provider-1", "key-1", "job_1", state, 0.36)


@pytest.mark.parametrize(
    ("machine", "is_final", "expected"),
    [
        (NEVER, False, Finding.LAUNCH),
        (INTENDED, False, Finding.LAUNCH),
        ({**INTENDED, "attempted_at": NOW}, False, Finding.NOTHING),
        ({**INTENDED, "attempted_at": NOW - timedelta(seconds=31)}, False, Finding.LAUNCH),
        ({**INTENDED, "attempted_at": NOW - timedelta(seconds=29)}, False, Finding.NOTHING),
        ({**INTENDED, **ASKED_SOON}, False, Finding.LAUNCH),
        ({**INTENDED, "missed_at": LONG_AGO}, False, Finding.LAUNCH),
        (NEVER, True, Finding.BURY),
        (INTENDED, True, Finding.MISS),
        ({**INTENDED, **BEFORE, "missed_at": EARLIER}, True, Finding.NOTHING),
        ({**INTENDED, **BEFORE, "missed_at": LONG_AGO}, True, Finding.BURY),
        ({}, False, Finding.MISS),
        ({"missed_at": EARLIER}, False, Finding.NOTHING),
        ({"missed_at": LONG_AGO}, False, Finding.BURY),
        (ENDING, False, Finding.MISS),
        ({**ENDING, "missed_at": EARLIER}, True, Finding.NOTHING),
        ({**ENDING, "missed_at": LONG_AGO}, True, Finding.BURY),
        (UNSEEN, False, Finding.MISS),
        ({**UNSEEN, **BEFORE, "missed_at": LONG_AGO}, False, Finding.BURY),
        ({**UNSEEN, "attempted_at": None}, False, Finding.BURY),
        ({**UNSEEN, "attempted_at": NOW - BOOT / 2}, False, Finding.NOTHING),
        ({**UNSEEN, "attempted_at": NOW - BOOT}, False, Finding.MISS),
        ({**UNSEEN, "attempted_at": LONG_AGO, "missed_at": LONG_AGO}, False, Finding.MISS),
        ({**ENDING, "attempted_at": LONG_AGO, "missed_at": LONG_AGO}, False, Finding.BURY),
    ],
)
def test_a_machine_that_no_list_shows(
    machine: dict[str, object], is_final: bool, expected: Finding
) -> None:
    assert census(vm(1, **machine), None, NOW, LAG, BOOT, is_final=is_final) is expected


@pytest.mark.parametrize("state", [state for state in InstanceState if state != "gone"])
@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (INTENDED, Finding.CONFIRM),
        ({}, Finding.NOTHING),
        ({"missed_at": EARLIER}, Finding.SEE),
        (OVER, Finding.END),
        (UNSEEN, Finding.CONFIRM),
        (ENDING, Finding.NOTHING),
        ({**ENDING, "ordered_at": NOW - AGAIN}, Finding.END),
        ({**ENDING, "ordered_at": NOW - AGAIN, "orders": 2}, Finding.NOTHING),
        ({**ENDING, "ordered_at": NOW - 2 * AGAIN, "orders": 2}, Finding.END),
        ({**ENDING, "ordered_at": NOW - SELDOM, "orders": 1000}, Finding.END),
    ],
)
def test_a_machine_that_a_list_shows(
    state: InstanceState, machine: dict[str, object], expected: Finding
) -> None:
    assert census(vm(1, **machine), shown(state), NOW, LAG, BOOT, is_final=False) is expected


@pytest.mark.parametrize("machine", [NEVER, INTENDED, {}, ENDING, UNSEEN, OVER])
def test_what_the_cloud_shows_as_gone_is_gone(machine: dict[str, object]) -> None:
    gone = shown(InstanceState.GONE)
    assert census(vm(1, **machine), gone, NOW, LAG, BOOT, is_final=False) is Finding.BURY


def test_where_lists_do_not_lag_one_is_enough() -> None:
    assert census(vm(1), None, NOW, timedelta(0), BOOT, is_final=False) is Finding.BURY
