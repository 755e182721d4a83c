"""`MeshAllReduce`: data-parallel training of a Keras model over the agent's own connections.

TensorFlow's collectives cannot change their members while a process lives, so gradients go through
a `Mesh`, one per generation; a resize forms another one and the traced function stays.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from scavenger.protocol import Directive, Member
from worker_agent.errors import GenerationBroken, UnsupportedModel
from worker_agent.frameworks import (
    BatchSlice,
    ControlFlags,
    JoinRole,
    StepSummary,
    StrategyContext,
)
from worker_agent.rendezvous.rendezvous import (
    DEAD_PEER_CHECK_EVERY,
    StoreRendezvous,
    any_proven_dead,
    generation_label,
)
from worker_agent.state.progress import TrainingProgress, TrainingSnapshot
from worker_agent.tensorflow.optimizer import SCOPE_REMEDY, AveragedOptimizer, backing_variable
from worker_agent.tensorflow.reducer import HostMeasurement, HostReducer, summarise
from worker_agent.tensorflow.state import KerasState
from worker_agent.transport.mesh import Mesh, PeerListener, connect_mesh

ADDRESS_POLL = 0.2


class MeshAllReduce:
    """Averages gradients over a generation of workers and hands the state to newcomers.

    Args:
        rendezvous: Where the workers find each other.
        context: The script's objects, and whom to ask while waiting.

    Raises:
        UnsupportedModel: The model is not built, or belongs to a strategy of ``tf.distribute``.
        UnsupportedOptimizer: It is no optimizer of Keras.
    """

    def __init__(self, rendezvous: StoreRendezvous, context: StrategyContext) -> None:
        model, optimizer = context.model, context.optimizer
        refuse_model(model)
        self.rendezvous, self.restore_checkpoint = rendezvous, context.restore_checkpoint
        self.should_abort, self.secret = context.should_abort, context.secret
        self.optimizer = AveragedOptimizer(optimizer, model.trainable_variables)
        self.state = KerasState(model, optimizer, context.extra_state)
        self.reducer = HostReducer(self.optimizer.layout, context.on_work)
        self.optimizer.reducer = self.reducer
        self.listener = PeerListener(rendezvous.host, context.secret)
        self.mesh: Mesh | None = None
        self.forming: list[Mesh] = []
        self.others: Sequence[Member] = ()
        self.checked_at = 0.0
        self.taken: TrainingProgress | None = None
        self.latest: HostMeasurement | None = None
        self.previous_summary: StepSummary | None = None
        self.rehearsals = None  # the job document refuses stacks here
        self.model_steps = None  # each worker has the whole model

    def join(
        self, directive: Directive, role: JoinRole, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Form the generation, agree on the most advanced member, and take its state.

        Raises:
            GenerationBroken: A member was lost meanwhile.
        """
        self.others = [m for m in directive.members if m.worker != self.rendezvous.worker]
        if self.taken is not None and (is_new or self.taken.iteration > progress.iteration):
            progress, is_new = self.taken, False  # it was for a generation that then broke
        mesh = None
        try:
            if role.donor is not None:
                members = (*directive.members, role.donor)
                rank = len(directive.members) if role.rank is None else role.rank
                handover = self._form("handover", directive, members, rank)
                assert handover is not None
                progress = self._adopt(handover, directive.generation, progress, is_new=is_new)
                self.taken = progress
            if role.rank is None:
                self._leave()
                return progress
            mesh = self._form("", directive, directive.members, role.rank)
            if role.donor is None:
                if mesh is not None:
                    progress = self._adopt(mesh, directive.generation, progress, is_new=is_new)
                elif is_new:
                    progress = self.restore_checkpoint(self.state, progress)
        except (OSError, GenerationBroken) as error:
            self._leave()
            raise GenerationBroken(f"generation {generation_label(directive)}: {error}") from error
        except BaseException:
            self._leave()
            raise
        self.taken = None
        if mesh is not None:
            self.forming.remove(mesh)
        self._leave()
        self.mesh = mesh
        self.reducer.regroup(mesh, role.rank)
        self.reducer.nan_guard = directive.nan_guard
        return progress

    def begin(self, part: BatchSlice, flags: ControlFlags) -> None:
        self.reducer.begin(part, flags)

    def end(self) -> bool:
        """Close the iteration; what it measured is told when the next one has ended."""
        measured = self.reducer.end()
        if measured.failure:
            self._leave()  # closes the connections, so that the other workers fail at once too
            return False
        self.previous_summary = None if self.latest is None else summarise(self.latest)
        self.latest = measured
        return True

    @property
    def skipped_steps(self) -> int:
        return self.reducer.skipped_steps

    def snapshot(self, progress: TrainingProgress) -> TrainingSnapshot:
        return self.state.snapshot(progress)

    def scale_learning_rate(self, factor: float) -> None:
        self.reducer.learning_rate_factor = factor

    def leave(self) -> None:
        self.taken = None
        self._leave()

    def close(self) -> None:
        self._leave()
        self.listener.close()
        self.rendezvous.close()

    def _leave(self) -> None:
        for mesh in (self.mesh, *self.forming):
            if mesh is not None:
                mesh.close()
        self.mesh = self.latest = self.previous_summary = None
        self.forming = []
        self.reducer.regroup(None, 0)

    def _form(
        self, name: str, directive: Directive, members: Sequence[Member], rank: int
    ) -> Mesh | None:
        """Connect the members, which have all arrived, by addresses in the first one's store."""
        if len(members) == 1:
            return None
        label = f"mesh/{generation_label(directive)}/{name}"
        store = self.rendezvous.store_of(members[0])
        store.set(f"{label}/{rank}", self.listener.address)
        keys = [f"{label}/{place}" for place in range(len(members))]
        while not store.wait(keys, ADDRESS_POLL):
            if self._is_lost():
                raise GenerationBroken("a member is gone or a newer generation replaces this one")
        addresses = [store.read(key) or "" for key in keys]
        mesh = connect_mesh(self.listener, rank, addresses, label, self.secret, self._is_lost)
        self.forming.append(mesh)
        return mesh

    def _adopt(
        self, mesh: Mesh, generation: int, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Take the state of the most advanced member; who has it already is sent nothing."""
        told = mesh.all_gather([-1 if is_new else progress.iteration])
        iterations = [int(numbers[0]) for numbers in told]
        if mesh.rank == 0 and max(iterations) < 0:
            progress = self.restore_checkpoint(self.state, progress)
        source = max(range(len(iterations)), key=lambda place: (iterations[place], -place))
        newest = iterations[source]
        receivers = [
            place
            for place, iteration in enumerate(iterations)
            if place != source and (iteration < newest or newest < 0)
        ]
        if mesh.rank == source and receivers:
            self.state.send(mesh, receivers, progress)
        if mesh.rank not in receivers:
            return progress
        progress = self.state.receive(mesh, source)
        if is_new:  # or all workers would drop the same neurons
            self.state.reseed(mesh.rank, generation, purpose=b"worker")
        return progress

    def _is_lost(self) -> bool:
        """Whether what is waited for will never come.

        The computer of a member that is gone closes its connections, unless it is gone too.
        """
        if self.should_abort():
            return True
        now = time.monotonic()
        if now - self.checked_at < DEAD_PEER_CHECK_EVERY:
            return False
        self.checked_at = now
        return any_proven_dead(self.others)


def refuse_model(model: Any) -> None:
    """See whether a session can train a model.

    Raises:
        UnsupportedModel: It cannot; the message says what to do.
    """
    if not model.built or not model.trainable_variables:
        raise UnsupportedModel(
            "the model has no weights yet: call it once on a batch, or model.build(shape), before"
            " job.prepare"
        )
    for variable in model.trainable_variables:
        if hasattr(backing_variable(variable), "distribute_strategy"):
            strategy = backing_variable(variable).distribute_strategy
            if getattr(strategy, "num_replicas_in_sync", 1) > 1:
                raise UnsupportedModel(SCOPE_REMEDY)
