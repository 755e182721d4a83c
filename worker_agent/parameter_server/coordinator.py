"""The coordinator of a Sandblaster job, a process of its own beside the first server.

``python -m worker_agent.parameter_server.coordinator HOST:PORT``, with the first server's address.
It sees scalars only: it tells the servers which vectors to combine, hands batches to the workers
through the first server's board, and keeps its state there. When it dies, that server starts
another one, which goes on from the same state through the same points.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import numpy as np

from worker_agent.errors import GenerationBroken
from worker_agent.frameworks import load_line_search_rule
from worker_agent.parameter_server.client import ParameterServerClient
from worker_agent.parameter_server.lbfgs import (
    LbfgsState,
    LineSearchRule,
    Trial,
    accept,
    begin_search,
    begin_trial,
    choose_direction,
    choose_step,
    direction_name,
    end_trial,
    gradient_name,
    gram_names,
    pair_names,
    point_name,
    settle,
)
from worker_agent.parameter_server.lbfgs_client import CoordinatorClient
from worker_agent.parameter_server.lbfgs_messages import (
    BoardReply,
    CombineRequest,
    CommitRequest,
    SaveRequest,
)
from worker_agent.settings import read_settings
from worker_agent.transport.connection import never_abort

log = logging.getLogger(__name__)

RETRY_EVERY = 0.2  # seconds between two tries to go on
WARN_EVERY = 30.0  # seconds without servers after which a line says so, and then again
QUICK_END, LONGEST_PAUSE = 5.0, 30.0  # seconds; who ends sooner than that is started less often


def main() -> int:
    """Coordinate until the first server is gone."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    settings = read_settings()
    if settings is None or len(sys.argv) < 2:
        print("a parameter server starts this program", file=sys.stderr)
        return 2
    rule: LineSearchRule = load_line_search_rule()
    coordinate(sys.argv[-1], settings.job_secret, rule)
    return 0


def coordinate(first: str, secret: str, rule: LineSearchRule) -> None:
    """Coordinate the job that the first server has, until that does not answer any more."""
    warned_at = time.monotonic()  # to begin with, the leader fills the servers
    while True:
        try:
            alone = ParameterServerClient([first], secret, never_abort)
        except GenerationBroken:
            return
        try:
            board = CoordinatorClient(alone).load()
            client = ParameterServerClient(board.servers, secret, never_abort)
        except GenerationBroken as error:
            if time.monotonic() >= warned_at + WARN_EVERY:
                log.warning("no servers to coordinate: %s", error)
                warned_at = time.monotonic()
        else:
            try:
                coordinator = Coordinator(CoordinatorClient(client), board, rule)
                while coordinator.advance():
                    pass
            except GenerationBroken as error:
                log.info("begins again with what the servers have: %s", error)
            finally:
                client.close()
        finally:
            alone.close()
        time.sleep(RETRY_EVERY)


class Coordinator:
    """Moves the vectors of a job from one state to the next.

    Every request may be repeated, and none depends on more than the state that was saved last. So
    a coordinator may end anywhere.

    Args:
        servers: What it asks.
        board: What it begins with.
        rule: What a line search does next.
    """

    def __init__(self, servers: CoordinatorClient, board: BoardReply, rule: LineSearchRule) -> None:
        self.servers, self.rule = servers, rule
        self.start, self.term = board.start, board.term
        self.options, self.state = board.options, board.state

    def advance(self) -> bool:
        """Take one step; False if nothing is left to do.

        Raises:
            GenerationBroken: A server is lost, or L-BFGS has begun anew.
        """
        if self.state.has_converged:
            return False
        if self.state.loss is None:
            self._evaluate_point()
        elif self.state.search is None:
            self._find_direction()
        else:
            self._search()
        return True

    def _evaluate_point(self) -> None:
        state = self.state
        if state.repeats is not None:
            self.servers.combine(
                CombineRequest(
                    out=point_name(state.point),
                    names=(point_name(state.repeats),),
                    coefficients=(1.0,),
                    evaluation=state.point,
                    keep=tuple(state.vectors),
                )
            )
        self._save(replace(state, loss=self._evaluate(state.point), repeats=None))

    def _find_direction(self) -> None:
        state = self.state
        if state.step is not None:
            origin, step = state.step
            s, y = pair_names(state.point)
            gradients = gradient_name(state.point), gradient_name(origin)
            self.servers.combine(CombineRequest(s, (direction_name(origin),), (step,)))
            self.servers.combine(CombineRequest(y, gradients, (1.0, -1.0)))
        products, sums, largest = self.servers.gram(gram_names(state))
        direction = choose_direction(self.options, state, products)
        if not np.isfinite(direction.coefficients).all():
            self._save(settle(self.options, state))
            return
        made = CombineRequest(
            out=direction_name(state.point),
            names=tuple(direction.names),
            coefficients=tuple(direction.coefficients.tolist()),
        )
        self._save(
            begin_search(
                self.options,
                direction,
                largest=self.servers.combine(made),
                gradient_sum=float(sums[-1]),
                gradient_largest=float(largest[-1]),
            )
        )

    def _search(self) -> None:
        """Make the next trial, or end the search."""
        search = self.state.search
        assert search is not None
        if search.pending is None:
            chosen = choose_step(search, self.rule)
            if not isinstance(chosen, float):
                self._save(accept(self.options, self.state, chosen))
                return
            self.state = begin_trial(self.state, chosen)
        self._try_pending(self.state)

    def _try_pending(self, state: LbfgsState) -> None:
        assert state.search is not None
        assert state.search.pending is not None
        evaluation, step = state.search.pending
        direction = direction_name(state.point)
        self.servers.combine(
            CombineRequest(
                out=point_name(evaluation),
                names=(point_name(state.point), direction),
                coefficients=(1.0, step),
                evaluation=evaluation,
                keep=tuple(state.vectors),
            )
        )
        loss = self._evaluate(evaluation)
        products, _, largest = self.servers.gram([gradient_name(evaluation), direction])
        found = Trial(evaluation, step, loss, float(products[0, 1]), float(largest[0]))
        self.state = end_trial(state, found)

    def _evaluate(self, evaluation: int) -> float:
        """Have the workers compute loss and gradient at a point; returns the loss."""
        self.servers.save(SaveRequest(self.start, self.term, self.state, evaluation))
        known = 0
        while True:
            accepted = self.servers.wait(evaluation, known)
            fresh = accepted.runs[known:]
            self.servers.commit(CommitRequest(evaluation, fresh, accepted.is_over))
            known = len(accepted.runs)
            if accepted.is_over:
                return accepted.loss / self.options.batch

    def _save(self, state: LbfgsState) -> None:
        self.state = state
        self.servers.save(SaveRequest(self.start, self.term, state, None))


class CoordinatorHandle(Protocol):
    """A coordinator that runs."""

    def wait(self) -> int:
        """Wait for its end; returns its exit code."""

    def kill(self) -> None:
        """End it at once."""


def launch_coordinator(first: str) -> CoordinatorHandle:
    """Start a coordinator for the job of a server."""
    command = [sys.executable, "-m", "worker_agent.parameter_server.coordinator", first]
    return subprocess.Popen(command)


class CoordinatorKeeper:
    """Keeps one coordinator running beside the first server.

    Args:
        launch: Starts one for the server with this address.
    """

    def __init__(self, launch: Callable[[str], CoordinatorHandle] = launch_coordinator) -> None:
        self.launch = launch
        self.lock = threading.Lock()
        self.running: CoordinatorHandle | None = None
        self.is_kept = False
        self.is_closing = threading.Event()

    def keep(self, first: str) -> None:
        """Start a coordinator, and another one whenever it has ended; returns at once."""
        with self.lock:
            is_kept, self.is_kept = self.is_kept, True
        if not is_kept:
            threading.Thread(target=self._keep, args=(first,), daemon=True).start()

    def close(self) -> None:
        """End it."""
        with self.lock:
            self.is_closing.set()
            if self.running is not None:
                self.running.kill()

    def _keep(self, first: str) -> None:
        pause = RETRY_EVERY
        while True:
            with self.lock:
                if self.is_closing.is_set():
                    return
                self.running = running = self.launch(first)
            began = time.monotonic()
            code = running.wait()
            is_failing = code > 0 and time.monotonic() - began < QUICK_END
            pause = min(pause * 2, LONGEST_PAUSE) if is_failing else RETRY_EVERY
            if self.is_closing.wait(pause):
                return
            log.warning("the coordinator ended with code %d: another one goes on", code)


if __name__ == "__main__":
    sys.exit(main())
