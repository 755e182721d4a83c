"""A loop that tells what it trains before and after each step, until there is a file ``end``.

Its arguments: ``keras`` or ``tf_keras``, and a directory for checkpoints of its own, if any; then
``weights`` for one of Keras instead of TensorFlow. Each start writes a line of JSON per step to a
file of its own.
"""

import json
import os
import sys
import time

import numpy as np
import tensorflow as tf

KERAS = __import__(sys.argv[1])
LOCAL_BATCH = int(os.environ.get("SCAVENGER_LOCAL_BATCH", "8"))


def dataset(context):
    numbers = np.random.default_rng(1 + context.input_pipeline_id)
    inputs = numbers.normal(size=(512, 6)).astype("float32")
    labels = (inputs[:, 0] > 0).astype("int64")
    return tf.data.Dataset.from_tensor_slices((inputs, labels)).repeat().batch(LOCAL_BATCH)


generation = int(os.environ.get("SCAVENGER_GENERATION", "0"))
with open(f"started-{generation}-{os.getpid()}", "w") as started:
    started.write(str(time.time()))
strategy = tf.distribute.MultiWorkerMirroredStrategy()
rank, replicas = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
with strategy.scope():
    KERAS.utils.set_random_seed(int(time.time()))  # no start begins where another one did
    layers = [KERAS.layers.Dense(16, activation="relu"), KERAS.layers.Dense(2)]
    model = KERAS.Sequential([KERAS.layers.InputLayer((6,)), *layers])
    optimizer = KERAS.optimizers.Adam(0.01)
    if len(sys.argv) > 2:  # else its slots are made while the step is traced, as in tutorials
        optimizer.build(model.trainable_variables)
own = tf.train.Checkpoint(model=model, optimizer=optimizer)
weights = f"{sys.argv[2]}/own.weights.h5" if len(sys.argv) > 3 else None
if weights and os.path.exists(weights):
    model.load_weights(weights)
elif len(sys.argv) == 3:
    own.restore(tf.train.latest_checkpoint(sys.argv[2]))
iterator = iter(strategy.distribute_datasets_from_function(dataset))


@tf.function
def train(iterator):
    def step(batch):
        inputs, labels = batch
        before = tf.concat([tf.reshape(each, [-1]) for each in model.trainable_variables], 0)
        with tf.GradientTape() as tape:
            scores = model(inputs, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=LOCAL_BATCH * replicas)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return before

    return strategy.run(step, args=(next(iterator),))


name = f"{generation}-{rank}-{os.getpid()}.jsonl"
with open(name, "w", buffering=1) as file:
    while not os.path.exists("end"):  # TensorFlow ignores SIGTERM while workers are connected
        before = strategy.experimental_local_results(train(iterator))[0].numpy()
        after = np.concatenate([each.ravel() for each in model.get_weights()])
        told = {
            "at": time.time(),
            "generation": generation,
            "iteration": int(optimizer.iterations.numpy()),
            "replicas": replicas,
            "rank": rank,
            "before": before.tobytes().hex(),
            "after": after.tobytes().hex(),
        }
        print(json.dumps(told), file=file)
        if len(sys.argv) > 2 and rank == 0 and told["iteration"] % 10 == 0:
            os.makedirs(sys.argv[2], exist_ok=True)
            model.save_weights(weights) if weights else own.save(f"{sys.argv[2]}/own")
        time.sleep(0.02)
