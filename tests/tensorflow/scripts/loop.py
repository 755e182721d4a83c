"""The usual loop over a distributed data set; prints the last bit of the weights.

Its arguments: ``keras`` or ``tf_keras``, and a file for the gradients of each step, if any.
"""

import sys

import numpy as np
import tensorflow as tf

KERAS = __import__(sys.argv[1])
GRADIENTS = sys.argv[2] if len(sys.argv) > 2 else None
LOCAL_BATCH, STEPS = 8, 12


def make_model():
    KERAS.utils.set_random_seed(0)
    layers = [KERAS.layers.Dense(16, activation="relu"), KERAS.layers.Dense(3)]
    return KERAS.Sequential([KERAS.layers.InputLayer((6,)), *layers])


def dataset(context):
    numbers = np.random.default_rng(1 + context.input_pipeline_id)
    inputs = numbers.normal(size=(STEPS * LOCAL_BATCH, 6)).astype("float32")
    labels = (inputs[:, 0] > 0).astype("int64") + (inputs[:, 1] > 0)
    return tf.data.Dataset.from_tensor_slices((inputs, labels)).batch(LOCAL_BATCH)


strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = make_model()
    optimizer = KERAS.optimizers.SGD(0.1, momentum=0.9)
    optimizer.build(model.trainable_variables)
batches = strategy.distribute_datasets_from_function(dataset)
replicas = strategy.num_replicas_in_sync


@tf.function
def train(iterator):
    def step(batch):
        inputs, labels = batch
        with tf.GradientTape() as tape:
            scores = model(inputs, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
            loss = tf.nn.compute_average_loss(losses, global_batch_size=LOCAL_BATCH * replicas)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.concat([tf.reshape(each, [-1]) for each in gradients], 0)

    return strategy.run(step, args=(next(iterator),))


iterator = iter(batches)
seen = []
for _ in range(STEPS):
    own = strategy.experimental_local_results(train(iterator))[0]
    seen.append(own.numpy() * replicas)
if GRADIENTS:
    np.save(f"{GRADIENTS}.{strategy.cluster_resolver.task_id}.npy", np.stack(seen))
if strategy.cluster_resolver.task_id in (0, None):
    weights = np.concatenate([each.ravel() for each in model.get_weights()])
    print("weights", weights.tobytes().hex()[:64], float(np.sum(np.abs(weights))))
