"""The files of the dashboard, which its build leaves beside the controller's own.

They are read once, when a controller starts. A request names a file in this value and never one of
the disk, so no path leads out of it.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

STATIC_DIRECTORY = Path(__file__).parent / "dashboard" / "static"
MIN_COMPRESSED_BYTES = 1024
# Written down, since the tables of operating systems differ, and a browser refuses a script of
# another type.
FILE_TYPES: Mapping[str, str] = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
PACKED_ALREADY = (".png", ".woff2")
NOT_BUILT = b"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<link rel="icon" href="data:,">
<title>Scavenger: no dashboard</title>
</head>
<body>
<h1>The dashboard is not built</h1>
<p>The controller works, and so do its API and the command line. This installation has no files of
the dashboard. To build them, run <code>pip install .</code> in the repository, or install a
wheel, and start the controller again.</p>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class StaticFile:
    """A file as it is served.

    Attributes:
        compressed: The same by gzip; None where that is no shorter.
        digest: Tells this content from others.
    """

    content: bytes = field(repr=False)
    media_type: str
    compressed: bytes | None = field(repr=False)
    digest: str

    @classmethod
    def of(cls, content: bytes, suffix: str) -> StaticFile:
        """Prepare a file, by its content and the end of its name."""
        packed = None
        if len(content) >= MIN_COMPRESSED_BYTES and suffix not in PACKED_ALREADY:
            packed = gzip.compress(content, mtime=0)
        media_type = FILE_TYPES.get(suffix, "application/octet-stream")
        return cls(content, media_type, packed, sha256(content).hexdigest()[:32])


@dataclass(frozen=True, slots=True)
class DashboardFiles:
    """The page of the dashboard, and what it loads.

    Attributes:
        index: The page, the same for every path of it.
        assets: Its scripts, styles and pictures, by their path below ``assets/``. Each name holds
            a hash of the content, so a name never means another content.
    """

    index: StaticFile
    assets: Mapping[str, StaticFile]

    @classmethod
    def read(cls, directory: Path = STATIC_DIRECTORY) -> DashboardFiles:
        """Read what the build has left; without it, the page says how to build the dashboard."""
        page, folder = directory / "index.html", directory / "assets"
        if not page.is_file():
            return DASHBOARD_NOT_BUILT
        files = (file for file in sorted(folder.rglob("*")) if file.is_file())
        return cls(
            StaticFile.of(page.read_bytes(), ".html"),
            {
                file.relative_to(folder).as_posix(): StaticFile.of(file.read_bytes(), file.suffix)
                for file in files
            },
        )


DASHBOARD_NOT_BUILT = DashboardFiles(StaticFile.of(NOT_BUILT, ".html"), {})
