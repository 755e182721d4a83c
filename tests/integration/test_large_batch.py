"""Eight times the batch: what the learning-rate rules keep, and what the service makes of it."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import pytest
import torch

from tests.bench.large_batch import ALLOWED, NONE, SEEDS, WARM
from tests.bench.rules import SMALL, find_law, losses_of

pytestmark = pytest.mark.slow  # forty trainings to their end
SEEN = (SMALL, 128, 512)


@pytest.fixture(autouse=True, scope="module")
def one_core() -> Iterator[None]:
    """Networks this small are slower on several cores, and wait for them where others compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_linear_scaling_with_warm_up_keeps_the_accuracy_and_a_fixed_rate_does_not() -> None:
    """Few of the seeds of ``make bench-large-batch``: a rule that is not applied loses far more."""
    assert fmean(losses_of(WARM, SEEDS[:3])) <= ALLOWED
    assert fmean(losses_of(NONE, SEEDS[:1])) > 4 * ALLOWED


def test_the_epoch_law_chosen_by_the_service_is_the_one_seen() -> None:
    """With a fixed rate epochs rise from the start, scaled linearly not before several φ."""
    fixed, linear = find_law("none", SEEN), find_law("linear", SEEN)
    assert fixed.seen(512) > 5
    assert linear.seen(512) < 2
    for law in (fixed, linear):
        assert law.is_met
        assert law.fitted.critical_batch is None or law.fitted.noisy_samples < law.noise_scale
    assert fixed.kappa.value < 0.5
    assert linear.kappa.value > 2
