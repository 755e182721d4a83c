"""Why a machine is gone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from service.reconciler.diff import TerminationReason, termination_reason
from tests.builders import NOW, vm

SOON, BEFORE = NOW + timedelta(minutes=1), NOW - timedelta(seconds=1)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, TerminationReason.TAKEN),
        ({"provider_id": None}, TerminationReason.NEVER_SEEN),
        ({"provider_id": None, "attempted_at": None}, TerminationReason.NEVER_ASKED),
        ({"ordered_at": BEFORE, "attempted_at": None}, TerminationReason.NEVER_ASKED),
        ({"ordered_at": BEFORE}, TerminationReason.TOLD),
        ({"ordered_at": BEFORE, "prepaid_until": BEFORE}, TerminationReason.TOLD),
        ({"ordered_at": BEFORE, "provider_id": None}, TerminationReason.NEVER_SEEN),
        ({"warned_at": BEFORE, "exit_code": -15}, TerminationReason.RECLAIMED),
        ({"warned_at": BEFORE}, TerminationReason.RECLAIMED),
        ({"warned_at": BEFORE, "ordered_at": BEFORE}, TerminationReason.TOLD),
        ({"exit_code": 0}, TerminationReason.DONE),
        ({"exit_code": 1, "ordered_at": BEFORE}, TerminationReason.TOLD),
        ({"prepaid_until": NOW}, TerminationReason.PAID),
        ({"prepaid_until": BEFORE, "provider_id": None}, TerminationReason.PAID),
    ],
)
def test_what_is_known_of_a_machine_says_why_it_is_gone(
    facts: dict[str, Any], why: TerminationReason
) -> None:
    assert (
        termination_reason(vm(1, **{"prepaid_until": SOON, "exit_code": None, **facts}), NOW) is why
    )
