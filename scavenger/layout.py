"""`Layout`: how the processes of one worker share a model.

A *worker* trains one copy of the model, and is what a batch is divided among: K workers share a
global batch. It has P·T·S processes, all on its own machine, one after another in the order of
pipeline stages, then of tensor shards, then of those that divide weights and batch. In an
asynchronous pipeline (PipeDream) each stage has a number of processes of its own instead. In an
interleaved pipeline a stage is several chunks of the model that do not follow each other.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal

Schedule = Literal["1f1b", "gpipe", "interleaved"]


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """P pipeline stages of T tensor shards, S-way sharded data, and M micro-batches.

    Attributes:
        pipeline: Stages that the model's blocks are cut into, P.
        tensor: Processes that share each large weight of a stage, T.
        shard: Processes that share weights and split the worker's batch, S.
        micro_batches: Parts of a local batch that follow each other through the stages, M.
        replicas: Processes of each stage, which take minibatches in turn, if the pipeline is
            asynchronous (PipeDream); empty if each iteration ends in all stages.
        cuts: Names of the modules that the stages after the first begin with, or the chunks of an
            interleaved pipeline; empty to divide by weights.
        vertical_sync: Whether a minibatch uses in all stages weights of the same minibatches, those
            that the first stage has when it enters, rather than the newest of each stage.
        schedule: Order of the passes of a synchronous pipeline: one forward, one backward; all
            forward first (GPipe); or interleaved.
        chunks: Chunks of the model that each stage has, V: chunk number c belongs to stage c mod P.

    >>> str(Layout())
    'P=1 T=1'
    >>> str(Layout(2, 4, micro_batches=8))
    'P=2 T=4 M=8'
    >>> str(Layout(2, replicas=(3, 1), cuts=("layers.13",)))
    'P=2 T=1 R=3-1 C=layers.13'
    >>> str(Layout(2, replicas=(3, 1), vertical_sync=True))
    'P=2 T=1 R=3-1 V=1'
    >>> str(Layout(2, micro_batches=4, schedule="interleaved", chunks=3))
    'P=2 T=1 M=4 V=3'
    """

    pipeline: int = 1
    tensor: int = 1
    shard: int = 1
    micro_batches: int = 1
    replicas: tuple[int, ...] = ()
    cuts: tuple[str, ...] = ()
    vertical_sync: bool = False
    schedule: Schedule = "1f1b"
    chunks: int = 1

    def __post_init__(self) -> None:
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.micro_batches > 1 and self.pipeline == 1:
            raise ValueError(
                f"{self.micro_batches} micro-batches need stages that they follow each other "
                "through: set pipeline to 2 or more"
            )
        if self.cuts:
            self._check_cuts()
        if self.replicas:
            self._check_replicas()
        elif self.vertical_sync:
            raise ValueError("vertical_sync needs an asynchronous pipeline: set replicas")
        objection = self._objection_to_schedule()
        if objection is not None:
            raise ValueError(objection)

    def _objection_to_schedule(self) -> str | None:
        """Say why the passes cannot have this order; None if they can."""
        if self.schedule != "1f1b" and (self.pipeline == 1 or self.replicas):
            return f"schedule {self.schedule} is of the stages of a synchronous pipeline"
        if self.schedule != "interleaved":
            return None if self.chunks == 1 else "chunks are of the schedule interleaved"
        if self.chunks < 2:
            return "an interleaved pipeline has 2 chunks or more in each stage"
        if self.tensor * self.shard > 1:
            return "an interleaved pipeline has no shards"
        if self.micro_batches % self.pipeline:
            return (
                f"{self.micro_batches} micro-batches are no multiple of the {self.pipeline} stages "
                "of an interleaved pipeline"
            )
        return None

    def _check_cuts(self) -> None:
        count = self.chunk_count
        if len(self.cuts) != count - 1:
            raise ValueError(
                f"{count} {'stages' if self.chunks == 1 else 'chunks'} have {count - 1} cuts "
                f"between them, got {len(self.cuts)}"
            )
        if not all(MODULE_NAME.fullmatch(name) for name in self.cuts):
            raise ValueError(f"cuts must be names of modules, got {list(self.cuts)}")

    def _check_replicas(self) -> None:
        if len(self.replicas) != self.pipeline or min(self.replicas) < 1:
            raise ValueError(
                f"{self.pipeline} stages need a number of processes each, from 1, got "
                f"{list(self.replicas)}"
            )
        if self.tensor * self.shard * self.micro_batches > 1:
            raise ValueError("an asynchronous pipeline has no shards and no micro-batches")

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read what `str` writes.

        Raises:
            ValueError: It is something else.

        >>> Layout.parse("P=2 T=1 M=4") == Layout(2, micro_batches=4)
        True
        """
        found = _LAYOUT.fullmatch(text)
        if found is None or found["chunks"] == "1":  # V=1 is of asynchronous pipelines
            raise ValueError(f"{text!r} is no layout: write e.g. P=2 T=1 M=4")
        told = found.groupdict()
        counts = {name: int(told[name] or 1) for name in COUNTS}
        replicas = tuple(int(each) for each in (told["replicas"] or "").split("-") if each)
        cuts = tuple(each for each in (told["cuts"] or "").split(",") if each)
        if told["chunks"] == "1":
            raise ValueError(
                f"{text!r} is no layout: V=1 is written of asynchronous pipelines only"
            )
        chunks = int(told["chunks"] or 1)
        schedule: Schedule = "gpipe" if told["gpipe"] else "1f1b" if chunks == 1 else "interleaved"
        return cls(
            **counts,
            replicas=replicas,
            cuts=cuts,
            vertical_sync=told["vertical_sync"] is not None,
            schedule=schedule,
            chunks=chunks,
        )

    @property
    def processes(self) -> int:
        """Processes of a worker: P·T·S, or those of all stages of an asynchronous pipeline."""
        return sum(self.replicas) or self.pipeline * self.tensor * self.shard

    @property
    def is_asynchronous(self) -> bool:
        """Whether minibatches overlap, so that gradients come late (PipeDream)."""
        return bool(self.replicas)

    @property
    def chunk_count(self) -> int:
        """Chunks that the model is cut into, P·V: one for each stage, or V if interleaved."""
        return self.pipeline * self.chunks

    def chunks_of(self, stage: int) -> range:
        """Return the numbers of the chunks that a stage has.

        >>> Layout(2, micro_batches=2, schedule="interleaved", chunks=2).chunks_of(1)
        range(1, 4, 2)
        """
        return range(stage, self.chunk_count, self.pipeline)

    def positions(self, stage: int) -> range:
        """Return the positions of a stage's processes among those of its worker.

        >>> Layout(2, tensor=2).positions(1)
        range(2, 4)
        """
        if not self.replicas:
            size = self.tensor * self.shard
            return range(stage * size, (stage + 1) * size)
        first = sum(self.replicas[:stage])
        return range(first, first + self.replicas[stage])

    def stage_of(self, position: int) -> int:
        """Return the stage of the process at a position."""
        return next(s for s in range(self.pipeline) if position in self.positions(s))

    def delay(self, stage: int) -> int:
        """Return how many minibatches later a stage of an asynchronous pipeline goes back.

        Its backward pass of minibatch k follows the forward pass of minibatch k + delay, so each of
        its r processes has delay / r + 1 minibatches in flight: NOAM of PipeDream, the processes
        from this stage on divided by r. A later stage has gone back by then.

        >>> [Layout(3, replicas=(1, 1, 1)).delay(stage) for stage in range(3)]
        [2, 1, 0]
        >>> Layout(2, replicas=(7, 1)).delay(0)
        7
        """
        own = self.replicas[stage]
        return own * (-(-sum(self.replicas[stage:]) // own) - 1)

    def version(self, stage: int, minibatch: int) -> int:
        """Return how many minibatches the weights contain that a minibatch uses in a stage.

        It is the newest version that the stage has when the minibatch comes to it. With vertical
        sync it is the newest one without a minibatch that the first stage's version lacks; a later
        stage has it by then, since its delay is shorter. A stage of r processes has versions of
        whole turns only, multiples of r.

        >>> [Layout(3, replicas=(1, 1, 1)).version(stage, 9) for stage in range(3)]
        [7, 8, 9]
        >>> synced = Layout(3, replicas=(1, 1, 1), vertical_sync=True)
        >>> [synced.version(stage, 9) for stage in range(3)]
        [7, 7, 7]
        """
        own = self.replicas[stage]
        if stage and self.vertical_sync:
            return self.version(0, minibatch) // own * own
        return max(minibatch - self.delay(stage), 0) // own * own

    def versions(self, stage: int) -> int:
        """Return how many versions of its weights a process of a stage holds at once, at most.

        >>> [Layout(3, replicas=(1, 1, 1)).versions(stage) for stage in range(3)]
        [3, 2, 1]
        >>> synced = Layout(3, replicas=(1, 1, 1), vertical_sync=True)
        >>> [synced.versions(stage) for stage in range(3)]
        [3, 3, 3]
        """
        own, first, full = self.replicas[stage], self.replicas[0], self.delay(0)
        later = range(0, full + first + own, own)  # minibatches of one process
        return max(
            len({v for n in later if (v := self.version(stage, oldest + n)) <= oldest})
            for oldest in range(full, full + math.lcm(first, own))
        )

    @property
    def staleness(self) -> int:
        """Steps of a stage that the most late gradient of an asynchronous pipeline lacks.

        >>> Layout(2, replicas=(2, 1)).staleness  # the first stage's, which steps every other time
        1
        >>> Layout(2, replicas=(2, 1), vertical_sync=True).staleness  # the last stage's
        3
        """
        full, first = self.delay(0), self.replicas[0]
        return max(
            minibatch // own - self.version(stage, minibatch) // own
            for stage, own in enumerate(self.replicas)
            for minibatch in range(full, full + math.lcm(first, own))  # then it is as before
        )

    @property
    def batch_parts_per_worker(self) -> int:
        """Parts of one size that a worker's share of the batch must divide into, S·M."""
        return self.shard * self.micro_batches

    @property
    def has_noise_of_parts(self) -> bool:
        """Whether micro-batches are shards that noise is measured by, so that none need be cut.

        With S > 1 their gradients add up before each process gets its part of them.
        """
        return self.micro_batches > 1 and self.shard == 1

    @property
    def is_plain(self) -> bool:
        """Whether each process has the whole model, as with data parallelism alone."""
        return self.processes == 1

    def objection(self, processes: int, global_batch: int) -> str | None:
        """Say in a sentence why processes and batch do not fit the layout; None if they do."""
        unit = self.processes
        if processes % unit:
            return f"{processes} processes are no whole number of workers of {unit}"
        parts = processes // unit * self.batch_parts_per_worker
        if not self.is_plain and global_batch % parts:
            return f"a batch of {global_batch} does not divide into {parts} equal parts"
        return None

    def __str__(self) -> str:
        shard = f" S={self.shard}" if self.shard > 1 else ""
        parts = f" M={self.micro_batches}" if self.micro_batches > 1 else ""
        replicas = f" R={'-'.join(map(str, self.replicas))}" if self.replicas else ""
        synced = " V=1" if self.vertical_sync else ""
        cuts = f" C={','.join(self.cuts)}" if self.cuts else ""
        schedule = " G=gpipe" if self.schedule == "gpipe" else ""
        chunks = f" V={self.chunks}" if self.chunks > 1 else ""
        passes = f"{parts}{replicas}{synced}{schedule}{chunks}"
        return f"P={self.pipeline} T={self.tensor}{shard}{passes}{cuts}"


MODULE_NAME = re.compile(r"[^\s,]+")
COUNTS = ("pipeline", "tensor", "shard", "micro_batches")
_LAYOUT = re.compile(
    r"P=(?P<pipeline>\d+) T=(?P<tensor>\d+)(?: S=(?P<shard>\d+))?(?: M=(?P<micro_batches>\d+))?"
    r"(?: R=(?P<replicas>\d+(?:-\d+)*)(?: (?P<vertical_sync>V=1))?)?"
    r"(?: G=(?P<gpipe>gpipe))?(?: V=(?P<chunks>[1-9]\d*))?"
    r"(?: C=(?P<cuts>[^\s,]+(?:,[^\s,]+)*))?"
)
PLAIN = Layout()
