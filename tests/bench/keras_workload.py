"""What the benchmarks of TensorFlow train: two convolutional networks on made-up pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tests.bench.turn import SEED

SIZE = 4096  # samples of a data set
layers = keras.layers


class Pictures:
    """A network, its optimizer and its data, the same in every process.

    Args:
        side: Width and height of a picture.
        filters: Filters of the convolutions; each but the first halves the picture while it can.
        units: Units of the layer behind them.
    """

    def __init__(self, side: int, filters: tuple[int, ...], units: int) -> None:
        keras.utils.set_random_seed(SEED)
        network, width = [keras.Input((side, side, 3))], side
        for place, number in enumerate(filters):
            strides = 2 if place and width > 4 else 1
            width //= strides
            network.append(layers.Conv2D(number, 3, strides, "same", activation="relu"))
        pool = layers.Flatten() if units else layers.GlobalAveragePooling2D()
        dense = [layers.Dense(units, "relu")] if units else []
        self.model = keras.Sequential([*network, pool, *dense, layers.Dense(10)])
        self.optimizer = keras.optimizers.SGD(0.001, momentum=0.9)
        self.optimizer.build(self.model.trainable_variables)
        random = np.random.default_rng(SEED)
        self.pictures = random.normal(size=(256, side, side, 3)).astype("float32")
        self.labels = random.integers(0, 10, 256)

    def batch(self, indices: Any) -> tuple[Any, Any]:
        """Return pictures and labels."""
        places = indices % len(self.labels)
        return tf.constant(self.pictures[places]), tf.constant(self.labels[places])

    def step(self, pictures: Any, labels: Any, share: float = 1.0) -> Any:
        """Step by the gradient of the mean loss, times this worker's share; returns that loss."""
        with tf.GradientTape() as tape:
            scores = self.model(pictures, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(losses)
            shared = loss * share
        variables = self.model.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(shared, variables), variables))  # noqa: B905
        return loss


WORKLOADS: Mapping[str, Callable[[], Pictures]] = {
    "0.3 million": lambda: Pictures(16, (32, 64), 64),
    "11 million": lambda: Pictures(32, (64, 128, 256, *4 * (512,), 512), 0),
}
