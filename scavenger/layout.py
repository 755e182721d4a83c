"""`Layout`: how the processes of one worker share a model.

A *worker* trains one copy of the model, and is what a batch is divided among: K workers share a
global batch. It has P·T·S processes, all on its own machine, one after another in the order of
pipeline stages, then of tensor shards, then of those that divide weights and batch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """P pipeline stages of T tensor shards, S-way sharded data, and M micro-batches.

    Attributes:
        pipeline: Stages that the model's blocks are cut into, P.
        tensor: Processes that share each large weight of a stage, T.
        shard: Processes that share weights and split the worker's batch, S.
        micro_batches: Parts of a local batch that follow each other through the stages, M.

    >>> str(Layout())
    'P=1 T=1'
    >>> str(Layout(2, 4, micro_batches=8))
    'P=2 T=4 M=8'
    """

    pipeline: int = 1
    tensor: int = 1
    shard: int = 1
    micro_batches: int = 1

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) < 1:
                raise ValueError(f"{each.name} must be at least 1, got {getattr(self, each.name)}")
        if self.micro_batches > 1 and self.pipeline == 1:
            raise ValueError(
                f"{self.micro_batches} micro-batches need stages that they follow each other "
                "through: set pipeline to 2 or more"
            )

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read what `str` writes.

        Raises:
            ValueError: It is something else.

        >>> Layout.parse("P=2 T=1 M=4")
        Layout(pipeline=2, tensor=1, shard=1, micro_batches=4)
        """
        found = _LAYOUT.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} is no layout: write e.g. P=2 T=1 M=4")
        return cls(**{name: int(value) for name, value in found.groupdict("1").items()})

    @property
    def processes(self) -> int:
        """Processes of a worker, which hold one copy of the model together, P·T·S."""
        return self.pipeline * self.tensor * self.shard

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
        return f"P={self.pipeline} T={self.tensor}{shard}{parts}"


_LAYOUT = re.compile(
    r"P=(?P<pipeline>\d+) T=(?P<tensor>\d+)(?: S=(?P<shard>\d+))?(?: M=(?P<micro_batches>\d+))?"
)
PLAIN = Layout()
