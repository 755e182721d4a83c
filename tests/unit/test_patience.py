"""Waiting in slices gives up what is hopeless, and nothing else."""

from __future__ import annotations

from datetime import timedelta

import pytest

from worker_agent.pytorch.process_group import SLICE_TIMEOUT_MESSAGE, await_work


class Slow:
    """A collective of Gloo that ends while it is being waited for, after so many slices."""

    def __init__(self, slices: int, *, ends_unseen: bool = False, error: str = "") -> None:
        self.slices, self.ends_unseen, self.error = slices, ends_unseen, error
        self.is_over = slices == 0

    def wait(self, timeout: timedelta | None = None) -> None:
        if not self.is_over and timeout is not None:
            self.slices -= 1
            # It may end between the end of the slice and the next question.
            self.is_over = self.slices == 0 and self.ends_unseen
            if self.slices >= 0:
                raise RuntimeError(SLICE_TIMEOUT_MESSAGE)
        self.is_over = True
        if self.error:
            raise RuntimeError(self.error)

    def is_completed(self) -> bool:
        return self.is_over


@pytest.mark.parametrize("ends_unseen", [False, True])
@pytest.mark.parametrize("slices", [0, 1, 3])
def test_a_slow_collective_is_waited_for(slices: int, *, ends_unseen: bool) -> None:
    await_work(Slow(slices, ends_unseen=ends_unseen), lambda: False)


@pytest.mark.parametrize("ends_unseen", [False, True])
def test_the_error_of_a_failed_collective_is_passed_on(*, ends_unseen: bool) -> None:
    with pytest.raises(RuntimeError, match="closed by peer"):
        await_work(Slow(2, ends_unseen=ends_unseen, error="closed by peer"), lambda: False)


def test_a_hopeless_collective_is_given_up() -> None:
    with pytest.raises(RuntimeError, match=SLICE_TIMEOUT_MESSAGE):
        await_work(Slow(1000), lambda: True)


def test_one_that_ended_in_time_is_not_given_up_though_all_seems_hopeless() -> None:
    await_work(Slow(1, ends_unseen=True), lambda: True)
