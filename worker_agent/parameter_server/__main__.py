"""``python -m worker_agent.parameter_server``: the program of a machine with the role *server*."""

from __future__ import annotations

import logging
import signal
import sys
import threading

from scavenger.protocol import Hello
from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import ControllerRefused, ControllerUnreachable
from worker_agent.frameworks import load_shard_factory
from worker_agent.parameter_server.coordinator import CoordinatorKeeper
from worker_agent.parameter_server.server import ShardServer
from worker_agent.settings import read_settings

log = logging.getLogger(__name__)

HELLO_INTERVAL = 1.0  # seconds between two words to the controller


def main() -> int:
    """Serve until the machine is told to end."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells of every heartbeat
    settings = read_settings()
    if settings is None or not settings.job_secret:
        print(
            "SCAVENGER_JOB and SCAVENGER_JOB_SECRET must be set; the controller sets them when it "
            "starts a parameter server",
            file=sys.stderr,
        )
        return 2
    # Before the controller hears of this server: workers wait for whom the controller names.
    keeper = CoordinatorKeeper()
    server = ShardServer(settings.host, settings.job_secret, load_shard_factory(), keeper.keep)
    is_ending = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: is_ending.set())
    threading.Thread(target=server.serve, daemon=True).start()
    log.info("serving at %s", server.address)
    announce_until(settings, server.address, is_ending)
    keeper.close()
    server.close()
    return 0


def announce_until(settings: WorkerEnv, address: str, is_ending: threading.Event) -> None:
    """Keep telling the controller where this server is, until the machine ends."""
    controller = ControllerClient(settings)
    hello = Hello(settings.worker, address, "server")
    while not is_ending.is_set():
        try:
            controller.hello(hello)
        except ControllerUnreachable as error:
            log.debug("controller unreachable: %s", error)
        except ControllerRefused as error:
            log.warning("the controller does not want this server: %s", error)
        is_ending.wait(HELLO_INTERVAL)


if __name__ == "__main__":
    sys.exit(main())
