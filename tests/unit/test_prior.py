import pytest

from scavenger.cluster import ClusterConfig, ConfigSpace
from scavenger.indicators import Observation, ScalingIndicators
from scavenger.models.parallel import ParallelModel
from scavenger.models.performance import PerformanceModel
from scavenger.models.statistical import StatisticalModel
from scavenger.prior import StoredModel

MODEL = PerformanceModel(ParallelModel(0, 1, 0, 1), StatisticalModel(100, 100), 1000, 50, None)
FOUR_CORNERS = ConfigSpace((2, 8), (64, 256)).corners()


def stored(*configs: ClusterConfig) -> StoredModel:
    indicators = ScalingIndicators(None, None, 1.0, 1.0)
    observations = tuple(Observation(config, indicators, 20) for config in configs)
    return StoredModel("x", MODEL, observations, {"accuracy >= 0.9": 6.0}, 1)


@pytest.mark.parametrize(
    ("seen", "workers", "batches", "covered"),
    [
        (FOUR_CORNERS, (2, 4, 8), (64, 128, 256), True),
        (FOUR_CORNERS, (4,), (100,), True),
        (FOUR_CORNERS, (2, 16), (64, 256), False),
        (FOUR_CORNERS, (1, 8), (64, 256), False),
        (FOUR_CORNERS, (2, 8), (64, 512), False),
        (FOUR_CORNERS, (2, 8), (32, 256), False),
        (FOUR_CORNERS[:1], (2, 8), (64, 256), False),
        ((), (2, 8), (64, 256), False),
    ],
)
def test_a_stored_model_covers_what_it_spans(seen, workers, batches, covered):
    assert stored(*seen).covers(ConfigSpace(workers, batches)) is covered


@pytest.mark.parametrize(
    ("target", "reference_batch", "epochs"),
    [
        ("accuracy >= 0.9", 50, 6.0),
        ("accuracy >= 0.9", 200, 12.0),
        ("accuracy >= 0.8", 50, None),
        (None, 50, None),
    ],
)
def test_epochs_are_told_at_the_other_jobs_reference_batch(target, reference_batch, epochs):
    assert stored().epochs_to(target, reference_batch) == epochs
