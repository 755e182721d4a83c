"""TensorFlow as the agent's sessions use it: models of Keras 3 on TensorFlow, and of tf_keras."""

from __future__ import annotations

import sys
from typing import Any
from weakref import WeakSet

import tensorflow as tf

from worker_agent.errors import UnsupportedModel, UnsupportedStrategy
from worker_agent.frameworks import (
    AsynchronousStrategy,
    Framework,
    ModelSteps,
    StrategyContext,
    TrainingStrategy,
)
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.sampler import SampleIndices
from worker_agent.state.seeds import mix_seed, seed_python_and_numpy
from worker_agent.tensorflow.all_reduce import MeshAllReduce
from worker_agent.tensorflow.state import KerasState

SEEDS = 1 << 31


class TensorFlow:
    """Implements `worker_agent.frameworks.Framework`."""

    name = "tensorflow"

    def __init__(self) -> None:
        self.prepared: WeakSet[KerasState] = WeakSet()

    def owns(self, model: Any) -> bool:
        keras, tf_keras = sys.modules.get("keras"), sys.modules.get("tf_keras")
        if tf_keras is not None and isinstance(model, tf_keras.Model):
            return True
        if keras is None or not isinstance(model, keras.Model):
            return False
        return bool(keras.backend.backend() == "tensorflow")

    def strategy(self, rendezvous: StoreRendezvous, context: StrategyContext) -> TrainingStrategy:
        if context.name != "all_reduce":
            raise unsupported(context.name)
        if context.shared is not None:
            raise UnsupportedStrategy(
                "TensorFlow has no layouts: leave limits.layout out of the job document"
            )
        strategy = MeshAllReduce(rendezvous, context)
        self.prepared.add(strategy.state)
        return strategy

    def asynchronous_strategy(self, context: StrategyContext) -> AsynchronousStrategy:
        raise unsupported(context.name)

    def model_steps(self, model: Any, loss: Any, scaler: Any) -> ModelSteps:
        raise UnsupportedModel(
            "job.step and job.predict are for PyTorch: leave out loss= and blocks=, and keep the"
            " script's own loop"
        )

    def to_batch(self, indices: SampleIndices) -> SampleIndices:
        return indices

    def seed(self, seed: int, sample_position: int) -> None:
        """Set the random streams of Python, NumPy, TensorFlow and the prepared models."""
        mixed = mix_seed(b"iteration", seed, sample_position)
        seed_python_and_numpy(mixed)
        tf.random.set_seed(mixed % SEEDS)
        for state in list(self.prepared):
            state.reseed(seed, sample_position)

    def detach(self, value: Any) -> Any | None:
        """Return a copy of a tensor; None for one of a function that is still being traced."""
        if not tf.is_tensor(value) and not isinstance(value, tf.Variable):
            return None
        copy = tf.identity(value)
        return copy if hasattr(copy, "numpy") else None


def unsupported(name: str) -> UnsupportedStrategy:
    """Return the error for a strategy that sessions of TensorFlow do not have."""
    return UnsupportedStrategy(
        f"TensorFlow has no strategy {name} in a session; it has all_reduce: set strategy:"
        " all_reduce in the job document"
    )


TENSORFLOW: Framework = TensorFlow()
