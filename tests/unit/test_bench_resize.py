"""The bench of resizes ends in time, with what it has seen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.resize import Limit, until
from tests.conductor import InVain


def slow(limit: Limit) -> Iterator[int]:
    yield 1
    while limit.left:
        pass
    raise InVain


def broken(limit: Limit) -> Iterator[int]:
    yield 1
    raise TimeoutError("no worker came up")


def test_a_part_that_takes_too_long_ends_with_what_it_has_seen() -> None:
    assert list(until(0.01, slow)) == [1]


def test_a_part_that_fails_in_time_fails_the_bench() -> None:
    seen = []
    with pytest.raises(TimeoutError, match="no worker came up"):
        seen.extend(until(900.0, broken))
