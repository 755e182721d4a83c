"""`ControllerBundles`: compiled code of a project's machines, kept by the controller."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from scavenger.worker_env import WorkerEnv
from worker_agent.controller import ControllerClient
from worker_agent.errors import ControllerRefused, ControllerUnreachable


@dataclass(frozen=True, slots=True)
class ControllerBundles:
    """Archives of compiled code; a `BundleStore`.

    Attributes:
        folder: Folder of this machine that compiled code may be in.
        secret: What the machines of the project sign with.
        controller: Where archives are kept.
    """

    folder: Path
    secret: bytes = field(repr=False)
    controller: ControllerClient

    def fetch(self, key: str) -> bytes | None:
        """Return the archive of a key; None without one; raises ConnectionError."""
        try:
            return self.controller.fetch_bundle(key)
        except (ControllerUnreachable, ControllerRefused) as error:
            raise ConnectionError(str(error)) from error

    def store(self, key: str, archive: bytes) -> None:
        """Keep an archive for the project; raises ConnectionError."""
        try:
            self.controller.store_bundle(key, archive)
        except (ControllerUnreachable, ControllerRefused) as error:
            raise ConnectionError(str(error)) from error


def open_bundles(settings: WorkerEnv, controller: object) -> ControllerBundles | None:
    """Return where compiled code of the project is; None where none is shared."""
    if not settings.bundle_secret or settings.spool is None:
        return None
    if not isinstance(controller, ControllerClient):
        return None
    folder = Path(settings.spool).with_name("compiled")
    return ControllerBundles(folder, settings.bundle_secret.encode(), controller)
