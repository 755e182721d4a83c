"""In the form of TensorFlow's first example with replicas and a ``Supervisor``, unaware of us."""

import math
import sys
import tempfile
import time

import images
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

flags = tf.app.flags
flags.DEFINE_integer("task_index", None, "Index of this worker; 0 is the chief")
flags.DEFINE_integer("hidden_units", 16, "Units of the hidden layer")
flags.DEFINE_integer("train_steps", 1_000_000, "Global steps to train")
flags.DEFINE_integer("batch_size", 16, "Samples of a batch of one worker")
flags.DEFINE_float("learning_rate", 0.001, "Learning rate")
flags.DEFINE_string("ps_hosts", "localhost:2222", "host:port of each server")
flags.DEFINE_string("worker_hosts", "localhost:2223,localhost:2224", "host:port of each worker")
flags.DEFINE_string("job_name", None, "worker or ps")
FLAGS = flags.FLAGS

PIXELS = images.SIZE * images.SIZE


def main(_):
    if not FLAGS.job_name:
        raise ValueError("Must specify an explicit `job_name`")
    if FLAGS.task_index is None:
        raise ValueError("Must specify an explicit `task_index`")

    ps_spec = FLAGS.ps_hosts.split(",")
    worker_spec = FLAGS.worker_hosts.split(",")
    num_workers = len(worker_spec)
    cluster = tf.train.ClusterSpec({"ps": ps_spec, "worker": worker_spec})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)
    if FLAGS.job_name == "ps":
        server.join()

    is_chief = FLAGS.task_index == 0
    worker_device = f"/job:worker/task:{FLAGS.task_index}/cpu:0"
    with tf.device(
        tf.train.replica_device_setter(
            worker_device=worker_device, ps_device="/job:ps/cpu:0", cluster=cluster
        )
    ):
        global_step = tf.Variable(0, name="global_step", trainable=False)
        hid_w = tf.Variable(
            tf.truncated_normal([PIXELS, FLAGS.hidden_units], stddev=1.0 / images.SIZE),
            name="hid_w",
        )
        hid_b = tf.Variable(tf.zeros([FLAGS.hidden_units]), name="hid_b")
        sm_w = tf.Variable(
            tf.truncated_normal(
                [FLAGS.hidden_units, images.CLASSES], stddev=1.0 / math.sqrt(FLAGS.hidden_units)
            ),
            name="sm_w",
        )
        sm_b = tf.Variable(tf.zeros([images.CLASSES]), name="sm_b")
        x = tf.placeholder(tf.float32, [None, PIXELS])
        y_ = tf.placeholder(tf.float32, [None, images.CLASSES])
        hid = tf.nn.relu(tf.nn.xw_plus_b(x, hid_w, hid_b))
        y = tf.nn.softmax(tf.nn.xw_plus_b(hid, sm_w, sm_b))
        cross_entropy = -tf.reduce_sum(y_ * tf.log(tf.clip_by_value(y, 1e-10, 1.0)))

        opt = tf.train.SyncReplicasOptimizer(
            tf.train.AdamOptimizer(FLAGS.learning_rate),
            replicas_to_aggregate=num_workers,
            total_num_replicas=num_workers,
            name="mnist_sync_replicas",
        )
        train_step = opt.minimize(cross_entropy, global_step=global_step)
        local_init_op = opt.chief_init_op if is_chief else opt.local_step_init_op
        ready_for_local_init_op = opt.ready_for_local_init_op
        chief_queue_runner = opt.get_chief_queue_runner()
        sync_init_op = opt.get_init_tokens_op()
        init_op = tf.global_variables_initializer()
        train_dir = tempfile.mkdtemp()

        sv = tf.train.Supervisor(
            is_chief=is_chief,
            logdir=train_dir,
            init_op=init_op,
            local_init_op=local_init_op,
            ready_for_local_init_op=ready_for_local_init_op,
            recovery_wait_secs=1,
            global_step=global_step,
        )
        sess_config = tf.ConfigProto(
            allow_soft_placement=True,
            log_device_placement=False,
            device_filters=["/job:ps", f"/job:worker/task:{FLAGS.task_index}"],
        )
        sess = sv.prepare_or_wait_for_session(server.target, config=sess_config)
        if is_chief:
            sess.run(sync_init_op)
            sv.start_queue_runners(sess, [chief_queue_runner])

        local_step = 0
        while True:
            batch_xs, batch_ys = images.next_batch(FLAGS.batch_size)
            _, step = sess.run([train_step, global_step], feed_dict={x: batch_xs, y_: batch_ys})
            local_step += 1
            print(f"{time.time()}: step {local_step} done (global step: {step})")
            if step >= FLAGS.train_steps:
                break

        val_xs, val_ys = images.next_batch(256)
        val_xent = sess.run(cross_entropy, feed_dict={x: val_xs, y_: val_ys})
        print(f"After {FLAGS.train_steps} training step(s), cross entropy = {val_xent:g}")


if __name__ == "__main__":
    sys.exit(tf.app.run())
