"""Run a script in two processes that TF_CONFIG names, as the launcher does on two machines."""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack

WORKERS = 2


def main() -> int:
    with ExitStack() as kept:
        places = [f"127.0.0.1:{free_port(kept)}" for _ in range(WORKERS)]
        started = [start(rank, places) for rank in range(WORKERS)]
        return max(abs(process.wait()) for process in started)


def free_port(kept: ExitStack) -> int:
    """Bind a port without listening, so that no other program gets it."""
    taken = kept.enter_context(socket.socket())
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    taken.bind(("", 0))
    return int(taken.getsockname()[1])


def start(rank: int, places: list[str]) -> subprocess.Popen[bytes]:
    task = {"type": "worker", "index": rank}
    config = json.dumps({"cluster": {"worker": places}, "task": task})
    told = {"TF_CONFIG": config, "RANK": str(rank), "WORLD_SIZE": str(WORKERS)}
    return subprocess.Popen([sys.executable, *sys.argv[1:]], env={**os.environ, **told})


if __name__ == "__main__":
    sys.exit(main())
