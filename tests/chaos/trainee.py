"""An ordinary training script in float64, whose connections break when it is told so.

It writes down every attempt at an iteration before the last gradient is sent, so that all
that others apply has been written down, and its weights in the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlsplit

import worker_agent
import worker_agent.rendezvous.rendezvous as rendezvous
import worker_agent.training.elastic
from tests.chaos.networks import SAMPLES, SEED, find_network

ENDS = (signal.SIGKILL, signal.SIGSTOP)
TWICE = "TWICE"
DROP = signal.SIGUSR1  # shut down the connections to other workers
DUMP = signal.SIGUSR2  # write down where every thread is


def main() -> None:
    """Train until told to stop."""
    listen_for_drops()
    hurry()
    look_out_for_traps()
    pace, strategy = float(os.environ["PACE"]), os.environ["SCAVENGER_STRATEGY"]
    network = find_network(os.environ["FRAMEWORK"])(float(os.environ["DROPOUT"]))
    worker = os.environ["SCAVENGER_WORKER"]
    if (position := os.environ.get("SCAVENGER_POSITION", "0")) != "0":
        follow(network, part_path(worker, position), pace)
        return
    is_minimised, is_late = strategy == "sandblaster", strategy == "pipedream"
    if is_minimised:
        repeat_when_told(worker)
    with open(f"{worker}.jsonl", "w", buffering=1) as out:
        with worker_agent.session(deterministic=not is_minimised) as job:
            network.prepare(job)
            known = None
            for indices in job.batches(SAMPLES, 24, epochs=1, seed=SEED):
                if not is_minimised and not job.is_rehearsing:
                    out.write(json.dumps(describe(job, indices)) + "\n")
                elif is_minimised and job.strategy.evaluation != known:
                    known = job.strategy.evaluation
                    out.write(json.dumps(describe_visit(job, network)) + "\n")
                network.pass_batch(job, indices)
                network.step()
                time.sleep(pace)
            if not is_late:
                write_end(job, network, out)
        if is_late:  # all minibatches end as the session does
            write_end(job, network, out)


def write_end(job: Any, network: Any, out: TextIO) -> None:
    """Write down how training ended, and with which weights."""
    is_shared = "SCAVENGER_LAYOUT" in os.environ
    if is_shared:
        part = part_path(os.environ["SCAVENGER_WORKER"], "0")
        part.write_text(json.dumps(network.own_weights()))
    weights = [] if is_shared else network.weights()
    end = {"ended": job.finished, "samples": job.samples, "weights": weights}
    out.write(json.dumps(end) + "\n")


def follow(network: Any, part: Path, pace: float) -> None:
    """Train as one of the processes that follow, and write down this one's weights in the end."""
    is_late = os.environ["SCAVENGER_STRATEGY"] == "pipedream"
    with worker_agent.session(deterministic=True) as job:
        network.prepare(job)
        for indices in job.batches(SAMPLES, 24, epochs=1, seed=SEED):
            network.pass_batch(job, indices)
            network.step()
            time.sleep(pace)
        if not is_late:
            part.write_text(json.dumps(network.own_weights()))
    if is_late:
        part.write_text(json.dumps(network.own_weights()))


def part_path(worker: str, position: str) -> Path:
    """Return the file with what one of several processes has of the weights in the end."""
    return Path(f"{worker}.{position}.part")


def describe(job: Any, indices: Any) -> dict[str, Any]:
    """Return what the judge wants to know of an attempt."""
    directive = job.directive
    return {
        "turn": [directive.generation, directive.revision],
        "members": [member.worker for member in directive.members],
        "batch": directive.config.global_batch,
        "iteration": job.iteration,
        "start": job.samples,
        "indices": indices.tolist(),
        "at": time.monotonic(),
        "begun": getattr(job.model_steps, "begun", 0),
    }


def describe_visit(job: Any, network: Any) -> dict[str, Any]:
    """Return what the judge wants to know of an evaluation of L-BFGS."""
    return {
        "generation": job.directive.generation,
        "evaluation": job.strategy.evaluation,
        "weights": network.weights(),
        "at": time.monotonic(),
    }


def hurry() -> None:
    """Shorten the agent's patience, as everything here is over in seconds."""
    rendezvous.ARRIVAL_TIMEOUT, rendezvous.BARRIER_TIMEOUT = 1.0, 1.5


def look_out_for_traps() -> None:
    """Die or stop right before coming to a change that all others come to, if so told."""
    barrier = rendezvous.StoreRendezvous.barrier
    traps = {trap(os.environ["SCAVENGER_WORKER"], end.name): end for end in ENDS}

    def trapped(rendezvous: Any, *arguments: Any, may_abort: bool) -> None:
        for path, number in traps.items():
            if may_abort and path.exists():
                path.unlink()
                os.kill(os.getpid(), number)
        barrier(rendezvous, *arguments, may_abort=may_abort)

    rendezvous.StoreRendezvous.barrier = trapped  # type: ignore[method-assign]


def repeat_when_told(worker: str) -> None:
    """Push a result twice, if so told."""
    from worker_agent.parameter_server.lbfgs_client import EvaluationClient

    push, path = EvaluationClient.accumulate, trap(worker, TWICE)

    def pushed(client: Any, *arguments: Any) -> Any:
        if path.exists():
            path.unlink()
            push(client, *arguments)
        return push(client, *arguments)

    EvaluationClient.accumulate = pushed  # type: ignore[method-assign]


def trap(worker: str, what: str) -> Path:
    """Return the file that is a trap for a worker, in its directory."""
    return Path(f"{worker}.{what}")


def listen_for_drops() -> None:
    """Drop connections on a thread of its own: the main thread may be waiting for others.

    The zygote has blocked the signal for all threads.
    """

    def listen() -> None:
        while True:
            signal.sigwait([DROP])
            drop_connections()

    threading.Thread(target=listen, daemon=True).start()


def drop_connections() -> None:
    """Shut down all connections to other workers, in both directions."""
    sockets = opened_sockets()
    controller = urlsplit(os.environ["SCAVENGER_CONTROLLER"]).port
    ends = {address(each.getsockname) for each in sockets}
    for each in sockets:
        peer = address(each.getpeername)
        is_own = peer in ends  # nothing lies between a process and itself
        if peer is not None and peer[1] != controller and not is_own:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
    for each in sockets:
        each.close()


def opened_sockets() -> list[socket.socket]:
    """Return this process's TCP sockets, as copies."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            copy = os.dup(int(number))
            try:
                found.append(socket.socket(fileno=copy))
            except OSError:
                os.close(copy)
    return [each for each in found if each.family in (socket.AF_INET, socket.AF_INET6)]


def address(name: Any) -> tuple[str, int] | None:
    """Return one end of a connection, if it has that end."""
    try:
        host, port = name()[:2]
    except OSError:
        return None
    return str(host).removeprefix("::ffff:"), int(port)
