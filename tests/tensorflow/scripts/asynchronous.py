"""Asynchronous training as TensorFlow's tutorial writes it: workers, servers and a coordinator.

Its arguments: ``keras`` or ``tf_keras``; how many steps, 0 until there is a file ``end``; and a
directory for checkpoints of its own, if any. It prints the last bit of the weights, and writes the
gradients.
"""

import json
import os
import pathlib
import sys
import time

import numpy as np
import tensorflow as tf

KERAS = __import__(sys.argv[1])
STEPS = int(sys.argv[2])
OWN = sys.argv[3] if len(sys.argv) > 3 else None
BATCH = int(os.environ.get("SCAVENGER_LOCAL_BATCH", "8"))
ROUND = 10

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    os.environ["GRPC_FAIL_FAST"] = "use_caller"
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    )
    server.join()

WORKERS = resolver.cluster_spec().num_tasks("worker")
strategy = tf.distribute.ParameterServerStrategy(resolver)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
with strategy.scope():
    KERAS.utils.set_random_seed(0)
    layers = [KERAS.layers.Dense(width, activation="relu") for width in (256, 64)]
    layers.append(KERAS.layers.Dense(3))
    model = KERAS.Sequential([KERAS.layers.InputLayer((6,)), *layers])
    optimizer = KERAS.optimizers.SGD(0.05)
    optimizer.build(model.trainable_variables)


def dataset(_):
    # It is the same on all workers, each of which therefore begins elsewhere.
    first = tf.cast(tf.timestamp() * 1e6, tf.int64) % 4096 if WORKERS > 1 else 0
    numbers = np.random.default_rng(1)
    inputs = numbers.normal(size=(4096, 6)).astype("float32")
    labels = (inputs[:, 0] > 0).astype("int64") + (inputs[:, 1] > 0)
    made = tf.data.Dataset.from_tensor_slices((inputs, labels))
    return made.repeat().skip(first).batch(BATCH)


@tf.function
def train(iterator):
    def step(batch):
        inputs, labels = batch
        with tf.GradientTape() as tape:
            scores = model(inputs, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.concat([tf.reshape(each, [-1]) for each in gradients], 0)

    return strategy.run(step, args=(next(iterator),))


made = coordinator.create_per_worker_dataset(
    lambda: strategy.distribute_datasets_from_function(dataset)
)
iterator = iter(made)
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
if OWN and tf.train.latest_checkpoint(OWN):
    checkpoint.restore(tf.train.latest_checkpoint(OWN))
    print("restored", flush=True)
rounds, gradients = 0, []
while (rounds * ROUND < STEPS) if STEPS else not pathlib.Path("end").exists():
    gradients += [coordinator.schedule(train, args=(iterator,)) for _ in range(ROUND)]
    coordinator.join()
    rounds += 1
    if not STEPS:
        print(json.dumps({"at": time.time(), "round": rounds}), flush=True)
        gradients.clear()
        time.sleep(0.02)
    if OWN and rounds % 10 == 0:
        checkpoint.save(f"{OWN}/own")
if STEPS:
    np.save("gradients.npy", np.stack([each.fetch() for each in gradients]))
weights = np.concatenate([each.numpy().ravel() for each in model.trainable_variables])
print("weights", weights.tobytes().hex()[:64], float(np.sum(np.abs(weights))), flush=True)
