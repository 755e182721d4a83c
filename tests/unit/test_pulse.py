"""Pulse: alive while it beats."""

from __future__ import annotations

import pytest

from service.background import TaskHeartbeat


@pytest.mark.parametrize(
    ("silent", "is_alive"), [(0.0, True), (4.9, True), (5.0, False), (60.0, False)]
)
def test_a_part_is_alive_for_as_long_as_its_patience(silent: float, is_alive: bool) -> None:
    now = 100.0
    pulse = TaskHeartbeat(5.0, lambda: now)
    now += 1000
    assert not pulse.is_alive
    pulse.beat()
    now += silent
    assert (pulse.lag, pulse.is_alive) == (pytest.approx(silent), is_alive)
