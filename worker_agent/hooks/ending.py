"""How a process of the script tells the launcher what its exit code cannot say."""

from __future__ import annotations

ENDED_IN_ORDER = "in order"
LOST_THE_OTHERS = "lost the others"
TRAINS_ALONE = "trains alone"

SIGNS = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "socket timeout",
    "timed out",
    "nccl",
)


def is_loss_of_others(error: BaseException) -> bool:
    """Whether an exception of the script says that another process of its job went away.

    >>> is_loss_of_others(RuntimeError("[...] Connection closed by peer [127.0.0.1]:123"))
    True
    """
    said = str(error).lower()
    is_torch = isinstance(error, RuntimeError) and any(sign in said for sign in SIGNS)
    return is_torch or type(error).__name__ in ("DistBackendError", "DistNetworkError")
