"""Where the checkpoints of a job are: a directory that outlives its machines, or a bucket.

From buckets old ones are deleted once newer ones are there, or their machines never finished.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from sqlalchemy import Engine

from scavenger.job.run import CheckpointsSpec
from scavenger.job.spec import JobSpec
from service.clouds.clouds import Clouds
from service.clouds.object_store import HasObjectStore, ObjectStore
from service.db import checkpoints
from service.db.checkpoints import KeptCheckpoint
from service.errors import CloudError

log = logging.getLogger(__name__)

DELETION_INTERVAL = 60.0


@dataclass(frozen=True, slots=True)
class CheckpointStorage:
    """Finds the place of a job's checkpoints.

    A directory that a job names comes first, then the bucket of its cloud, then a directory of this
    controller, which machines reach that are processes of this computer. The controller never
    deletes a directory: users paid for it and decide when to.

    Attributes:
        root: Directory of those that no job puts elsewhere.
        clouds: Their entries may name buckets; None knows no cloud.
    """

    root: Path
    clouds: Clouds | None = field(default=None, repr=False)

    def directory(self, job: str, spec: JobSpec) -> Path | None:
        """Return the directory of a job; None where each machine has one of its own."""
        named = checkpoint_settings(spec).directory
        if named is not None:
            return Path(named) / job
        is_rented = self.clouds is not None and self.clouds.traits_of(spec).is_rented
        return None if is_rented else self.root / "checkpoints" / job

    def bucket(self, spec: JobSpec) -> tuple[str, ObjectStore] | None:
        """Return the cloud and bucket of a job; None if it has none, or names a directory."""
        is_elsewhere = checkpoint_settings(spec).directory is not None
        provider = None if self.clouds is None else self.clouds.find(spec)
        if is_elsewhere or not writes_checkpoints(spec) or not isinstance(provider, HasObjectStore):
            return None
        store = provider.object_store
        return None if store is None else (provider.name, store)

    def location(self, job: str, spec: JobSpec) -> str | None:
        """Return where a user finds the checkpoints of a job; None if only its machines do."""
        found = self.bucket(spec)
        if found is not None:
            return f"{found[1].url}/{job}"
        directory = self.directory(job, spec)
        return None if directory is None else str(directory)

    def warning(self, spec: JobSpec) -> str | None:
        """Return what a user should know of a job whose checkpoints end with its machines."""
        if self.location("", spec) is not None or not writes_checkpoints(spec):
            return None
        return (
            "checkpoints stay on the job's machines: if all of these end at once, training starts "
            "over. Name a bucket in the entry of the clouds file (checkpoints), or in "
            "run.checkpoints.directory storage that all machines reach"
        )


def checkpoint_settings(spec: JobSpec) -> CheckpointsSpec:
    """Return how often a job is saved, by default where its document does not say."""
    return spec.run.checkpoints or CheckpointsSpec()


def writes_checkpoints(spec: JobSpec) -> bool:
    """Tell whether the workers of a job write checkpoints."""
    return spec.strategy.writes_checkpoints


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
