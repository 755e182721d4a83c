"""Train a small CNN on scikit-learn's handwritten digits with Keras, alone or as a Scavenger job.

An ordinary custom loop of TensorFlow; these are the lines that make it elastic::

    with worker_agent.session() as job:
        job.prepare(model, optimizer)
        for indices in job.batches(len(images), global_batch=BATCH, epochs=EPOCHS, seed=SEED):

``python train.py`` runs it alone; ``job.yaml`` says what Scavenger needs to know.
"""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf
from keras import layers
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import worker_agent

SEED = 0
BATCH = 8
EPOCHS = 120
LEARNING_RATE = 0.00012  # at batch 8; a job scales it with its batch
GOAL = 0.97
EVALUATE_EVERY = 2000  # samples
CHANNELS = 24
BLOCKS = 6


def main() -> None:
    """Train until the validation accuracy reaches the goal."""
    keras.utils.set_random_seed(SEED)
    (images, labels), validation = load_data()
    model = build_model()
    optimizer = keras.optimizers.SGD(LEARNING_RATE, momentum=0.9)
    accuracy, evaluated = 0.0, 0

    # One trace for all sizes of a batch: a resize changes the size.
    @tf.function(
        input_signature=[
            tf.TensorSpec([None, *images.shape[1:]], tf.float32),
            tf.TensorSpec([None], tf.int64),
        ]
    )
    def step(images: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            scores = model(images, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    with worker_agent.session() as job:
        job.prepare(model, optimizer)
        for indices in job.batches(
            len(images),
            global_batch=BATCH,
            epochs=EPOCHS,
            seed=SEED,
            until=lambda: accuracy >= GOAL,
        ):
            loss = step(images[indices], labels[indices])
            job.log(loss=loss)
            if job.is_leader and job.samples - evaluated >= EVALUATE_EVERY:
                accuracy, evaluated = evaluate(model, *validation), job.samples
                job.log(accuracy=accuracy)
        if job.is_leader:
            epochs = job.samples / len(images)
            print(f"validation accuracy {accuracy:.3f} after {epochs:.1f} epochs")


Samples = tuple[np.ndarray, np.ndarray]


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


def evaluate(model: keras.Model, images: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of validation images that the model recognises."""
    guesses = np.argmax(model(images), axis=1)
    return float((guesses == labels).mean())


if __name__ == "__main__":
    main()
