"""``fit`` under a strategy of several processes; prints what it told of its last epoch.

Its arguments: ``keras`` or ``tf_keras``, a number of epochs, and a directory to back up to, if any.
"""

import json
import sys

import numpy as np
import tensorflow as tf

KERAS = __import__(sys.argv[1])
GLOBAL_BATCH, STEPS = 16, 5


def dataset():
    numbers = np.random.default_rng(1)
    inputs = numbers.normal(size=(256, 6)).astype("float32")
    labels = (inputs[:, 0] > 0).astype("int64")
    return tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat().batch(GLOBAL_BATCH)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    KERAS.utils.set_random_seed(0)
    layers = [KERAS.layers.Dense(16, activation="relu"), KERAS.layers.Dense(2)]
    model = KERAS.Sequential([KERAS.layers.InputLayer((6,)), *layers])
    model.compile(
        loss=KERAS.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=KERAS.optimizers.SGD(0.1),
        metrics=["accuracy"],
    )
callbacks = [KERAS.callbacks.BackupAndRestore(each) for each in sys.argv[3:]]
told = model.fit(
    dataset(), epochs=int(sys.argv[2]), steps_per_epoch=STEPS, callbacks=callbacks, verbose=0
).history
if strategy.cluster_resolver.task_id in (0, None):
    print(json.dumps({name: float(values[-1]) for name, values in told.items()}))
