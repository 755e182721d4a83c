"""`ServerTraining`: one process of a job that trains with TensorFlow's parameter servers.

The chief reads what was measured, and saves: while it holds its own gradient back, the servers can
make no step. Other workers join at the step that the servers claim them for, and leave at one that
they are not claimed for.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from worker_agent.errors import StateRefused
from worker_agent.launcher.environment import read_departures, stop_process
from worker_agent.launcher.patch import Patch
from worker_agent.launcher.step_records import MeasuredStep
from worker_agent.settings import InstrumentationSettings
from worker_agent.state.checkpoints import Checkpointer
from worker_agent.state.codec import decode_state
from worker_agent.state.progress import TrainingProgress, TrainingSnapshot
from worker_agent.tensorflow.server_rows import ServerRows
from worker_agent.tensorflow.state import (
    KERAS_STATE_ERRORS,
    arrays_in,
    random_states,
    restore_random_states,
    to_snapshot,
)
from worker_agent.tensorflow.sync_replicas import GRAPHS, SyncReplicas, SyncReplicasGraph
from worker_agent.tensorflow.warm_restart import SAVING_TIMEOUT

v1 = tf.compat.v1
log = logging.getLogger(__name__)

CLAIM_POLL = 0.002
CHIEF_POLL = 0.05
ROWS_PERIOD = 0.5
LEAVING_PATIENCE = 5.0  # seconds that a worker has to leave by itself
# TensorFlow's own would let newcomers and ends of a job take minutes.
RECOVERY_WAIT = 0.5
CLOSING_GRACE = 3.0


class ServerTraining:
    """Takes part in training with parameter servers.

    Args:
        settings: What the launcher wants of this process.
        announce: Told what is measured, or why nothing is.
        on_row: Takes every row.
    """

    def __init__(
        self,
        settings: InstrumentationSettings,
        announce: Callable[[str], None],
        on_row: Callable[[MeasuredStep], None],
    ) -> None:
        self.settings, self.announce, self.on_row = settings, announce, on_row
        self.graphs = SyncReplicas(settings, announce)
        self.session: Any = None
        self.graph: SyncReplicasGraph | None = None
        self.rows: ServerRows | None = None  # of the chief
        self.restored = TrainingProgress()
        self.checkpointer: Checkpointer | None = None
        if settings.checkpoints is not None and settings.tasks:
            self.checkpointer = Checkpointer.from_settings(Path(settings.checkpoints), settings)
        self.departed: dict[int, float] = {}
        self.own_call = threading.local()
        self.reading = threading.Lock()

    @property
    def has_begun(self) -> bool:
        """Whether this process trains with parameter servers."""
        return self.graph is not None

    @property
    def is_chief(self) -> bool:
        return self.rows is not None

    @property
    def is_stop_due(self) -> bool:
        stop = self.settings.stop_request
        return stop is not None and Path(stop).exists()

    def patches(self) -> Iterator[Patch]:
        """Yield the patches of the classes by which a script reaches its servers."""
        from tensorflow.python.client.session import BaseSession
        from tensorflow.python.training import monitored_session
        from tensorflow.python.training.session_manager import SessionManager
        from tensorflow.python.training.sync_replicas_optimizer import SyncReplicasOptimizer

        yield from self.graphs.patches(SyncReplicasOptimizer)
        yield Patch(SessionManager, "prepare_session", self._before_prepare, result=self._prepared)
        yield Patch(SessionManager, "wait_for_session", self._before_wait, result=self._waited)
        yield Patch(BaseSession, "close", before=self._before_close)
        if self.graphs.is_elastic:
            yield Patch(SessionManager, "__init__", before=hurry_newcomers)
            yield Patch(monitored_session._MonitoredSession, "__init__", before=hurry_end)
            yield Patch(BaseSession, "run", before=self._before_run)
            # All processes of the job start again together; a session that recovers by itself
            # would begin from nothing.
            monitored_session._PREEMPTION_ERRORS = ()

    # The beginning.

    def _before_prepare(self, manager: Any, *arguments: Any) -> tuple[Any, ...] | None:
        """Let the session speak to the servers alone; ``config`` is the eighth argument."""
        return (manager, *arguments[:7], self._with_filters(arguments[7]), *arguments[8:])

    def _before_wait(self, manager: Any, master: Any, config: Any = None, *rest: Any) -> Any:
        return (manager, master, self._with_filters(config), *rest)

    def _with_filters(self, config: Any) -> Any:
        graph = GRAPHS.get(v1.get_default_graph())
        if not self.graphs.is_elastic or graph is None or (config and config.device_filters):
            return config
        fresh = v1.ConfigProto()
        if config is not None:
            fresh.CopyFrom(config)
        fresh.device_filters.extend(["/job:ps", f"/job:worker/task:{graph.task}"])
        return fresh

    def _prepared(self, session: Any, *_: Any) -> None:
        """Begin as the chief."""
        if not self._begin(session):
            return
        assert self.graph is not None
        with self._calling():
            self._restore()
            first = int(session.run(self.graph.operations["global step"]))
        self.rows = ServerRows(self.graph.layout, first)
        workers = self.settings.workers
        if not self.graphs.is_elastic:
            workers = self.graph.optimizer._replicas_to_aggregate
        self.announce(f"measured: SyncReplicasOptimizer, replicas: {workers}")
        threading.Thread(target=self._run, name="scavenger-rows", daemon=True).start()

    def _waited(self, session: Any, *_: Any) -> None:
        """Begin as another worker: at the step that the servers claim it for."""
        if session is not None and self._begin(session) and self.graphs.is_elastic:
            with self._calling():
                self._join()

    def _begin(self, session: Any) -> bool:
        graph = GRAPHS.get(session.graph)
        if graph is None or self.session is not None:
            return False
        self.session, self.graph = session, graph
        return True

    def _join(self) -> None:
        task = self._graph.task
        while True:
            claim = self._claim()
            if claim is not None and claim[1 + task]:
                self._do("set local step", step=claim[0])
                return
            if claim is not None and not self._do("members")[task]:
                self._set_member(task, is_member=True)
            time.sleep(CLAIM_POLL)

    # Between two steps.

    def _before_run(self, session: Any, *_: Any) -> None:
        """Do what is due before the script's own next call."""
        if session is not self.session or getattr(self.own_call, "is_on", False):
            return
        with self._calling():
            if self.is_chief:
                self._as_chief_between_steps()
            elif self.is_stop_due:
                self._leave()

    def _as_chief_between_steps(self) -> None:
        is_saving_due = self.checkpointer is not None and self.checkpointer.is_due()
        if not (self.is_stop_due or is_saving_due) or self._claim() is None:
            return
        if self.is_stop_due:
            self._await_claim(self._step())
            self._read(is_last=True)
            self._save()
            if self.checkpointer is not None:
                self.checkpointer.close(SAVING_TIMEOUT)
            stop_process(self.settings)
        self._await_claim(self._step())
        self._save()

    def _leave(self) -> None:
        """End this process, unless the step that is under way waits for it."""
        step, task = self._step(), self._graph.task
        self._set_member(task, is_member=False)
        claim = self._await_claim(step)
        if claim[0] > step or not claim[1 + task]:
            stop_process(self.settings)

    def _await_claim(self, step: int) -> Any:
        """Return the claim of a step that was begun, once the servers have written it down."""
        while (claim := self._claim()) is None or claim[0] < step:
            time.sleep(CLAIM_POLL)
        return claim

    def _claim(self) -> Any | None:
        """Return the step that is under way and who gives a gradient; None before the first."""
        try:
            claim = self._do("claim")
        except tf.errors.FailedPreconditionError:
            return None  # the chief has not initialised it yet
        return claim if claim[0] >= 0 else None

    # The chief's thread.

    def _run(self) -> None:
        read_at = time.monotonic()
        try:
            while self.session is not None:
                time.sleep(CHIEF_POLL)
                with self._calling():
                    if self.graphs.is_elastic:
                        self._handle_departures()
                    if time.monotonic() - read_at > ROWS_PERIOD:
                        read_at = time.monotonic()
                        self._read()
        except Exception:
            if self.session is not None:  # else the script has closed it
                log.exception("scavenger: steps are no longer read; training goes on unmeasured")

    def _handle_departures(self) -> None:
        """Wait no longer for workers that are lost, or that do not leave by themselves."""
        if self.settings.departures is None:
            return
        for task, is_lost in read_departures(Path(self.settings.departures)).items():
            asked_at = self.departed.setdefault(task, time.monotonic())
            if asked_at < 0 or not (is_lost or time.monotonic() - asked_at > LEAVING_PATIENCE):
                continue
            self.departed[task] = -1.0
            self._set_member(task, is_member=False)
            claim = self._claim()
            if claim is not None and claim[1 + task]:
                # Another worker gives a second gradient in its place. If it had given its own
                # already, the token is of a step that is over and its gradient is dropped.
                self._do("give token", step=claim[0])

    def _read(self, *, is_last: bool = False) -> None:
        with self.reading:
            if self.rows is None or (self.graphs.is_elastic and self._claim() is None):
                return
            rows = self._do("rows", first=self.rows.read)
            for row in self.rows.take(rows, is_last=is_last):
                self.on_row(row)

    def _before_close(self, session: Any) -> None:
        """Read the last rows before the script closes its session."""
        if session is not self.session:
            return
        if self.is_chief:
            with self._calling(), suppress(tf.errors.OpError, RuntimeError):
                self._read(is_last=True)
        self.session = None

    # State.

    def _progress(self) -> TrainingProgress:
        assert self.rows is not None
        before = self.restored
        return replace(
            before,
            iteration=before.iteration + self.rows.steps,
            samples=before.samples + self.rows.samples,
        )

    def _variables(self) -> dict[str, Any]:
        """Return the variables on the servers, which are all that a script of this kind has."""
        with self.session.graph.as_default():
            return {each.name: each for each in v1.global_variables()}

    def _save(self) -> None:
        if self.checkpointer is None:
            return
        self._read()
        values = self.session.run(self._variables())
        graph = {name: np.asarray(value) for name, value in values.items()}
        state = {"framework": "tensorflow", "graph": graph, "random": random_states()}
        try:
            snapshot = to_snapshot(state, self._progress())
            self.checkpointer.submit(snapshot, self.settings.generation)
        except (StateRefused, *KERAS_STATE_ERRORS) as error:
            log.warning("scavenger: this script is not saved: %s", error)

    def _restore(self) -> None:
        """Restore the newest checkpoint, unless the script's own goes further."""
        if self.checkpointer is not None and self.settings.restarts:
            restored = self.checkpointer.restore(self._take_over)
            if restored is not None:
                self.restored = restored

    def _take_over(self, snapshot: TrainingSnapshot) -> TrainingProgress:
        state = decode_state(snapshot.tree, arrays_in(snapshot))
        saved = state.get("graph") if isinstance(state, dict) else None
        if not isinstance(saved, dict):
            raise StateRefused("the state is not of a graph of TensorFlow")
        variables = self._variables()
        step = self._graph.optimizer._global_step
        own = int(self._do("global step"))
        if own > int(saved.get(step.name, 0)):
            log.warning("scavenger: the script continues from its own checkpoint")
            return snapshot.progress
        for name, variable in variables.items():
            if name not in saved or tuple(variable.shape) != saved[name].shape:
                raise StateRefused(f"{name} is not in the state with the shape that it has here")
        for name, variable in variables.items():
            variable.load(saved[name], self.session)
        self.session.run(self._graph.optimizer.chief_init_op)
        restore_random_states(state["random"])
        return snapshot.progress

    # Calls of our own.

    @property
    def _graph(self) -> SyncReplicasGraph:
        assert self.graph is not None
        return self.graph

    @contextmanager
    def _calling(self) -> Iterator[None]:
        """Mark calls as ours, which are no step of the script."""
        before = getattr(self.own_call, "is_on", False)
        self.own_call.is_on = True
        try:
            yield
        finally:
            self.own_call.is_on = before

    def _do(self, name: str, **values: Any) -> Any:
        operations = self._graph.operations
        feeds = {operations[key.replace("_", " ")]: value for key, value in values.items()}
        return self.session.run(operations[name], feeds)

    def _set_member(self, task: int, *, is_member: bool) -> None:
        self._do("set member", task=task, is_member=float(is_member))

    def _step(self) -> int:
        return int(self._do("local step"))


def hurry_newcomers(manager: Any, *arguments: Any) -> tuple[Any, ...]:
    """Let a newcomer look more often whether the chief is ready."""
    *before, recovery_wait = arguments[:5]
    return (manager, *before, min(recovery_wait, RECOVERY_WAIT), *arguments[5:])


def hurry_end(session: Any, *arguments: Any) -> tuple[Any, ...]:
    """Do not wait for the thread that awaits gradients, of which none comes any more."""
    *before, grace = arguments
    return (session, *before, min(grace, CLOSING_GRACE))
