"""`ServerCluster`: who trains with parameter servers, under which index, and since when.

TensorFlow fixes a cluster when its servers start. So the servers know more tasks from the start
than there are workers: a worker that comes later takes the next free one, and the servers'
machines forward to it what is meant for that task. An index is never given twice, since a worker
that is gone may still have something under way.

The launcher of the chief, the first worker, adapts the cluster to each Directive and publishes it;
all other machines read it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from scavenger.protocol import Directive, Member
from worker_agent.launcher.places import port_key, read_quietly

MIN_TASKS = 64


@dataclass(frozen=True, slots=True)
class ClusterTask:
    """One worker of a cluster.

    Attributes:
        index: Its task index.
        address: ``host:port`` of its machine's store.
        since: Generation it entered the cluster in, and chose its port for.
    """

    index: int
    address: str
    since: int


@dataclass(frozen=True, slots=True)
class ServerCluster:
    """A cluster with parameter servers in one generation.

    Attributes:
        started: Generation in which its servers started.
        servers: The servers, by their task index.
        tasks: The workers by id, in rank order; the first is the chief.
        given: Task indexes that have been given so far.
        capacity: Task indexes that there are.
        local_batch: Samples per worker and iteration, which the script has read at its start.
        learning_rate_factor: What the script has read at its start, too.
    """

    started: int
    servers: tuple[Member, ...]
    tasks: Mapping[str, ClusterTask]
    given: int
    capacity: int
    local_batch: int
    learning_rate_factor: float

    @classmethod
    def start(cls, directive: Directive) -> ServerCluster:
        """Return a new cluster for a generation's members."""
        generation, members = directive.generation, directive.members
        return cls(
            started=generation,
            servers=directive.servers,
            tasks={
                member.worker: ClusterTask(rank, member.address, generation)
                for rank, member in enumerate(members)
            },
            given=len(members),
            capacity=max(MIN_TASKS, 2 * len(members)),
            local_batch=local_batch(directive),
            learning_rate_factor=learning_rate_factor(directive),
        )

    def adapt(self, directive: Directive) -> ServerCluster | None:
        """Return this cluster with a later generation's members; None if it must start anew.

        It goes on while its servers and its chief stay, and while the script need not know of the
        change.
        """
        first, (chief, known) = directive.members[0], next(iter(self.tasks.items()))
        if (
            directive.servers != self.servers
            or first != Member(chief, known.address)
            or local_batch(directive) != self.local_batch
            or learning_rate_factor(directive) != self.learning_rate_factor
        ):
            return None
        tasks, given = {}, self.given
        for member in directive.members:
            task = self.tasks.get(member.worker)
            if task is None or task.address != member.address:
                task = ClusterTask(given, member.address, directive.generation)
                given += 1
            tasks[member.worker] = task
        return replace(self, tasks=tasks, given=given) if given <= self.capacity else None

    def replace_lost(self, directive: Directive) -> ServerCluster | None:
        """Return this cluster with newcomers in the places of workers that are gone.

        Its tasks stay as many: a coordinator knows those that it has started with. None if it must
        start anew, or if the change is not the loss of a worker nor the end of one.
        """
        first, (chief, known) = directive.members[0], next(iter(self.tasks.items()))
        if directive.servers != self.servers or first != Member(chief, known.address):
            return None
        is_planned = not directive.repairs
        is_smaller = len(directive.members) < len(self.tasks)
        has_other_batch = directive.config.global_batch != self.local_batch * self.given
        if is_planned and (is_smaller or has_other_batch):
            return None
        held = {
            (worker, task.address): task
            for worker, task in self.tasks.items()
            if Member(worker, task.address) in directive.members
        }
        taken = {task.index for task in held.values()}
        free = iter(index for index in range(self.given) if index not in taken)
        tasks = {}
        for member in directive.members:
            task = held.get((member.worker, member.address))
            if task is None:
                index = next(free, None)
                if index is None:
                    return None
                task = ClusterTask(index, member.address, directive.generation)
            tasks[member.worker] = task
        return replace(self, tasks=tasks)

    @property
    def indexes(self) -> frozenset[int]:
        """Task indexes of the workers."""
        return frozenset(task.index for task in self.tasks.values())

    @property
    def first_tasks(self) -> Sequence[ClusterTask]:
        """The workers of the start that are still there, by their index."""
        first = [task for task in self.tasks.values() if task.since == self.started]
        return sorted(first, key=lambda task: task.index)

    def to_json(self) -> str:
        return _ADAPTER.dump_json(self).decode()

    @classmethod
    def from_json(cls, text: str) -> ServerCluster:
        """Read what another machine published; raises ValueError if it is no cluster."""
        return _ADAPTER.validate_json(text)


_ADAPTER = TypeAdapter(ServerCluster)


def local_batch(directive: Directive) -> int:
    """Return the samples of one worker, as a script reads them from its environment."""
    return directive.config.global_batch // directive.config.workers


def learning_rate_factor(directive: Directive) -> float:
    """Return the factor on the learning rate, as a script reads it from its environment."""
    return directive.learning_rate.factor(directive.config.global_batch)


def cluster_key(generation: int) -> str:
    """Return the key under which the chief publishes the cluster of a generation."""
    return f"cluster/{generation}"


def stopped_key(started: int) -> str:
    """Return the key that tells that the chief of a cluster has stopped and saved its state."""
    return f"stopped/{started}"


def cluster_name(job: str, cluster: ServerCluster) -> str:
    """Return a name that no other cluster on the same computer has."""
    return f"{job}/{cluster.started}/{cluster.servers[0].address}"


def find_tasks(cluster: ServerCluster) -> dict[int, str] | None:
    """Return ``host:port`` of each worker's process by its task; None until all have told it."""
    found = {}
    for task in cluster.tasks.values():
        port = read_quietly(task.address, port_key(task.since))
        if port is None:
            return None
        found[task.index] = f"{task.address.rpartition(':')[0]}:{port}"
    return found
