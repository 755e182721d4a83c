"""Front: one address behind which any of several servers answers, whichever lives."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from tests.telemetry.door import GONE, Relay


class Front(Relay):
    """Passes each connection on to one that takes it."""

    def __init__(self, targets: Sequence[int], chance: random.Random) -> None:
        super().__init__(targets[0])
        self.targets, self.chance = tuple(targets), chance

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for target in self.chance.sample(self.targets, len(self.targets)):
            try:
                return await asyncio.open_connection("127.0.0.1", target)
            except GONE:
                continue
        raise ConnectionRefusedError("none of them lives")
