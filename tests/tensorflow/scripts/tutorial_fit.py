"""In the form of TensorFlow's tutorial of ``fit`` with several workers. It knows no agent."""

import json
import os

import images
import tensorflow as tf


def make_dataset(batch_size):
    def scale(image, label):
        return tf.cast(image, tf.float32) / 255, label

    return images.load().map(scale).shuffle(64).repeat().batch(batch_size)


def build_and_compile_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(28, 28)),
            tf.keras.layers.Reshape(target_shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(4, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(16, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.001),
        metrics=["accuracy"],
    )
    return model


per_worker_batch_size = 64
tf_config = json.loads(os.environ["TF_CONFIG"])
num_workers = len(tf_config["cluster"]["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()

global_batch_size = per_worker_batch_size * num_workers
dataset = make_dataset(global_batch_size)
with strategy.scope():
    model = build_and_compile_model()

model.fit(dataset, epochs=1000, steps_per_epoch=70)
