"""Seeds of random streams, the same in any framework and on every machine."""

from __future__ import annotations

import random
import struct
from hashlib import blake2b

import numpy as np

NUMPY_SEEDS = 1 << 32


def mix_seed(purpose: bytes, *numbers: int) -> int:
    """Return 64 bits that differ for all purposes and numbers, the same on every machine."""
    words = [number % (1 << 64) for number in numbers]
    packed = struct.pack(f"<{len(words)}Q", *words)
    return int.from_bytes(blake2b(packed, digest_size=8, person=purpose).digest())


def seed_python_and_numpy(seed: int) -> None:
    """Seed the generators of Python and NumPy."""
    np.random.seed(seed % NUMPY_SEEDS)
    random.seed(seed)
