"""What the machines of an asynchronous script of TensorFlow run: servers, and one coordinator.

The process of each worker only serves: a coordinator, a further process of the same script on the
first worker's machine, schedules what it computes. A worker has no state, so it is started again at
its place when it is lost, and others train meanwhile.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace

from worker_agent.launcher.places import Placement, reserve_port
from worker_agent.launcher.server_cluster import ServerCluster, cluster_name, find_tasks
from worker_agent.launcher.spare_tasks import SpareTasks

log = logging.getLogger(__name__)

RESTART_PAUSE = 1.0  # seconds between two starts of a worker
RESTARTED = "the worker of this machine has ended with code %d: it starts again"
# Without it a worker that is lost for a moment counts as lost for ever.
COORDINATOR_VARIABLES = {"GRPC_FAIL_FAST": "use_caller"}


class Coordination:
    """What the first worker's machine does for a coordinator.

    Args:
        job: Id of the job.
        host: Address of this machine.
        cluster: Who trains.
        worker: Place of this machine's worker.
        process: The process there.
        restart: Starts that again.

    Attributes:
        placement: Place of the coordinator.
    """

    def __init__(
        self,
        job: str,
        host: str,
        cluster: ServerCluster,
        worker: Placement,
        process: subprocess.Popen[bytes],
        restart: Callable[[], subprocess.Popen[bytes]],
    ) -> None:
        self.process, self.restart = process, restart
        self.started_at = time.monotonic()
        self.kept = reserve_port(host)
        self.spare = SpareTasks(cluster_name(job, cluster), range(cluster.given))
        self.behind: ServerCluster | None = cluster
        self.placement = replace(
            worker,
            workers=tuple(self.spare.addresses),
            task=0,
            kind="chief",
            coordinator=f"{host}:{self.kept.getsockname()[1]}",
        )

    def follow(self, cluster: ServerCluster) -> None:
        """Reach other workers from now on, once they are there."""
        self.behind = cluster

    def advance(self) -> None:
        """Do what can be done without waiting, and keep the worker of this machine running."""
        workers = None if self.behind is None else find_tasks(self.behind)
        if workers is not None:
            self.spare.workers, self.behind = workers, None
        code = self.process.poll()
        if code is not None and time.monotonic() - self.started_at > RESTART_PAUSE:
            log.warning(RESTARTED, code)
            self.process, self.started_at = self.restart(), time.monotonic()

    def close(self) -> None:
        """End the worker of this machine, and reach no other any more."""
        self.process.kill()  # TensorFlow's servers ignore other signals
        self.process.wait()
        self.spare.close()
        self.kept.close()
