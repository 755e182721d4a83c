"""`ServerLauncher`: runs a script of TensorFlow as a parameter server of its job.

The script's process serves from the generation in which its cluster starts to the one in which it
has to start anew; workers come and go meanwhile.
"""

from __future__ import annotations

import logging
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from scavenger.protocol import Directive, Hello
from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import ControllerRefused, ControllerUnreachable
from worker_agent.launcher.environment import (
    fill_command,
    generation_environment,
    instrumented_environment,
)
from worker_agent.launcher.places import MachinePort, Placement, find_places, try_read
from worker_agent.launcher.server_cluster import (
    ServerCluster,
    cluster_key,
    cluster_name,
    find_tasks,
)
from worker_agent.launcher.spare_tasks import SpareTasks

log = logging.getLogger(__name__)

SERVER_POLL = 0.1
QUESTION_INTERVAL = 1.0  # seconds between two words to the controller; its answer is the Directive


class ServerLauncher:
    """Runs a command as the server that a job's Directives name.

    Args:
        settings: Settings of this machine.
        command: Program and arguments.
        environment: Environment that the command inherits.
    """

    def __init__(
        self, settings: WorkerEnv, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.settings, self.command = settings, list(command)
        self.environment = dict(environment)
        self.controller = ControllerClient(settings)
        self.port = MachinePort(settings.host)
        self.cluster: ServerCluster | None = None
        self.known = 0  # newest generation whose cluster is known
        self.newest: Directive | None = None
        self.hello_at = -QUESTION_INTERVAL
        self.child: subprocess.Popen[bytes] | None = None
        self.spare: SpareTasks | None = None
        self.is_ending = False

    def run(self) -> int:
        """Serve until this machine is told to end, or the process ends; returns the exit code."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            while not self.is_ending:
                if self.child is not None and (code := self.child.poll()) is not None:
                    return code
                self._follow(self._ask())
                time.sleep(SERVER_POLL)
            return 0
        finally:
            self._end_child()
            self.port.close()

    def _on_signal(self, *_: object) -> None:
        self.is_ending = True

    def _ask(self) -> Directive | None:
        """Return the newest Directive, as far as the controller answers."""
        if time.monotonic() - self.hello_at < QUESTION_INTERVAL:
            return self.newest
        self.hello_at = time.monotonic()
        hello = Hello(self.settings.worker, self.port.address, "server", "tensorflow")
        try:
            self.newest = self.controller.hello(hello).directive
        except ControllerUnreachable as error:
            log.debug("controller unreachable: %s", error)
        except ControllerRefused as error:
            log.warning("the controller does not want this server: %s", error)
        return self.newest

    def _follow(self, directive: Directive | None) -> None:
        """Do what a newer generation asks of this server, once its cluster is known."""
        if directive is None or directive.generation <= self.known:
            return
        if self.settings.worker not in [member.worker for member in directive.servers]:
            return
        try:
            text = try_read(directive.members[0].address, cluster_key(directive.generation))
            if text is None:
                return
            cluster = ServerCluster.from_json(text)
            if self.cluster is None or cluster.started != self.cluster.started:
                self._end_child()
                self._start_child(cluster, directive)
            else:
                self._forward_to_newcomers(cluster, directive)
        except OSError as error:
            log.info("generation %d: %s; trying again", directive.generation, error)

    def _start_child(self, cluster: ServerCluster, directive: Directive) -> None:
        """Serve from the start of a cluster on."""
        self.port.choose(cluster.started)
        place = [member.worker for member in cluster.servers].index(self.settings.worker)
        servers, workers = (
            find_places([each.address for each in group], cluster.started, self._is_superseded)
            for group in (cluster.servers, cluster.first_tasks)
        )
        if servers is None or workers is None:
            return
        placement = Placement(tuple(workers), place, place, servers=tuple(servers), kind="ps")
        name = cluster_name(self.settings.job, cluster)
        self.spare = SpareTasks(name, range(cluster.capacity))
        self.spare.workers = dict(
            zip((task.index for task in cluster.first_tasks), workers, strict=True)
        )
        environment = generation_environment(
            self.environment, directive, placement, self.settings.job
        )
        added = {"SCAVENGER_SPARE_TASKS": ",".join(self.spare.addresses[len(workers) :])}
        self.child = subprocess.Popen(
            fill_command(self.command, placement), env=instrumented_environment(environment, added)
        )
        self.cluster, self.known = cluster, directive.generation

    def _forward_to_newcomers(self, cluster: ServerCluster, directive: Directive) -> None:
        assert self.spare is not None
        workers = find_tasks(cluster)
        if workers is None:
            return
        self.spare.workers = workers
        self.cluster, self.known = cluster, directive.generation

    def _is_superseded(self) -> bool:
        """Whether a newer generation than the one that is being formed is there."""
        before, newest = self.newest, self._ask()
        return self.is_ending or newest != before

    def _end_child(self) -> None:
        """End the server's process; what it held is in the chief's checkpoint, or lost."""
        if self.child is not None:
            self.child.kill()  # TensorFlow's servers ignore other signals
            self.child.wait()
        if self.spare is not None:
            self.spare.close()
        self.child = self.spare = self.cluster = None
