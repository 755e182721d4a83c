"""What ``fit`` of Keras and the data sets of ``tf.distribute`` need besides measured steps.

``fit`` tells its metrics at the end of each epoch. A data set is given the batch of the job. Under
a strategy of several processes Keras 3 fails before its first step in two places, which are given
values that they can work with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from worker_agent.launcher.patch import Patch
from worker_agent.tensorflow.asynchronous_steps import is_asynchronous

Metrics = Mapping[str, float]


def is_multi_worker(strategy: Any) -> bool:
    """Whether a strategy sums over several processes."""
    in_multi_worker_mode = getattr(strategy.extended, "_in_multi_worker_mode", lambda: False)
    return (
        isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) and in_multi_worker_mode()
    )


def patches_of_keras_fit(trainer: Any) -> tuple[Patch, ...]:
    """Return the patches of Keras 3 without which ``fit`` fails under several processes.

    Args:
        trainer: ``keras.src.backend.tensorflow.trainer``.
    """
    return (
        Patch(trainer.TensorFlowTrainer, "_maybe_symbolic_build", before=build_from_local_batch),
        Patch(trainer, "reduce_per_replica", before=average_over_replicas),
    )


def build_from_local_batch(
    model: Any, iterator: Any = None, batch: Any = None
) -> tuple[Any, ...] | None:
    """Build a model from one replica's part of the first batch; Keras would average its parts."""
    strategy = model._distribute_strategy
    if iterator is None or strategy is None or not is_multi_worker(strategy):
        return None
    for _, _, steps in iterator:
        batch = tf.nest.map_structure(
            lambda part: strategy.experimental_local_results(part)[0], next(steps)
        )
        break
    return model, None, batch


def average_over_replicas(values: Any, strategy: Any, reduction: str) -> tuple[Any, ...] | None:
    """Average what replicas logged; Keras would do so along the first axis, which they lack."""
    if reduction not in ("auto", "mean") or not is_multi_worker(strategy):
        return None
    averaged = tf.nest.map_structure(
        lambda each: strategy.reduce(tf.distribute.ReduceOp.MEAN, each, axis=None), values
    )
    return averaged, strategy, "first"


def patches_of_callbacks(
    callbacks: Any, on_metrics: Callable[[Metrics], None], *, are_summed: bool
) -> tuple[Patch, ...]:
    """Return the patch that tells the metrics of each epoch.

    Args:
        callbacks: The class ``CallbackList`` of a Keras.
        on_metrics: Takes them by name.
        are_summed: Whether this Keras adds the metrics of several processes up.
    """

    def epoch_ends(called: Any, _: int, logs: Any = None) -> None:
        strategy = called.model.distribute_strategy
        parts = strategy.num_replicas_in_sync if are_summed and is_multi_worker(strategy) else 1
        on_metrics({name: float(value) / parts for name, value in (logs or {}).items()})

    return (Patch(callbacks, "on_epoch_end", after=epoch_ends),)


def patches_of_data_sets(strategies: Any, global_batch: int) -> tuple[Patch, ...]:
    """Return the patches by which data sets have the job's batch, whichever the script gave them.

    Args:
        strategies: The class ``StrategyBase``.
        global_batch: Samples of all replicas together.
    """

    def batch_in(strategy: Any) -> int:
        """Return the samples of one step of a strategy, in which asynchronous workers are alone."""
        workers = strategy.extended._num_workers if is_asynchronous(strategy) else 1
        return max(global_batch // workers, 1)

    def whole(strategy: Any, dataset: Any, options: Any = None) -> tuple[Any, ...]:
        # TensorFlow takes `rebatch` for its own and removes it where one process trains.
        if has_batches(dataset):
            dataset = dataset.unbatch().batch(batch_in(strategy))
        return strategy, dataset, options

    def by_process(strategy: Any, make: Any, options: Any = None) -> tuple[Any, ...]:
        def make_with_batch(place: Any) -> Any:
            batch = place.get_per_replica_batch_size(batch_in(strategy))
            made = make(place)
            return made.rebatch(batch) if has_batches(made) else made

        return strategy, make_with_batch, options

    return (
        Patch(strategies, "experimental_distribute_dataset", before=whole),
        Patch(strategies, "distribute_datasets_from_function", before=by_process),
    )


def has_batches(dataset: Any) -> bool:
    """Whether the first axis of everything in a data set is that of its batches."""
    parts = tf.nest.flatten(getattr(dataset, "element_spec", ()))
    return bool(parts) and all(getattr(each, "shape", None) for each in parts)
