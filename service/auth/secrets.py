"""Secrets of jobs, kept in files so that neither requests nor tables contain them.

Each secret is a file ``<project>/<NAME>`` below the store's directory. A job lists names in
``run.secrets``, and its machines receive the values when they enrol.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class SecretStore:
    """A directory of secrets.

    Attributes:
        root: The directory; None stands for an empty store.
    """

    root: Path | None

    def missing_names(self, project: str, names: Sequence[str]) -> Sequence[str]:
        """Return the names that the project has no file for."""
        files = self._files(project)
        return [name for name in names if name not in files]

    def read(self, project: str, names: Sequence[str]) -> Mapping[str, str]:
        """Return the secrets that exist, by name; a newline at the end is not part of them."""
        files = self._files(project)
        return {name: files[name].read_text().rstrip("\n") for name in names if name in files}

    def _files(self, project: str) -> Mapping[str, Path]:
        # A name from a job document never becomes part of a path: `../` would read other files.
        if self.root is None or not self.root.is_dir():
            return {}
        rooms = {room.name: room for room in self.root.iterdir() if room.is_dir()}
        files = rooms[project].iterdir() if project in rooms else ()
        return {file.name: file for file in files if file.is_file()}


EMPTY_SECRET_STORE = SecretStore(None)
