"""Compiled code that machines of a project share. It is signed by them, and never opened here."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, delete, func, select, update
from sqlalchemy.dialects.postgresql import insert

from service.db.schema import bundles

MAX_PROJECT_BYTES = 2 << 30


def fetch(connection: Connection, project: str, key: str, now: datetime) -> bytes | None:
    """Return an archive and note its use; None if the project has none of that key."""
    is_it = (bundles.c.project == project, bundles.c.key == key)
    query = update(bundles).where(*is_it).values(last_used=now).returning(bundles.c.content)
    content: bytes | None = connection.execute(query).scalar()
    return content


def store(connection: Connection, project: str, key: str, content: bytes, now: datetime) -> None:
    """Keep an archive in place of an older one, and drop those that were not used for longest."""
    facts = {"size": len(content), "content": content, "last_used": now}
    query = insert(bundles).values(project=project, key=key, **facts)
    connection.execute(query.on_conflict_do_update(index_elements=["project", "key"], set_=facts))
    drop_oldest(connection, project, MAX_PROJECT_BYTES)


def drop_oldest(connection: Connection, project: str, most: int) -> None:
    """Drop the archives of a project beyond a number of bytes, the newest use kept."""
    newest = (bundles.c.last_used.desc(), bundles.c.key)
    so_far = func.sum(bundles.c.size).over(order_by=newest).label("so_far")
    ranked = select(bundles.c.key, so_far).where(bundles.c.project == project).subquery()
    beyond = select(ranked.c.key).where(ranked.c.so_far > most)
    connection.execute(
        delete(bundles).where(bundles.c.project == project, bundles.c.key.in_(beyond))
    )
