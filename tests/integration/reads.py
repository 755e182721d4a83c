"""Traps reads that make the host wait for the device, which a CPU would not show."""

from __future__ import annotations

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class Reads(TorchDispatchMode):
    """Notes every operation that makes the host wait for a value of the device."""

    WAITS = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero")

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func.overloadpacket.__name__ in self.WAITS:
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))
