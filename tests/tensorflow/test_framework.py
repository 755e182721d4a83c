"""What the agent requires of a framework, for TensorFlow with both of its Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tf_keras

from tests.conformance.test_frameworks import FrameworkContract
from tests.crew import SAMPLES
from worker_agent.tensorflow.framework import TENSORFLOW

RANDOM = np.random.default_rng(5)
INPUTS = RANDOM.normal(size=(SAMPLES, 6))
LABELS = np.arange(SAMPLES) % 3


class KerasContract(FrameworkContract):
    framework = TENSORFLOW
    strategies = ("all_reduce",)
    keras: Any

    def make(self) -> tuple[Any, Any]:
        layers = self.keras.layers
        model = self.keras.Sequential(
            [
                self.keras.Input((6,), dtype="float64"),
                layers.Dense(8, activation="tanh", dtype="float64"),
                layers.Dense(3, dtype="float64"),
            ]
        )
        start = np.random.default_rng(3)
        model.set_weights([start.normal(size=each.shape) for each in model.get_weights()])
        self.steps = {**getattr(self, "steps", {}), id(model): self.trace(model)}
        return model, self.optimizer()

    def optimizer(self) -> Any:
        return self.keras.optimizers.SGD(0.1)

    def trace(self, model: Any) -> Any:
        @tf.function(reduce_retracing=True)
        def step(optimizer: Any, inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels, model(inputs, training=True)
                )
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        return step

    def train(self, model: Any, optimizer: Any, indices: Any) -> None:
        self.steps[id(model)](optimizer, tf.constant(INPUTS[indices]), tf.constant(LABELS[indices]))

    def weights(self, model: Any) -> np.ndarray[Any, Any]:
        return np.concatenate([each.ravel() for each in model.get_weights()]).copy()


class TestKeras3(KerasContract):
    keras = keras


class TestTfKeras(KerasContract):
    keras = tf_keras


class TestAdam(KerasContract):
    keras = keras

    def optimizer(self) -> Any:
        return keras.optimizers.Adam(0.01)

    test_the_learning_rate_follows_the_batch = None  # type: ignore[assignment]


def test_a_tensor_is_held_and_a_symbolic_one_is_not() -> None:
    found = []

    @tf.function
    def traced(value: Any) -> Any:
        found.append(TENSORFLOW.detach(value))
        return value

    traced(tf.constant(1.5))
    assert found == [None]
    rate = tf.Variable(1.5)
    held = TENSORFLOW.detach(rate)
    rate.assign(2.5)
    assert float(held) == float(TENSORFLOW.detach(tf.constant(1.5))) == 1.5
