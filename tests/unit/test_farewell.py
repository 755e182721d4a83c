"""Why a machine is gone."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from service.reconciler.farewell import Farewell, farewell
from tests.builders import NOW, vm

SOON, BEFORE = NOW + timedelta(minutes=1), NOW - timedelta(seconds=1)


@pytest.mark.parametrize(
    ("facts", "why"),
    [
        ({}, Farewell.TAKEN),
        ({"provider_id": None}, Farewell.NEVER_SEEN),
        ({"provider_id": None, "attempted_at": None}, Farewell.NEVER_ASKED),
        ({"ordered_at": BEFORE, "attempted_at": None}, Farewell.NEVER_ASKED),
        ({"ordered_at": BEFORE}, Farewell.TOLD),
        ({"ordered_at": BEFORE, "prepaid_until": BEFORE}, Farewell.TOLD),
        ({"exit_code": 0}, Farewell.DONE),
        ({"exit_code": 1, "ordered_at": BEFORE}, Farewell.TOLD),
        ({"prepaid_until": NOW}, Farewell.PAID),
        ({"prepaid_until": BEFORE, "provider_id": None}, Farewell.PAID),
    ],
)
def test_what_is_known_of_a_machine_says_why_it_is_gone(
    facts: dict[str, Any], why: Farewell
) -> None:
    assert farewell(vm(1, **{"prepaid_until": SOON, "exit_code": None, **facts}), NOW) is why
