"""The agent's package, as a wheel that the controller makes of its own files.

Machines run the version of their controller: they fetch this wheel when they boot and compare its
hash with the one they were launched with.
"""

from __future__ import annotations

import base64
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

SOURCE_ROOT = Path(__file__).parents[1]
AGENT_PACKAGES = ("scavenger", "worker_agent")
# The agent's share of the dependencies in pyproject.toml.
REQUIREMENTS = ("annotated-types", "httpx", "numpy", "psutil", "pydantic")
FIRST_MOMENT = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class AgentPackage:
    """A wheel of the agent, without its dependencies.

    Attributes:
        content: The file.
        digest: Its SHA-256, in hexadecimal digits.
    """

    content: bytes = field(repr=False)
    digest: str

    @classmethod
    def build(cls, root: Path = SOURCE_ROOT) -> AgentPackage:
        """Pack the agent that is installed beside the controller.

        All controllers of one version make the same bytes: no clock, order of files or version of a
        compression library changes them.

        Args:
            root: Directory that holds the two packages.
        """
        information = f"scavenger-{version('scavenger')}.dist-info"
        files = {
            **dict(_sources(root)),
            f"{information}/METADATA": _metadata(),
            f"{information}/WHEEL": (
                b"Wheel-Version: 1.0\nGenerator: scavenger\n"
                b"Root-Is-Purelib: true\nTag: py3-none-any\n"
            ),
            f"{information}/entry_points.txt": (
                b"[console_scripts]\nscavenger = scavenger.cli:main\n"
            ),
        }
        record = f"{information}/RECORD"
        lines = [f"{name},sha256={_digest(text)},{len(text)}" for name, text in files.items()]
        files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as wheel:
            for name, text in files.items():
                entry = zipfile.ZipInfo(name, FIRST_MOMENT)
                entry.external_attr = 0o644 << 16
                wheel.writestr(entry, text)
        return cls(buffer.getvalue(), sha256(buffer.getvalue()).hexdigest())


def _sources(root: Path) -> Iterator[tuple[str, bytes]]:
    for package in AGENT_PACKAGES:
        for file in sorted((root / package).rglob("*.py")):
            yield file.relative_to(root).as_posix(), file.read_bytes()


def _metadata() -> bytes:
    lines = ["Metadata-Version: 2.1", "Name: scavenger", f"Version: {version('scavenger')}"]
    lines += ["Requires-Python: >=3.11", *(f"Requires-Dist: {name}" for name in REQUIREMENTS)]
    return "\n".join([*lines, ""]).encode()


def _digest(text: bytes) -> str:
    return base64.urlsafe_b64encode(sha256(text).digest()).rstrip(b"=").decode()
