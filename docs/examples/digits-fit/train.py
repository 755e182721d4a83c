"""Train a small CNN on scikit-learn's handwritten digits with Keras' ``fit``, in several processes.

Nothing in it is Scavenger's but the batch and the learning rate's factor, which the environment
tells::

    scavenger agent run -- python train.py

Alone, ``python train.py`` trains in one process.
"""

from __future__ import annotations

import os

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

SEED = 0
EPOCHS = 400
LEARNING_RATE = 0.002  # at batch 16
CHANNELS = 16
BLOCKS = 3

BATCH = int(os.environ.get("SCAVENGER_GLOBAL_BATCH", "16"))
FACTOR = float(os.environ.get("SCAVENGER_LEARNING_RATE_FACTOR", "1"))

Samples = tuple[np.ndarray, np.ndarray]


def main() -> None:
    """Train for some epochs; a job ends earlier, when the validation accuracy is high enough."""
    keras.utils.set_random_seed(SEED)
    training, validation = load_data()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build_model()
        model.compile(
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=keras.optimizers.SGD(LEARNING_RATE * FACTOR, momentum=0.9),
            metrics=["accuracy"],
        )
    samples = tf.data.Dataset.from_tensor_slices(training).cache().shuffle(2000).repeat()
    told = model.fit(
        samples.batch(BATCH),
        epochs=EPOCHS,
        steps_per_epoch=len(training[0]) // BATCH,
        validation_data=tf.data.Dataset.from_tensor_slices(validation).batch(120),
        verbose=0,
    )
    print(f"validation accuracy {told.history['val_accuracy'][-1]:.3f}")


def load_data() -> tuple[Samples, Samples]:
    """Return 1437 images to train on and 360 to validate with, the same ones every time."""
    digits = load_digits()
    images = (digits.images[..., None] / 8 - 1).astype("float32")
    labels = digits.target.astype("int64")
    train, validation = train_test_split(
        range(len(labels)), test_size=360, stratify=labels, random_state=0
    )
    return (images[train], labels[train]), (images[validation], labels[validation])


def build_model() -> keras.Model:
    """Return a stack of convolutions: much to compute, little to synchronise."""
    network = [keras.Input((8, 8, 1))]
    for _ in range(BLOCKS):
        network += [layers.Conv2D(CHANNELS, 3, padding="same"), layers.GroupNormalization(8)]
        network += [layers.ReLU()]
    return keras.Sequential([*network, layers.GlobalAveragePooling2D(), layers.Dense(10)])


if __name__ == "__main__":
    main()
