"""`ClusterMember`: a worker's machine in a cluster with parameter servers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from scavenger.protocol import Directive
from worker_agent.launcher.environment import read_departures, write_departures
from worker_agent.launcher.places import (
    MachinePort,
    Placement,
    find_places,
    find_port,
    try_read,
    wait_for,
)
from worker_agent.launcher.server_cluster import ServerCluster, cluster_key, stopped_key

# What a Directive means for the process on this machine: it trains on, stops at a boundary, ends
# at once because nothing is left to wait for, waits until others have done their part, or cannot
# do what is ordered.
Consequence = Literal["train on", "stop", "end", "wait", "refuse"]


class ClusterMember:
    """Tells what each Directive means for the process of one worker.

    Args:
        worker: This worker's id.

    Attributes:
        cluster: The cluster that the process is in; None while there is none.
        is_asynchronous: Whether a coordinator schedules what the workers do.
    """

    def __init__(self, worker: str) -> None:
        self.worker = worker
        self.cluster: ServerCluster | None = None
        self.is_asynchronous = False

    def place(
        self, directive: Directive, port: MachinePort, is_over: Callable[[], bool]
    ) -> Placement | None:
        """Return where to start the process in a generation; None if it is superseded.

        Raises:
            ConnectionError: Another machine does not answer.
        """
        cluster = self.cluster = self._find_cluster(directive, port, is_over)
        if cluster is None:
            return None
        addresses = [member.address for member in cluster.servers]
        servers = find_places(addresses, cluster.started, is_over)
        own = cluster.tasks[self.worker]
        rank = directive.rank_of(self.worker) or 0
        if own.since == cluster.started:
            first = [task.address for task in cluster.first_tasks]
            workers = find_places(first, cluster.started, is_over)
        else:
            # It talks to the servers only; scripts read how many there are.
            workers = [f"task-{index}.invalid:1" for index in range(own.index + 1)]
            mine = find_port(own.address, own.since, is_over)
            workers[own.index] = f"{own.address.rpartition(':')[0]}:{mine}"
        if servers is None or workers is None:
            return None
        return Placement(tuple(workers), own.index, rank, servers=tuple(servers))

    def consider(self, newest: Directive, port: MachinePort, departures: Path) -> Consequence:
        """Return what a newer Directive means for the process that runs.

        Args:
            newest: The Directive.
            port: Where this machine publishes what the others read.
            departures: File that tells the chief's process which tasks have left or are lost.
        """
        assert self.cluster is not None
        chief = next(iter(self.cluster.tasks))
        if chief == self.worker:
            tell_departures(departures, self.cluster, newest)
            return self._consider_as_chief(self.cluster, newest, port)
        published = self._peek(newest)
        if published is not None:
            if published.started != self.cluster.started:
                return "end"
            self.cluster = published
            if self.worker in published.tasks:
                return "train on"
            return "end" if self.is_asynchronous else "stop"
        # Who comes next waits until the chief has saved its state.
        is_next = newest.members[0].worker == self.worker
        address = self.cluster.tasks[chief].address
        is_free = newest.repairs or has_stopped(address, self.cluster.started)
        return "end" if is_next and is_free else "wait"

    def _consider_as_chief(
        self, cluster: ServerCluster, newest: Directive, port: MachinePort
    ) -> Consequence:
        adapted = cluster.replace_lost(newest) if self.is_asynchronous else cluster.adapt(newest)
        if adapted is not None:
            self.cluster = adapted
            port.publish(cluster_key(newest.generation), adapted.to_json())
            return "train on"
        if self.is_asynchronous and newest.servers == cluster.servers:
            return "refuse"
        # Without its servers it never comes to a boundary.
        return "stop" if newest.servers == cluster.servers else "end"

    def _find_cluster(
        self, directive: Directive, port: MachinePort, is_over: Callable[[], bool]
    ) -> ServerCluster | None:
        """Start the cluster of a generation as its chief, or read what its chief has published."""
        if directive.members[0].worker == self.worker:
            started = ServerCluster.start(directive)
            port.publish(cluster_key(directive.generation), started.to_json())
            return started
        key = cluster_key(directive.generation)
        text = wait_for(directive.members[0].address, key, is_over)
        return None if text is None else ServerCluster.from_json(text)

    def _peek(self, newest: Directive) -> ServerCluster | None:
        try:
            text = try_read(newest.members[0].address, cluster_key(newest.generation))
        except OSError:
            return None
        return None if text is None else ServerCluster.from_json(text)


def has_stopped(chief: str, started: int) -> bool:
    """Whether the chief of a cluster has saved its state and stopped, or its machine is gone."""
    try:
        return try_read(chief, stopped_key(started)) is not None
    except OSError:
        return True


def tell_departures(path: Path, cluster: ServerCluster, newest: Directive) -> None:
    """Tell the chief's process who is not to be waited for."""
    stayed = {(member.worker, member.address) for member in newest.members}
    gone = {
        task.index for worker, task in cluster.tasks.items() if (worker, task.address) not in stayed
    }
    if not gone:
        return
    known = read_departures(path)
    now = {index: newest.repairs or known.get(index, False) for index in gone}
    write_departures(path, known | now)
