"""Torchrun: elastic agents of torch.distributed.run on this computer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

ENVIRONMENT = {
    # Without it, agents that share a computer never finish growing (torch 2.13).
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}
# All shorter than the defaults, which wait 30 s for more agents and 15 s for one that is gone.
RENDEZVOUS = "last_call_timeout=1,join_timeout=60,keep_alive_interval=1,keep_alive_max_attempt=3"
FAREWELL = 10.0


@dataclass
class Torchrun:
    """Agents that meet at one rendezvous, each with some workers.

    Attributes:
        directory: Where workers run and agents write their logs.
        command: The training command, without the interpreter.
        most: Agents there will be at most at a time.
    """

    directory: Path
    command: list[str]
    most: int
    agents: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port = free_port()

    def __enter__(self) -> Torchrun:
        return self

    def __exit__(self, *_: object) -> None:
        everything = [
            process
            for agent in self.agents.values()
            for process in psutil.Process(agent.pid).children(recursive=True)
        ]
        self.stop(*self.agents)
        for process in everything:
            if process.is_running():
                process.kill()

    def start(self, name: str, workers: int, environment: Mapping[str, str] | None = None) -> None:
        """Start an agent; it joins the others, who restart their workers."""
        words = [
            *("-m", "torch.distributed.run"),
            f"--nnodes=1:{self.most}",
            f"--nproc-per-node={workers}",
            "--max-restarts=1000",
            "--monitor-interval=0.1",
            "--local-addr=127.0.0.1",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{self.port}",
            "--rdzv-id=bench",
            f"--rdzv-conf={RENDEZVOUS}",
        ]
        with open(self.directory / f"{name}.log", "ab") as log:
            self.agents[name] = subprocess.Popen(
                [sys.executable, *words, *self.command],
                cwd=self.directory,
                env={**os.environ, **ENVIRONMENT, **(environment or {})},
                stdout=log,
                stderr=log,
            )

    def stop(self, *names: str) -> None:
        """End agents and their workers; those that remain restart theirs."""
        agents = [self.agents.pop(name) for name in names]
        for agent in agents:
            agent.terminate()
        for agent in agents:
            try:
                agent.wait(FAREWELL)
            except subprocess.TimeoutExpired:
                agent.kill()
                agent.wait()


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
