"""The archive in which a user's code travels to the machines of a job: its format and limits.

It is a gzipped tar of regular files and of links that lead to others inside it, and its name is the
SHA-256 of its bytes. The client packs it, the controller stores it, and each machine unpacks it.
"""

from __future__ import annotations

import re

MEBIBYTE = 1 << 20
# A controller keeps archives in its database, and each machine of a job fetches one while it is
# paid for: data sets and weights belong into a store that is made for them.
MAX_PACKED_BYTES = 64 * MEBIBYTE
# Source text shrinks to a quarter, so one limit is seldom met before the other. A few kilobytes can
# be packed so that they unpack to terabytes, which would fill the disk of a machine.
MAX_UNPACKED_BYTES = 256 * MEBIBYTE
MAX_ENTRIES = 50_000  # an empty file takes nothing of a size, and an inode of a disk
MAX_LINK_DEPTH = 40  # as many links as Linux follows on the way to one file

CODE_DIGEST = re.compile("[0-9a-f]{64}")


def path_behind_link(
    directory: tuple[str, ...], target: str, links: dict[tuple[str, ...], str]
) -> tuple[str, ...] | None:
    """Return where a link leads, from the top of the archive; None if that is outside of it.

    Args:
        directory: The folder that the link is in, name by name.
        target: What the link says.
        links: All links of the archive, and what each says.

    Raises:
        ValueError: The link leads to itself.

    >>> path_behind_link(("a", "b"), "../c", {}), path_behind_link(("a",), "../../c", {})
    (('a', 'c'), None)
    """
    here, ahead, followed = list(directory), target.split("/")[::-1], 0
    if target.startswith("/"):
        return None
    while ahead:
        name = ahead.pop()
        if name == "..":
            if not here:
                return None
            here.pop()
        elif name not in ("", "."):
            here.append(name)
        if (further := links.get(tuple(here))) is not None:
            followed += 1
            if followed > MAX_LINK_DEPTH:
                raise ValueError("leads to itself")
            if further.startswith("/"):
                return None
            here.pop()
            ahead += further.split("/")[::-1]
    return tuple(here)
