"""In the form of TensorFlow's guide to MonitoredTrainingSession with servers. It knows no agent."""

import argparse
import sys

import images
import tensorflow.compat.v1 as tf

FLAGS = None
PIXELS = images.SIZE * images.SIZE


def main(_):
    ps_hosts = FLAGS.ps_hosts.split(",")
    worker_hosts = FLAGS.worker_hosts.split(",")
    cluster = tf.train.ClusterSpec({"ps": ps_hosts, "worker": worker_hosts})
    server = tf.train.Server(cluster, job_name=FLAGS.job_name, task_index=FLAGS.task_index)

    if FLAGS.job_name == "ps":
        server.join()
    elif FLAGS.job_name == "worker":
        is_chief = FLAGS.task_index == 0
        with tf.device(
            tf.train.replica_device_setter(
                worker_device=f"/job:worker/task:{FLAGS.task_index}", cluster=cluster
            )
        ):
            x = tf.placeholder(tf.float32, [None, PIXELS])
            labels = tf.placeholder(tf.float32, [None, images.CLASSES])
            first = tf.get_variable("first", [PIXELS, 16])
            second = tf.get_variable("second", [16, images.CLASSES])
            scores = tf.matmul(tf.nn.relu(tf.matmul(x, first)), second)
            loss = tf.losses.softmax_cross_entropy(labels, scores)
            global_step = tf.train.get_or_create_global_step()
            optimizer = tf.train.SyncReplicasOptimizer(
                tf.train.AdagradOptimizer(0.01),
                replicas_to_aggregate=len(worker_hosts),
                total_num_replicas=len(worker_hosts),
            )
            train_op = optimizer.minimize(loss, global_step=global_step)

        hooks = [
            optimizer.make_session_run_hook(is_chief),
            tf.train.StopAtStepHook(last_step=FLAGS.train_steps),
        ]
        with tf.train.MonitoredTrainingSession(
            master=server.target,
            is_chief=is_chief,
            checkpoint_dir=FLAGS.train_logs,
            hooks=hooks,
        ) as mon_sess:
            while not mon_sess.should_stop():
                inputs, answers = images.next_batch(FLAGS.batch_size)
                mon_sess.run(train_op, feed_dict={x: inputs, labels: answers})


if __name__ == "__main__":
    tf.disable_eager_execution()
    parser = argparse.ArgumentParser()
    parser.add_argument("--ps_hosts", type=str, default="")
    parser.add_argument("--worker_hosts", type=str, default="")
    parser.add_argument("--job_name", type=str, default="")
    parser.add_argument("--task_index", type=int, default=0)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--train_steps", type=int, default=1_000_000)
    parser.add_argument("--train_logs", type=str, default=None)
    FLAGS, unparsed = parser.parse_known_args()
    tf.app.run(main=main, argv=[sys.argv[0], *unparsed])
