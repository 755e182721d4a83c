"""Images in the place of the handwritten digits that tutorials download first.

While the file that ``HELD`` names exists, each of them takes its time.
"""

import os
import time

import numpy as np

SAMPLES, SIZE, CLASSES = 1024, 28, 10
NUMBERS = np.random.default_rng(1)
PAUSE = 0.005


def drawn(samples):
    """Return images, and labels that only chance makes."""
    images = NUMBERS.integers(0, 256, (samples, SIZE, SIZE), dtype=np.uint8)
    return images, NUMBERS.integers(0, CLASSES, samples)


def wait(labels):
    """Return the labels, after a pause for each of them if the file exists."""
    if os.path.exists(os.environ.get("HELD", "")):
        time.sleep(PAUSE * labels.size)
    return labels


def load():
    """Return a data set of images and labels, as TensorFlow's catalogue of data sets does."""
    import tensorflow as tf

    def pair(image, label):
        return image, tf.ensure_shape(tf.numpy_function(wait, [label], tf.int64), [])

    return tf.data.Dataset.from_tensor_slices(drawn(SAMPLES)).map(pair)


def next_batch(samples):
    """Return flat images and vectors of labels, as the module of TensorFlow's first examples."""
    images, labels = drawn(samples)
    flat = images.reshape(samples, SIZE * SIZE) / np.float32(255)
    return flat, np.eye(CLASSES, dtype=np.float32)[wait(labels)]
