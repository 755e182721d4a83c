"""What machines and the controller say about checkpoints that are kept in a bucket.

A checkpoint travels as parts, each a range of one of its files and one object of the bucket. The
controller signs requests for them and never holds their bytes: a machine sends and fetches parts
with these requests alone, so it needs no rights of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import groupby
from typing import Annotated, Literal

from annotated_types import Ge, Le, Len, MaxLen, Predicate
from pydantic import StringConstraints

GIBIBYTE = 1 << 30
# What agents write into one object. S3 takes 5 GiB by one request, and a part that is cut off is
# sent again as a whole.
MAX_PART_BYTES = GIBIBYTE
MAX_PARTS = 512
MAX_TROUBLE_LENGTH = 500

CheckpointFile = Literal["state.json", "state.safetensors"]
ContentDigest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
CHECKPOINT_ID = re.compile("[0-9]{10}-[0-9]{12}-[0-9a-f]{32}")
Generation = Annotated[int, Ge(0), Le(10**10 - 1)]
Iteration = Annotated[int, Ge(0), Le(10**12 - 1)]
Sentence = Annotated[str, MaxLen(MAX_TROUBLE_LENGTH), Predicate(str.isprintable)]


@dataclass(frozen=True, slots=True)
class CheckpointPart:
    """A range of one file of a checkpoint; the ranges of a file follow each other.

    Attributes:
        file: Which file.
        size: Bytes.
        sha256: Hash of these bytes.
    """

    file: CheckpointFile
    size: Annotated[int, Ge(0), Le(MAX_PART_BYTES)]
    sha256: ContentDigest


Parts = Annotated[tuple[CheckpointPart, ...], Len(1, MAX_PARTS)]


@dataclass(frozen=True, slots=True)
class CheckpointUpload:
    """A machine has a checkpoint for the bucket, or has sent all of it; it may say so again.

    Attributes:
        generation: Generation of the leader that wrote it.
        iteration: Iterations of the job that are in it.
        parts: Its parts, the ranges of a file in order.
        is_sent: Whether the bucket has taken every part.
    """

    generation: Generation
    iteration: Iteration
    parts: Parts
    is_sent: bool = False

    @property
    def id(self) -> str:
        """Name of the checkpoint within its job: its place in the order, and what is in it.

        Two workers that write the same iteration differently have two checkpoints so.
        """
        told = "\n".join(f"{part.file} {part.size} {part.sha256}" for part in self.parts)
        digest = sha256(told.encode()).hexdigest()
        return f"{self.generation:010}-{self.iteration:012}-{digest[:32]}"


def object_names(parts: Sequence[CheckpointPart]) -> Iterator[str]:
    """Yield the name of each part's object within its checkpoint.

    >>> some = [CheckpointPart("state.json", 1, "0" * 64)] * 2
    >>> list(object_names(some))
    ['state.json.0', 'state.json.1']
    """
    for file, ranges in groupby(parts, lambda part: part.file):
        for number, _ in enumerate(ranges):
            yield f"{file}.{number}"


@dataclass(frozen=True, slots=True)
class SignedRequest:
    """One request that a bucket accepts for a while, no matter from which computer: a secret.

    Attributes:
        url: Where to.
        headers: Headers that must be sent with it as they are.
    """

    url: str = field(repr=False)
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UploadTarget:
    """Where a machine sends a checkpoint.

    Attributes:
        is_complete: Whether it is in the bucket; nothing is to be sent then.
        requests: A PUT for each part. Status 412 says that the object is there.
    """

    is_complete: bool
    requests: tuple[SignedRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A complete checkpoint in a bucket.

    Attributes:
        checkpoint: Its name, by which a machine asks for the one before.
        generation: Generation of the leader that wrote it; the later is the newer one.
        iteration: Iterations of the job that are in it.
        parts: Its parts, the ranges of a file in order.
        requests: A GET for each part.
    """

    checkpoint: str
    generation: int
    iteration: int
    parts: tuple[CheckpointPart, ...]
    requests: tuple[SignedRequest, ...]


@dataclass(frozen=True, slots=True)
class NewestCheckpoint:
    """Answer to a machine that looks for a checkpoint to go on from.

    Attributes:
        stored: The newest one; None where there is none.
    """

    stored: StoredCheckpoint | None


@dataclass(frozen=True, slots=True)
class CheckpointTrouble:
    """What a machine could not do with the bucket, in one sentence without addresses."""

    why: Sentence
