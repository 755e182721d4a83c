"""Deletes checkpoints from buckets once newer ones are there, or their machines never finished."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime

from sqlalchemy import Engine

from service.clouds.clouds import Clouds
from service.clouds.object_store import HasObjectStore, ObjectStore
from service.db import checkpoints
from service.db.checkpoints import KeptCheckpoint
from service.errors import CloudError

log = logging.getLogger(__name__)

DELETION_INTERVAL = 60.0


def delete_old_checkpoints(engine: Engine, clouds: Clouds, now: datetime) -> int:
    """Delete what may be deleted now; returns how many checkpoints.

    A row is dropped once the bucket has confirmed the deletion of each object, so that nothing is
    left behind if this controller dies. Those in a bucket that no entry names now stay.
    """
    count = 0
    for provider in clouds:
        store = provider.object_store if isinstance(provider, HasObjectStore) else None
        if store is None:
            continue
        with engine.begin() as connection:
            claimed = checkpoints.claim_deletable(connection, provider.name, store.url, now)
        deleted = tuple(_delete(store, claimed))
        with engine.begin() as connection:
            checkpoints.drop_deleted(connection, deleted)
        count += len(deleted)
    return count


def _delete(store: ObjectStore, doomed: Sequence[KeptCheckpoint]) -> Iterator[KeptCheckpoint]:
    """Yield those of which the bucket has nothing any more; one that fails is the last."""
    for checkpoint in doomed:
        try:
            for name in checkpoint.names:
                store.delete(name)
        except CloudError as error:
            log.warning("old checkpoints in %s are deleted later: %s", store.url, error)
            return
        yield checkpoint
