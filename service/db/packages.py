"""The code that jobs run: archives by project and SHA-256, which a job document names.

An archive is stored once in each project that sent it, so that a hash opens nothing of another
project.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import (
    Boolean,
    Connection,
    Engine,
    delete,
    func,
    literal_column,
    select,
    tuple_,
    update,
)
from sqlalchemy.dialects.postgresql import insert

from service.db.schema import jobs, packages

PART_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredPackage:
    """An archive, without its content.

    Attributes:
        size: Bytes of the archive.
        last_used: When it was last sent, or a job that names it submitted.
    """

    project: str
    sha256: str
    size: int
    created_at: datetime
    last_used: datetime


FACTS = (
    packages.c.project,
    packages.c.sha256,
    packages.c.size,
    packages.c.created_at,
    packages.c.last_used,
)


def find(connection: Connection, project: str, sha256: str) -> StoredPackage | None:
    """Return an archive of a project; None if it has none of that hash."""
    is_it = (packages.c.project == project, packages.c.sha256 == sha256)
    row = connection.execute(select(*FACTS).where(*is_it)).first()
    return None if row is None else StoredPackage(*row)


def store(
    connection: Connection, project: str, sha256: str, content: bytes, now: datetime
) -> tuple[StoredPackage, bool]:
    """Store an archive unless it is there; returns it, and whether it is new."""
    row = {"project": project, "sha256": sha256, "size": len(content), "content": content}
    query = insert(packages).values(**row, created_at=now, last_used=now)
    # A row that this statement inserted has no transaction that ended its version.
    is_new = literal_column("xmax = 0", Boolean)
    stored = connection.execute(
        query.on_conflict_do_update(
            index_elements=["project", "sha256"], set_={"last_used": now}
        ).returning(*FACTS, is_new)
    ).one()
    return StoredPackage(*stored[:-1]), bool(stored[-1])


def record_use(connection: Connection, project: str, sha256: str, now: datetime) -> bool:
    """Record that a job names an archive; False if the project has none of that hash.

    The row stays locked until the job is stored, so that it is not deleted meanwhile.
    """
    is_it = (packages.c.project == project, packages.c.sha256 == sha256)
    used = connection.execute(update(packages).where(*is_it).values(last_used=now))
    return bool(used.rowcount)


def read_parts(engine: Engine, package: StoredPackage) -> Iterator[bytes]:
    """Yield the content of an archive part by part, each read in a transaction of its own.

    A slow reader holds neither a connection nor more than one part in memory.
    """
    is_it = (packages.c.project == package.project, packages.c.sha256 == package.sha256)
    for start in range(1, package.size + 1, PART_BYTES):
        part = func.substring(packages.c.content, start, PART_BYTES)
        with engine.connect() as connection:
            content = connection.execute(select(part).where(*is_it)).scalar_one()
        yield bytes(content)


def delete_unreferenced(connection: Connection, before: datetime) -> int:
    """Delete archives that no job names and that were last used before a moment.

    Returns:
        How many there were.
    """
    named = select(jobs.c.project, jobs.c.spec["run"]["code"].astext).where(
        jobs.c.spec["run"].has_key("code")
    )
    is_named = tuple_(packages.c.project, packages.c.sha256).in_(named)
    deleted = connection.execute(delete(packages).where(packages.c.last_used < before, ~is_named))
    return deleted.rowcount
