"""Several processes that train as one worker: the first leads, the others follow its calls.

`LeadingStrategy` makes every call of the session to its strategy also on the processes that follow,
which wait in `FollowingSession`. They speak to no controller and are no members of a generation:
each joins the processes of its own position in the other workers.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from scavenger.layout import Layout
from scavenger.protocol import Directive
from scavenger.worker_env import WorkerEnv
from worker_agent.errors import GenerationBroken, ProcessLost, StateRefused, UnsupportedStrategy
from worker_agent.frameworks import (
    BatchSlice,
    ControlFlags,
    Framework,
    JoinRole,
    ModelSteps,
    SharedModel,
    StepSummary,
    StrategyContext,
    TrainingStrategy,
)
from worker_agent.rendezvous.rendezvous import StoreRendezvous
from worker_agent.sampler import SampleOrder
from worker_agent.session import Loggable, Session, SharingOptions
from worker_agent.state.progress import TrainingProgress, TrainingSnapshot
from worker_agent.transport.process_link import FollowerLinks, LeaderLink

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JoinGeneration:
    """Join a generation; the answer is a `JoinAnswer`."""

    directive: Directive
    role: JoinRole
    progress: TrainingProgress
    is_new: bool


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """What came of it: where training stands, or why the generation could not be formed."""

    progress: TrainingProgress
    failure: str = ""


@dataclass(frozen=True, slots=True)
class BeginSlice:
    """Train on a slice."""

    part: BatchSlice
    flags: ControlFlags


@dataclass(frozen=True, slots=True)
class ScaleLearningRate:
    """Multiply the script's learning rates."""

    factor: float


@dataclass(frozen=True, slots=True)
class SendState:
    """Send the state of this process's part of the model."""


@dataclass(frozen=True, slots=True)
class RestoreState:
    """Take over a part of a checkpoint; the answer says why it does not fit, or nothing."""

    snapshot: TrainingSnapshot


@dataclass(frozen=True, slots=True)
class EndRestoring:
    """No checkpoint follows; go on from here."""

    progress: TrainingProgress


@dataclass(frozen=True, slots=True)
class GiveUpWaiting:
    """Other workers that are waited for will not answer."""


@dataclass(frozen=True, slots=True)
class LeaveGeneration:
    """Leave the generation."""


@dataclass(frozen=True, slots=True)
class EndTraining:
    """Training is over for this worker."""


def share_model(settings: WorkerEnv, options: SharingOptions) -> SharedModel:
    """Meet the other processes of this worker, to share the script's model with them.

    Raises:
        UnsupportedStrategy: The script cannot share its model, as it passes no loss.
    """
    layout = Layout.parse(settings.layout)
    if settings.processes is None:
        raise ValueError("SCAVENGER_PROCESSES is not set: the supervisor sets it with the layout")
    if options.loss is None:
        raise UnsupportedStrategy(
            f"the job's layout {layout} needs the loss: call job.prepare(model, optimizer,"
            " loss=loss_function) and train with job.step(inputs, targets)"
        )
    place, secret = Path(settings.processes), settings.job_secret
    link: FollowerLinks | LeaderLink
    if settings.position == 0:
        link = FollowerLinks(place, layout.processes - 1, secret)
        link.accept()
    else:
        link = LeaderLink(place, settings.position, secret)
    return SharedModel(
        layout=layout,
        position=settings.position,
        directory=place,
        link=link,
        loss=options.loss,
        blocks=options.blocks,
        tensor_plan=options.tensor_plan,
    )


class LeadingStrategy:
    """The strategy of the process that leads: what it does, the following processes do too.

    Args:
        own: The strategy of this process's part of the model.
        followers: Connections to the other processes.
    """

    rehearsals = None  # the job document refuses stacks beside a layout

    def __init__(self, own: TrainingStrategy, followers: FollowerLinks) -> None:
        self.own, self.followers = own, followers
        self.factor = 1.0

    @property
    def rendezvous(self) -> StoreRendezvous:
        return self.own.rendezvous

    @property
    def model_steps(self) -> ModelSteps | None:
        return self.own.model_steps

    @property
    def previous_summary(self) -> StepSummary | None:
        return self.own.previous_summary

    @property
    def skipped_steps(self) -> Any | None:
        return self.own.skipped_steps

    def join(
        self, directive: Directive, role: JoinRole, progress: TrainingProgress, *, is_new: bool
    ) -> TrainingProgress:
        """Join with every process of this worker, or with none.

        Raises:
            GenerationBroken: One of them could not join.
            ProcessLost: Some have taken a state over that the others have not.
        """
        self.followers.send(JoinGeneration(directive, role, progress, is_new))
        failure = ""
        joined = progress
        try:
            joined = self.own.join(directive, role, progress, is_new=is_new)
        except GenerationBroken as error:
            failure = str(error)
            self.followers.send(GiveUpWaiting())
        answers = self.followers.receive().values()
        failure = next((each.failure for each in answers if each.failure), failure)
        places = {joined.iteration, *(each.progress.iteration for each in answers)}
        if len(places) > 1 and not is_new:
            raise ProcessLost(
                f"the processes of this worker stand at iterations {sorted(places)} after"
                f" generation {directive.generation}: it starts again from the others' state"
            )
        if failure:
            self.leave()
            raise GenerationBroken(failure)
        return joined

    def begin(self, part: BatchSlice, flags: ControlFlags) -> None:
        self.followers.send(BeginSlice(part, flags))
        self.own.begin(part, flags)

    def end(self) -> bool:
        return self.own.end()

    def snapshot(self, progress: TrainingProgress) -> TrainingSnapshot:
        self.followers.send(SendState())
        return self.own.snapshot(progress)

    def scale_learning_rate(self, factor: float) -> None:
        if factor != self.factor:
            self.factor = factor
            self.followers.send(ScaleLearningRate(factor))
        self.own.scale_learning_rate(factor)

    def leave(self) -> None:
        self.followers.send(LeaveGeneration())
        self.own.leave()

    def close(self) -> None:
        self.followers.close(EndTraining())
        self.own.close()


class FollowingSession(Session):
    """The session of a process that does what the leading one does.

    Args:
        settings: Settings of this process.
        deterministic: As in `Session`.
    """

    is_leader = False

    def __init__(self, settings: WorkerEnv, *, deterministic: bool = False) -> None:
        super().__init__(deterministic=deterministic)
        self.settings, self.process = settings, os.getpid()
        self.strategy: TrainingStrategy | None = None
        self.link: LeaderLink | None = None
        self.directive: Directive | None = None
        self.rank: int | None = None

    @property
    def evaluates(self) -> bool:
        """Whether this process takes part in evaluations, as all of the first worker do."""
        return self.rank == 0

    def log(self, **metrics: Loggable) -> None:
        """Record nothing: the leading process logs."""

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave the other processes of this worker; a process that the script forked does not."""
        if os.getpid() != self.process:
            return
        if self.strategy is not None:
            self.strategy.close()
        if self.link is not None:
            self.link.close()

    def _attach(
        self,
        framework: Framework,
        model: Any,
        optimizer: Any,
        micro_batches: int,
        extra_state: Mapping[str, Any],
    ) -> None:
        shared = share_model(self.settings, self.sharing)
        assert isinstance(shared.link, LeaderLink)
        self.link = shared.link
        context = StrategyContext(
            name=self.settings.strategy,
            model=model,
            optimizer=optimizer,
            worker=self.settings.worker,
            secret=self.settings.job_secret,
            micro_batches=micro_batches,
            extra_state=extra_state,
            should_abort=self._should_abort,
            restore_checkpoint=self._restore,
            shared=shared,
        )
        rendezvous = StoreRendezvous(context.worker, self.settings.host, lambda _: False)
        self.strategy = framework.strategy(rendezvous, context)
        self.model_steps = self.strategy.model_steps

    def _batches(
        self, order: SampleOrder, global_batch: int, samples: float, until: Callable[[], bool]
    ) -> Iterator[Any]:
        assert self.strategy is not None
        assert self.link is not None
        strategy = self.strategy
        while not isinstance(message := self.link.receive(), EndTraining):
            match message:
                case BeginSlice(part, flags):
                    yield from self._train(strategy, order, part, flags)
                case JoinGeneration():
                    self.link.send(self._join(strategy, message))
                case ScaleLearningRate(factor):
                    strategy.scale_learning_rate(factor)
                case SendState():
                    strategy.snapshot(self.progress)
                case LeaveGeneration():
                    strategy.leave()
                case GiveUpWaiting():
                    pass  # of something that has ended meanwhile
                case _:
                    raise TypeError(
                        f"the leading process said {message!r}, which means nothing here"
                    )

    def _train(
        self, strategy: TrainingStrategy, order: SampleOrder, part: BatchSlice, flags: ControlFlags
    ) -> Iterator[Any]:
        assert self.framework is not None
        strategy.begin(part, flags)
        if self.is_deterministic:
            self.framework.seed(order.seed, part.samples.start)
        yield self.framework.to_batch(order.indices(part.samples))
        if part.is_last and strategy.end():
            assert self.directive is not None
            self.progress = self.progress.after_iteration(self.directive)

    def _join(self, strategy: TrainingStrategy, told: JoinGeneration) -> JoinAnswer:
        self.directive, self.rank = told.directive, told.role.rank
        try:
            self.progress = strategy.join(
                told.directive, told.role, told.progress, is_new=told.is_new
            )
        except GenerationBroken as error:
            return JoinAnswer(told.progress, str(error))
        return JoinAnswer(self.progress)

    def _restore(self, state: Any, progress: TrainingProgress) -> TrainingProgress:
        """Take over the parts of checkpoints that the leading process sends, until one fits."""
        assert self.link is not None
        while True:
            match self.link.receive():
                case RestoreState(snapshot):
                    self.link.send(self._refusal_of(state, snapshot))
                case EndRestoring(reached):
                    return replace(progress, iteration=reached.iteration, samples=reached.samples)
                case message:
                    log.debug("while restoring, the leading process said %r", message)

    def _refusal_of(self, state: Any, snapshot: TrainingSnapshot) -> str:
        try:
            state.restore(snapshot)
        except StateRefused as error:
            return str(error)
        return ""

    def _should_abort(self) -> bool:
        """Whether the leading process says that what is waited for will not come."""
        assert self.link is not None
        return any(isinstance(each, GiveUpWaiting) for each in self.link.waiting())
