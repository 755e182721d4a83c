"""`SyncReplicasGraph`: what a graph of ``SyncReplicasOptimizer`` is given when it is built.

A vector of a few numbers travels as one more gradient: TensorFlow's own accumulators average it
over exactly the gradients that a step takes. The servers compute ||mean gradient||² beside the
update and write a row of both into a ring, which the chief reads.

The workers of a step are a variable on the servers, too. Each update first writes down, as a
*claim*, its step and the workers it waits for; who is named there contributes one gradient, and
no other worker does. So workers come and go without a word of the others, and without a step that
counts a gradient twice.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from worker_agent.launcher.patch import Patch
from worker_agent.launcher.server_cluster import MIN_TASKS
from worker_agent.settings import InstrumentationSettings
from worker_agent.tensorflow.traced_step import squared_norm, values_of

v1 = tf.compat.v1
log = logging.getLogger(__name__)

RING_ROWS = 1024  # so many steps may pass between two looks at them


@dataclass(frozen=True, slots=True)
class ServerRowLayout:
    """Columns of a row: what its update knew, and then the mean of what travelled.

    The step, the workers it waited for, ||mean gradient||², when it ended; then ||g_k||², samples,
    and for each task whether it contributed, its compute time, and the time that everything else
    took it in the step before.

    Attributes:
        tasks: Tasks that there may be.
    """

    tasks: int

    STEP, WORKERS, MEAN, ENDED, LOCAL, SAMPLES, TIMES = range(7)

    @property
    def columns(self) -> int:
        return self.TIMES + 3 * self.tasks

    def per_task(self, row: Any, place: int) -> Any:
        """Return one of the three parts that have a number for each task."""
        start = self.TIMES + place * self.tasks
        return row[start : start + self.tasks]


@dataclass(slots=True)
class SyncReplicasGraph:
    """What the process that trains in a graph reads and writes on its servers.

    Attributes:
        optimizer: The ``SyncReplicasOptimizer``.
        task: Index of this process among the workers.
        layout: Columns of its rows.
        members: 1 for each task that takes part.
        claim: The step that is under way, and 1 for each task that it waits for; -1 before any.
        ring: Rows of the last steps.
        sync_time: Of this process: what its last step took beside its own computing.
        operations: What is done by name, made once.
    """

    optimizer: Any
    task: int
    layout: ServerRowLayout
    members: Any
    claim: Any
    ring: Any
    sync_time: Any
    operations: dict[str, Any] = field(default_factory=dict)


GRAPHS: weakref.WeakKeyDictionary[Any, SyncReplicasGraph] = weakref.WeakKeyDictionary()


class SyncReplicas:
    """Measures ``SyncReplicasOptimizer``, and lets its workers change in a job.

    Args:
        settings: What the launcher wants of this process.
        announce: Told why nothing is measured.
    """

    def __init__(self, settings: InstrumentationSettings, announce: Callable[[str], None]) -> None:
        self.settings, self.announce = settings, announce
        self.building: GraphBuilder | None = None

    @property
    def is_elastic(self) -> bool:
        """Whether the workers are those of the job, instead of those that the script names."""
        return self.settings.tasks > 0

    def patches(self, optimizer: Any) -> tuple[Patch, ...]:
        """Return the patches of the class."""
        return (
            Patch(optimizer, "apply_gradients", before=self._before, result=self._after),
            Patch(optimizer, "get_init_tokens_op", before=self._before_tokens),
        )

    def _before(
        self, optimizer: Any, pairs: Any, global_step: Any = None, name: Any = None
    ) -> tuple[Any, ...] | None:
        """Let the vector travel with the gradients."""
        self.building = None
        pairs = list(pairs)
        live = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        if global_step is None or not live:
            return None
        building = GraphBuilder(self.settings, optimizer, live, global_step)
        vector = building.begin()
        self.building = building
        return optimizer, [*pairs, (vector, building.probe)], global_step, name

    def _after(self, train_op: Any, *_: Any) -> Any:
        building, self.building = self.building, None
        return None if building is None else building.finish(train_op)

    def _before_tokens(self, optimizer: Any, num_tokens: int = -1) -> tuple[Any, ...] | None:
        """Give out no tokens at the start, with which one worker would contribute twice."""
        return (optimizer, 0) if self.is_elastic and num_tokens == -1 else None


@dataclass(frozen=True, slots=True)
class ProbeVariable:
    """Stands for a variable where the vector is accumulated; nothing is ever assigned to it."""

    device: str
    size: int
    name: str = "scavenger/probe"

    def get_shape(self) -> Any:
        return tf.TensorShape([self.size])


class InnerOptimizer:
    """The script's optimizer, which does not see the vector that travelled."""

    def __init__(self, optimizer: Any, on_mean: Callable[[Sequence[Any], Any], Any]) -> None:
        self.optimizer, self.on_mean = optimizer, on_mean

    def __getattr__(self, name: str) -> Any:
        return getattr(self.optimizer, name)

    def apply_gradients(self, pairs: Any, global_step: Any = None, name: Any = None) -> Any:
        *pairs, (vector, _) = list(pairs)
        recorded = self.on_mean(pairs, vector)
        return tf.group(self.optimizer.apply_gradients(pairs, global_step, name), recorded)


class GraphBuilder:
    """Adds to one graph, while ``apply_gradients`` runs.

    Args:
        settings: What the launcher wants of this process.
        optimizer: The ``SyncReplicasOptimizer``.
        live: Its gradients and their variables.
        global_step: The script's count of steps, on the first server.
    """

    def __init__(
        self,
        settings: InstrumentationSettings,
        optimizer: Any,
        live: Sequence[tuple[Any, Any]],
        global_step: Any,
    ) -> None:
        self.settings, self.optimizer, self.live = settings, optimizer, live
        self.global_step = global_step
        self.is_elastic = settings.tasks > 0
        self.layout = ServerRowLayout(settings.tasks or MIN_TASKS)
        self.here = tf.no_op().device  # of this worker, as the script's device scope says
        told = tf.DeviceSpec.from_string(self.here).task
        self.task = min(settings.rank if told is None else told, self.layout.tasks - 1)
        size = self.layout.columns - self.layout.LOCAL
        self.probe = ProbeVariable(global_step.device, size)
        self.before = optimizer._opt, optimizer._replicas_to_aggregate, optimizer._tokens_per_step

    def begin(self) -> Any:
        """Return the vector that travels."""
        layout, optimizer = self.layout, self.optimizer
        initial = [float(task < self.settings.workers) for task in range(layout.tasks)]
        with on_device(self.global_step.device):
            members = make_shared(tf.constant(initial, tf.float64), "members")
            nothing = tf.fill([1 + layout.tasks], tf.constant(-1, tf.float64))
            claim = make_shared(nothing, "claim")
            ring = make_shared(tf.zeros([RING_ROWS, layout.columns], tf.float64), "ring")
            step = tf.cast(self.global_step.read_value(), tf.float64)
            if self.is_elastic:
                claimed = tf.concat([[step], members.read_value()], 0)
                with tf.control_dependencies([claim.assign(claimed, read_value=False)]):
                    self.claimed = tf.identity(claimed)
            else:
                self.claimed = tf.stack([step, tf.cast(self.before[1], tf.float64)])
            self.workers = tf.reduce_sum(self.claimed[1:])
        with on_device(self.here):
            sync_time = make_shared(tf.constant(0.0), "sync_time")
            vector = self._vector(sync_time)
        self.graph = SyncReplicasGraph(
            optimizer, self.task, layout, members, claim, ring, sync_time
        )
        optimizer._opt = InnerOptimizer(self.before[0], self._record)
        if self.is_elastic:
            count = tf.cast(self.workers, tf.int32)
            optimizer._replicas_to_aggregate = optimizer._tokens_per_step = count
        return vector

    def _vector(self, sync_time: Any) -> Any:
        gradients = [values_of(gradient) for gradient, _ in self.live]
        began_at = tf.timestamp()
        reads = weights_read([variable for _, variable in self.live])
        with tf.control_dependencies(tf.raw_ops.IdentityN(input=reads) if reads else [began_at]):
            self.pulled_at = tf.timestamp()
        with tf.control_dependencies(gradients):
            self.ready_at = tf.timestamp()
        self.began_at = began_at
        local = tf.add_n([squared_norm(gradient) for gradient, _ in self.live])
        own = tf.one_hot(self.task, self.layout.tasks)
        # The clock that notes the last weight may run after the gradients of a small model.
        compute = tf.cast(tf.maximum(self.ready_at - self.pulled_at, 0.0), tf.float32)
        samples = samples_of(gradients)
        head = tf.stack([local, samples])
        return tf.concat([head, own, own * compute, own * sync_time.read_value()], 0)

    def _record(self, pairs: Sequence[tuple[Any, Any]], vector: Any) -> Any:
        """Return the operation that writes a row, beside the update and not before it."""
        norms = []
        for mean, variable in pairs:
            if mean is not None:
                with on_device(variable.device):
                    norms.append(squared_norm(mean))
        with on_device(self.global_step.device):
            total = tf.cast(tf.add_n(norms), tf.float64)
            with tf.control_dependencies([total, vector]):
                ended_at = tf.timestamp()
            head = tf.stack([self.claimed[0], self.workers, total, ended_at])
            row = tf.concat([head, tf.cast(vector, tf.float64)], 0)
            place = tf.cast(self.claimed[0], tf.int64) % RING_ROWS
            return tf.raw_ops.ResourceScatterUpdate(
                resource=self.graph.ring.handle, indices=[place], updates=[row]
            )

    def finish(self, train_op: Any) -> Any:
        """Give the script its optimizer back; returns what it runs in each step."""
        optimizer, graph = self.optimizer, self.graph
        optimizer._opt, optimizer._replicas_to_aggregate, optimizer._tokens_per_step = self.before
        with on_device(self.here), tf.control_dependencies([train_op]):
            token = tf.identity(train_op)
            with tf.control_dependencies([token]):
                waited = tf.timestamp() - self.ready_at + self.pulled_at - self.began_at
            noted = graph.sync_time.assign(tf.cast(waited, tf.float32), read_value=False)
        with tf.control_dependencies([noted]):
            token = tf.identity(token)
        started = graph.sync_time.initializer
        shared = [each.initializer for each in (graph.members, graph.claim, graph.ring)]
        optimizer.local_step_init_op = tf.group(optimizer.local_step_init_op, started)
        optimizer.chief_init_op = tf.group(optimizer.chief_init_op, started, *shared)
        graph.operations = self._operations()
        GRAPHS[v1.get_default_graph()] = graph
        return token

    def _operations(self) -> dict[str, Any]:
        graph, optimizer, step_type = self.graph, self.optimizer, self.global_step.dtype.base_dtype
        with on_device(self.global_step.device):
            first, step = v1.placeholder(tf.int64, []), v1.placeholder(step_type, [])
            task, is_member = v1.placeholder(tf.int64, []), v1.placeholder(tf.float64, [])
            now = graph.claim.read_value()[0] if self.is_elastic else self.global_step.read_value()
            steps = tf.range(first, tf.cast(now, tf.int64))
            rows = tf.gather(graph.ring.read_value(), steps % RING_ROWS)
            changed = tf.raw_ops.ResourceScatterUpdate(
                resource=graph.members.handle, indices=[task], updates=[is_member]
            )
            token = optimizer._sync_token_queue.enqueue(step)
        local_step = optimizer._local_step
        return {
            "first": first,
            "step": step,
            "task": task,
            "is member": is_member,
            "rows": rows,
            "claim": graph.claim.read_value(),
            "members": graph.members.read_value(),
            "set member": changed,
            "give token": token,
            "local step": local_step.read_value(),
            "set local step": v1.assign(local_step, step),
            "global step": self.global_step.read_value(),
        }


@contextmanager
def on_device(device: str) -> Iterator[None]:
    """Place what follows on a device, also within device scopes of the script."""
    with v1.device(None), v1.device(device):
        yield


def make_shared(value: Any, name: str) -> Any:
    """Return a variable that no saver and no collection of the script knows."""
    return ResourceVariable(
        value, trainable=False, collections=["scavenger"], name=f"scavenger/{name}"
    )


def weights_read(variables: Sequence[Any]) -> list[Any]:
    """Return the weights as the model reads them; one that it does not read would be sent twice."""
    reads = []
    for variable in variables:
        handle = getattr(variable, "handle", None)
        is_reference = handle is None  # of a graph without resources
        source: Any = variable.op.outputs[0] if is_reference else handle
        kind = "Identity" if is_reference else "ReadVariableOp"
        outputs = [each.outputs[0] for each in source.consumers() if each.type == kind]
        reads += [output for output in outputs if output.consumers()]
    return reads


def samples_of(gradients: Sequence[Any]) -> Any:
    """Return the length of the first input that the gradients are computed from; 0 if unknown."""
    seen, waiting = set(), [gradient.op for gradient in gradients]
    while waiting:
        operation = waiting.pop()
        if operation in seen:
            continue
        seen.add(operation)
        waiting += [each.op for each in operation.inputs]
    inputs = [each for each in seen if each.type in ("Placeholder", "IteratorGetNext")]
    for operation in sorted(inputs, key=lambda each: each.name):
        for output in operation.outputs:
            if output.consumers() and output.shape.rank and output.shape[0] != 1:
                return tf.cast(tf.shape(output)[0], tf.float32)
    return tf.constant(0.0)
