"""`Layout`: how the workers of one replica share a model, as pipeline stages and tensor shards.

A *replica* is one copy of the model on P·T·S workers; D replicas share a global batch. Ranks are
replica-major, so that a change of D only appends or drops ranks, and the shards of one tensor are
neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True, order=True)
class Layout:
    """P pipeline stages of T tensor shards, S-way sharded data, and M micro-batches.

    Attributes:
        pipeline: Stages that the model's blocks are cut into, P.
        tensor: Workers that share each large weight of a stage, T.
        shard: Workers that share weights and split the replica's batch, S.
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

    @property
    def workers_per_replica(self) -> int:
        """Workers that hold one copy of the model, P·T·S."""
        return self.pipeline * self.tensor * self.shard

    @property
    def batch_parts_per_replica(self) -> int:
        """Parts of one size that a replica's share of the batch must divide into, S·M."""
        return self.shard * self.micro_batches

    @property
    def is_plain(self) -> bool:
        """Whether each worker has the whole model, as with data parallelism alone."""
        return self.workers_per_replica == 1

    def objection(self, workers: int, global_batch: int) -> str | None:
        """Say in a sentence why workers and batch do not fit the layout; None if they do."""
        unit = self.workers_per_replica
        if workers % unit:
            return f"{workers} workers are no whole number of replicas of {unit}"
        parts = workers // unit * self.batch_parts_per_replica
        if not self.is_plain and global_batch % parts:
            return f"a batch of {global_batch} does not divide into {parts} equal parts"
        return None

    def __str__(self) -> str:
        shard = f" S={self.shard}" if self.shard > 1 else ""
        parts = f" M={self.micro_batches}" if self.micro_batches > 1 else ""
        return f"P={self.pipeline} T={self.tensor}{shard}{parts}"


PLAIN = Layout()
