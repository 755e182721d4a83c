"""Stored models of finished jobs, so that later jobs search less or not at all.

The model of the same job replaces a search. The model of a job that measures alike serves as a
prior, and so, more widely, does the average over all of them, the paper's universal model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import fmean, pstdev
from urllib.parse import quote, unquote

import numpy as np

from scavenger.cluster import ClusterConfig, ConfigSpace, config_columns
from scavenger.measurement.profiling import Measurement, Observation
from scavenger.models.epochs import (
    EpochsLaw,
    FinishedRun,
    Kappa,
    LawFamily,
    RootNoiseLaw,
    learn_kappa,
)
from scavenger.models.forms import Topology
from scavenger.models.iteration_time_fitting import fit_step_time, rescale_laws
from scavenger.models.performance import PerformanceModel, forms_for

# Two jobs measure alike when time and noise of one configuration are within this factor.
SIMILARITY_FACTOR = 1.5
# A model of another job may be off by this much where this job has not measured yet.
TRANSFERRED_SPREAD = 0.15


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The model of finished jobs with one signature.

    Attributes:
        signature: Jobs that may reuse it, as made by ``make_signature``.
        model: The fitted laws.
        observations: The probes they were fitted to.
        epochs_by_target: Reference epochs each target took, at ``model.reference_batch``, by
            target in words.
        jobs: Jobs it was learned from.
        runs: What finished runs to each target took at their batch, by target in words.
    """

    signature: str
    model: PerformanceModel
    observations: tuple[Observation, ...]
    epochs_by_target: Mapping[str, float]
    jobs: int
    runs: Mapping[str, tuple[FinishedRun, ...]] = field(default_factory=dict)

    def covers(self, space: ConfigSpace) -> bool:
        """Tell whether the laws interpolate over a space: K and b of its corners were spanned.

        A search may have left its fourth corner, most workers at the smallest batch, to the laws.
        Only measurements of the first stack of the space count: others say little of its speed.
        """
        configs = [observation.config for observation in self.observations]
        seen = [config for config in configs if config.stack == space.stacks[0].name]
        return bool(seen) and all(is_within_range(corner, seen) for corner in space.corners())

    def epochs_to(self, target: str | None, reference_batch: int) -> float | None:
        """Epochs a target took, at another job's reference batch; None if none reached it."""
        epochs = None if target is None else self.epochs_by_target.get(target)
        if epochs is None:
            return None
        at_stored = replace(self.model, epochs_at_reference=epochs)
        return at_stored.epochs_needed(reference_batch)


def model_distance(model: PerformanceModel, observation: Observation) -> float:
    """Factor by which a model misses what a job measured in one configuration, at least 1.

    Similarity is measured, not named: iteration time, its compute part and the noise scale tell
    jobs apart, not their names (SCIENCE §5). Noise that has not settled tells nothing.
    """
    config, seen = observation.config, observation.indicators
    scale = seen.noise_scale if observation.has_settled_noise else None
    pairs = [
        (model.parallel.step_time(config), seen.step_time),
        (model.parallel.compute_time(config), seen.compute_time),
        (model.statistical.noise_scale, scale),
    ]
    factors = [
        max(predicted / measured, measured / predicted)
        for predicted, measured in pairs
        if predicted and measured
    ]
    return max(factors, default=math.inf)


def most_similar_model(
    models: Sequence[StoredModel], observations: Sequence[Observation]
) -> StoredModel | None:
    """Return the stored model that is most like what a job measured; None if none is."""
    alike = [
        (max(model_distance(m.model, observation) for observation in observations), m.signature, m)
        for m in models
    ]
    closest = min(alike, default=None, key=lambda entry: entry[:2])
    return closest[2] if closest is not None and closest[0] <= SIMILARITY_FACTOR else None


def transfer_model(
    model: PerformanceModel, observations: Sequence[Observation]
) -> PerformanceModel:
    """Make another job's model a prior for this one: rescaled to its measurements, and widened."""
    own = rescale_laws(model.parallel, tuple(o.measurement for o in observations))
    missing = TRANSFERRED_SPREAD / math.sqrt(max(len(observations), 1))
    return replace(model, parallel=own.map_laws(lambda law: law.with_added_deviation(missing)))


def average_models(
    models: Sequence[StoredModel],
    space: ConfigSpace,
    topology: Topology = "all_reduce",
    laws: LawFamily = "measured",
) -> PerformanceModel | None:
    """Average all stored models into one, the paper's universal model (III-B, V-C).

    Geometric means, so that no slow job decides alone: of iteration time at every worker count with
    its extreme batches and one between, of the noise scale, and of B_crit / φ. Its uncertainty is
    how much the models differ.

    Returns:
        The average; None without models.
    """
    if not models:
        return None
    configs = sample_batches_per_worker_count(space)
    grid = config_columns(configs)
    steps = [stored.model.parallel.step_times(grid) for stored in models]
    compute = [stored.model.parallel.compute_times(grid) for stored in models]
    pooled = tuple(
        Measurement(
            config,
            geometric_mean([float(s[row]) for s in steps]),
            geometric_mean([float(c[row]) for c in compute]),
        )
        for row, config in enumerate(configs)
    )
    parallel = fit_step_time(pooled, topology, forms=forms_for(laws))
    differ = fmean(
        pstdev([math.log(max(float(s[row]), 1e-300)) for s in steps]) for row in range(len(configs))
    )
    wide = parallel.map_laws(lambda law: law.with_added_deviation(differ))
    newest = models[0].model
    return replace(newest, parallel=wide, statistical=average_epochs_laws(models))


def average_epochs_laws(models: Sequence[StoredModel]) -> EpochsLaw:
    """Average noise scales and critical batches; those of models that have none do not count.

    The falling arm is part of the average as far as the models have one. The paper's law of noise
    is, where all models follow it.
    """
    laws = [stored.model.statistical for stored in models]
    scales = [law.noise_scale for law in laws if law.noise_scale is not None]
    critical = [law.critical_batch for law in laws if law.critical_batch is not None]
    differ = pstdev([math.log(batch) for batch in critical if batch > 0] or [0.0])
    return EpochsLaw(
        critical_batch=mean_of_positive(critical),
        noise_scale=mean_of_positive(scales),
        noisy_samples=fmean(law.noisy_samples for law in laws),
        root_noise=average_root_noise_laws(models),
        critical_deviation=math.hypot(Kappa().deviation, differ) if critical else 0.0,
        spread=fmean(law.spread for law in laws),
        bend=fmean(law.bend for law in laws),
    )


def average_root_noise_laws(models: Sequence[StoredModel]) -> RootNoiseLaw | None:
    """Average the paper's laws of noise, 1 at the same batch each; None if one has another law."""
    batch = np.array([float(models[0].model.reference_batch)])
    laws = [stored.model.statistical.root_noise for stored in models]
    known = [(law, float(law.normalized(batch)[0])) for law in laws if law is not None]
    if len(known) < len(models):
        return None
    return RootNoiseLaw(
        fmean(law.floor / scale for law, scale in known),
        fmean(law.per_root / scale for law, scale in known),
    )


def mean_of_positive(values: Sequence[float]) -> float | None:
    """Return the geometric mean of what is positive; 0 where all are 0, None without any."""
    return geometric_mean([value for value in values if value > 0] or [0.0]) if values else None


def sample_batches_per_worker_count(space: ConfigSpace) -> tuple[ClusterConfig, ...]:
    """Return smallest, middle and largest batch of every worker count and machine type."""
    batches: dict[tuple[int, str], list[ClusterConfig]] = defaultdict(list)
    for config in space:
        batches[config.workers, config.machine_type].append(config)
    chosen = ((own[0], own[len(own) // 2], own[-1]) for own in batches.values())
    return tuple(dict.fromkeys(config for three in chosen for config in three))


def geometric_mean(values: Sequence[float]) -> float:
    """Return the geometric mean; 0 where any value is 0."""
    return math.exp(fmean(map(math.log, values))) if min(values) > 0 else 0.0


def learn_kappa_from_models(prior: Kappa, models: Sequence[StoredModel], rule: str) -> Kappa:
    """Correct the prior of κ by every finished job that scaled its learning rate alike."""
    kappa = prior
    for stored in models:
        if part_of_signature(stored.signature, "rule") == rule:
            for runs in stored.runs.values():
                kappa = learn_kappa(runs, stored.model.statistical.noise_scale, kappa)
    return kappa


# What a signature names, in this order; the exchange of all-reduce and the framework of PyTorch are
# empty, and left out at the end.
SIGNATURE_PARTS = (
    "model", "dataset_size", "rule", "machine", "exchange", "framework", "layout",
)  # fmt: skip
LEAST_PARTS = 4
# What a job trains with whose document and workers say nothing.
DEFAULT_FRAMEWORK = "pytorch"


@lru_cache(maxsize=8192)  # asked of every stored model for every job that is shown
def part_of_signature(signature: str, name: str) -> str:
    """Return one of the parts of a signature; empty where it names none.

    >>> part_of_signature("resnet18/cifar10|50000|linear|e2-standard-4", "machine")
    'e2-standard-4'
    """
    place, parts = SIGNATURE_PARTS.index(name), signature.split("|")
    return unquote(parts[place]) if len(parts) > place else ""


def find_lender(signature: str, models: Sequence[StoredModel]) -> StoredModel | None:
    """Return the newest model of the same job with another framework or layout, or None.

    Noise and epochs follow from model, data and learning rate. So they hold with another framework
    or layout, whose iterations take another time.

    Args:
        signature: Signature of the job.
        models: Stored models, newest first.
    """
    shared = [name for name in SIGNATURE_PARTS if name not in ("framework", "layout")]
    own = [part_of_signature(signature, name) for name in shared]
    for stored in models:
        theirs = stored.signature
        if theirs != signature and own == [part_of_signature(theirs, name) for name in shared]:
            return stored
    return None


def is_within_range(config: ClusterConfig, seen: list[ClusterConfig]) -> bool:
    """Tell whether workers and local batch lie within the range of the grid that was seen."""
    workers = [other.workers for other in seen]
    batches = [other.local_batch for other in seen]
    batches.append(min(other.global_batch for other in seen) / max(workers))
    return min(workers) <= config.workers <= max(workers) and min(
        batches
    ) <= config.local_batch <= max(batches)


def make_signature(
    model_key: str,
    dataset_size: int,
    lr_scaling: str,
    machine: str,
    exchange: str = "",
    framework: str = "",
    layout: str = "",
) -> str:
    """Name what must be equal for one job's model to fit another; no two combinations share it.

    Args:
        model_key: What is trained.
        dataset_size: Samples of one epoch.
        lr_scaling: The learning-rate rule.
        machine: Kind of machine.
        exchange: How gradients travel; empty for all-reduce.
        framework: What trains; empty for PyTorch, as models are that were stored before there was
            another framework.
        layout: How the processes of a worker share the model; empty where it has one.

    >>> make_signature("resnet18/cifar10", 50000, "linear", "e2-standard-4")
    'resnet18/cifar10|50000|linear|e2-standard-4'
    >>> make_signature("digits", 1437, "none", "local", framework="tensorflow")
    'digits|1437|none|local||tensorflow'
    """
    parts = [model_key, str(dataset_size), lr_scaling, machine, exchange, framework, layout]
    while not parts[-1] and len(parts) > LEAST_PARTS:
        parts.pop()
    return "|".join(quote(part, safe="/:+ ") for part in parts)
