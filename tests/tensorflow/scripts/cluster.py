"""Run a script as the coordinator of workers and a server, as four machines would.

Its first argument: how many workers. The rest is the script and its arguments.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack

HOST = "127.0.0.1"


def main() -> int:
    workers = int(sys.argv[1])
    tasks = [("chief", 0), ("ps", 0), *(("worker", index) for index in range(workers))]
    with ExitStack() as kept:
        cluster: dict[str, list[str]] = {}
        for kind, _ in tasks:
            cluster.setdefault(kind, []).append(f"{HOST}:{free_port(kept)}")
        coordinator, *others = [start(cluster, kind, index) for kind, index in tasks]
        code = coordinator.wait()
        for process in others:  # a server never ends by itself
            process.kill()
            process.wait()
        return abs(code)


def free_port(kept: ExitStack) -> int:
    """Bind a port without listening, so that no other program gets it."""
    taken = kept.enter_context(socket.socket())
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("", 0))
    return int(taken.getsockname()[1])


def start(cluster: dict[str, list[str]], kind: str, index: int) -> subprocess.Popen[bytes]:
    config = json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})
    command = [sys.executable, *sys.argv[2:]]
    return subprocess.Popen(command, env={**os.environ, "TF_CONFIG": config})


if __name__ == "__main__":
    sys.exit(main())
