"""Patches PyTorch so that a script that knows nothing of the agent is measured.

``install`` is called when a script of ``agent run`` has imported torch; ``measure`` is for people
who like to call it themselves. Every patch is tried by itself: what cannot be patched in this
version of PyTorch goes unmeasured, which is said once, and the script runs as it always did.
"""

from __future__ import annotations

import atexit
import logging
from collections import deque
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from worker_agent.hooks.attached import Attached
from worker_agent.hooks.row_file import RowFile
from worker_agent.hooks.rows import Measured
from worker_agent.settings import HookSettings, read_hook_settings

ATTACHED: list[Attached] = []
MOST_ROWS = 100_000

log = logging.getLogger(__name__)


def install() -> None:
    """Patch the torch that was just imported, if the launcher wants to know anything."""
    settings = read_hook_settings()
    if settings.rows is None or ATTACHED:
        return
    on_row = RowFile(Path(settings.rows)).write
    attached = attach(settings, on_row)
    ATTACHED.append(attached)
    for patch in attached.patches():
        attempt(patch.apply)
    attempt(attached.listen_to_steps)
    atexit.register(attached.close)


def install_sharded() -> None:
    """Patch FSDP2, which was just imported."""
    for attached in ATTACHED:
        for patch in attached.sharded.patches():
            attempt(patch.apply)


def attach(settings: HookSettings, on_row: Callable[[Measured], None]) -> Attached:
    """Return the agent of this process, with what a restart needs only if there may be one."""
    if settings.wish is None:
        return Attached(settings.rank, on_row)
    from worker_agent.hooks.inventory import Inventory
    from worker_agent.hooks.warm_restart import WarmRestart

    restart = WarmRestart(settings, Inventory())
    return Attached(settings.rank, on_row, Path(settings.wish), restart)


def attempt(patch: Callable[[], None]) -> None:
    """Try one patch; training goes on without it."""
    try:
        patch()
    except Exception:
        log.exception("scavenger: PyTorch %s is not measured completely", torch.__version__)


class Measuring:
    """What ``measure`` returns.

    Attributes:
        rows: The newest rows, on the first rank only; each comes a moment after its iteration.
    """

    def __init__(self, attached: Attached, rows: deque[Measured]) -> None:
        self._attached, self.rows = attached, rows

    def close(self) -> None:
        """Wait a moment for what is on its way; call it before ``destroy_process_group``."""
        self._attached.close()


def measure(module: DistributedDataParallel, optimizer: Optimizer) -> Measuring:
    """Measure a DDP module from now on, without patching anything.

    Args:
        module: If its gradients are bucket views it must have no communication hook, nor get one.
        optimizer: Whose steps end the iterations.
    """
    rows: deque[Measured] = deque(maxlen=MOST_ROWS)
    attached = Attached(0, rows.append)
    attached.parallel.listen(module)
    optimizer.register_step_post_hook(attached.after_step)
    return Measuring(attached, rows)
