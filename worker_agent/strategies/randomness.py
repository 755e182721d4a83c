"""Randomness: the random states of one process, kept, given back, or set as a pure function.

A checkpoint holds the leader's. Newcomers get a stream of their own, lest all workers drop the same
neurons; a deterministic job sets all streams anew in each iteration.
"""

from __future__ import annotations

import random
import struct
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

WORD = 1 << 32
CUDA: Any = torch.cuda  # not annotated in part


def random_states() -> dict[str, Any]:
    """Return the states of Python's, NumPy's and PyTorch's generators, for ``tree.encode``."""
    version, words, gauss = random.getstate()
    states: dict[str, Any] = {
        "python": (version, torch.tensor(words), gauss),
        "numpy": np.random.get_state(legacy=False),
        "torch": torch.get_rng_state(),
    }
    if CUDA.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_random_states(states: dict[str, Any]) -> None:
    """Give all generators the states that ``random_states`` returned.

    Raises:
        ValueError, TypeError, KeyError, RuntimeError: They are not states of these generators.
    """
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def reseed(seed: int, worker_rank: int, generation: int) -> None:
    """Give this worker random streams that no other worker has, now or in another generation."""
    seed_all(mixed(b"worker", seed, worker_rank, generation))


def seed_iteration(seed: int, first_sample_position: int) -> None:
    """Set all random streams as a function of where in the data the iteration begins."""
    seed_all(mixed(b"iteration", seed, first_sample_position))


def mixed(purpose: bytes, *numbers: int) -> int:
    """Return 64 bits that differ for all purposes and numbers, the same on every machine."""
    words = [number % (1 << 64) for number in numbers]
    packed = struct.pack(f"<{len(words)}Q", *words)
    return int.from_bytes(blake2b(packed, digest_size=8, person=purpose).digest())


def seed_all(seed: int) -> None:
    """Seed every generator; CUDA's only where it is in use, as starting it takes seconds."""
    torch.default_generator.manual_seed(seed)
    if CUDA.is_initialized():
        torch.cuda.manual_seed(seed)
    np.random.seed(seed % WORD)
    random.seed(seed)
