"""Frames: what workers and parameter servers say to each other, with nothing in them to execute.

A frame is a header of fixed size, a short text or list of numbers (the *note*), and raw
little-endian floats (the *load*). Sizes are known and bounded before anything is read, so whoever
connects can cost no more than its own connection.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from worker_agent.parameter_server.errors import Garbled

MAGIC = b"SCVG"
VERSION = 1
HEADER = struct.Struct("<4sBBxxIIQqQ")
LONGEST_NOTE = 1 << 22
LARGEST_LOAD = 1 << 36  # bytes of weights and optimizer state of one server
PURPOSE = b"scavenger parameter server 1"

Numbers = npt.NDArray[np.float64]


class Word(IntEnum):
    """What a frame is about; the first of a connection is GREET."""

    GREET = 1
    JOIN = 2
    LEAVE = 3
    PUT = 4
    HOLD = 5
    FETCH = 6
    PUSH = 7
    STREAM = 8
    TAKE = 9
    FINISH = 10
    DONE = 20
    FENCED = 21


WORDS = frozenset(map(int, Word))


@dataclass(frozen=True, slots=True)
class Header:
    """The fixed part of a frame.

    Attributes:
        word: What the frame is about.
        generation: Generation of the sender.
        revision: Its revision.
        iteration: Iteration the frame speaks of; -1 for none.
        note_size: Bytes of the note that follows.
        load_size: Bytes of floats that follow the note.
    """

    word: Word
    generation: int = 0
    revision: int = 0
    iteration: int = -1
    note_size: int = 0
    load_size: int = 0

    @property
    def turn(self) -> tuple[int, int]:
        """Generation and revision, in the order in which they replace each other."""
        return self.generation, self.revision

    def to_bytes(self) -> bytes:
        """Return the header as it travels."""
        return HEADER.pack(
            MAGIC,
            VERSION,
            self.word,
            self.revision,
            self.note_size,
            self.generation,
            self.iteration,
            self.load_size,
        )


def read_header(content: bytes, *, largest_load: int) -> Header:
    """Understand a header.

    Raises:
        Garbled: It is no header of ours, or announces more than may come; close the connection,
            whatever follows has no meaning.
    """
    magic, version, word, revision, note_size, generation, iteration, load_size = HEADER.unpack(
        content
    )
    if magic != MAGIC or version != VERSION:
        raise Garbled(f"not a frame of version {VERSION}: {content[:8]!r}")
    if word not in WORDS:
        raise Garbled(f"unknown word {word}")
    if note_size > LONGEST_NOTE or load_size > largest_load:
        raise Garbled(f"a frame of {note_size} + {load_size} bytes is too large")
    return Header(Word(word), generation, revision, iteration, note_size, load_size)


def proof(secret: str) -> bytes:
    """Return what shows that a process belongs to the job, without telling the secret."""
    return hashlib.sha256(PURPOSE + secret.encode()).digest()


def pack(numbers: Sequence[float] | Numbers) -> bytes:
    """Return numbers as they travel in a note."""
    return np.asarray(numbers, dtype="<f8").tobytes()


def unpack(note: bytes) -> Numbers:
    """Return the numbers of a note; raises Garbled when it holds none."""
    if len(note) % 8:
        raise Garbled(f"a note of {len(note)} bytes holds no numbers")
    return np.frombuffer(note, dtype="<f8").astype(np.float64)
