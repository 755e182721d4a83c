"""Stored models: what finished jobs have taught, by project and signature."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import TypeAdapter
from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Text,
    literal_column,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import insert

from scavenger.models.epochs import FinishedRun, Kappa
from scavenger.models.performance import fit_step_time_to_probes
from scavenger.planning.transfer import StoredModel
from service.auth.permissions import EVERY_PROJECT
from service.db.schema import forgotten_models, models

STORED_MODEL = TypeAdapter(StoredModel)
MAX_RUNS_KEPT = 32
MAX_MODELS_CACHED = 2000

# xmin (the writing transaction) or ctid (the place) changes with every update of a row.
ROW_VERSION = literal_column("models.xmin::text || models.ctid::text", Text)
ModelVersion = tuple[str, str]

# Every tick of every job asks, and models seldom change.
MODEL_CACHE: WeakKeyDictionary[Engine, dict[ModelVersion, StoredModel]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A stored model, and where it stands among the others."""

    project: str
    model_key: str
    model: StoredModel
    updated_at: datetime


def find(connection: Connection, project: str, signature: str) -> StoredModel | None:
    """Return the stored model of a signature, if the project has one."""
    mine = (models.c.project == project, models.c.signature == signature)
    query = select(models.c.model).where(*mine, is_remembered())
    row = connection.execute(query).scalar()
    return None if row is None else with_uncertainty(STORED_MODEL.validate_python(row))


def with_uncertainty(stored: StoredModel) -> StoredModel:
    """Return a stored model with what its fit left open.

    Models stored before fits said so would count as known exactly: they are fitted anew.
    """
    model, observations = stored.model, stored.observations
    if model.parallel.spread is not None or not observations:
        return stored
    statistical = model.statistical
    if statistical.critical_batch is not None and not statistical.critical_deviation:
        statistical = replace(statistical, critical_deviation=Kappa().deviation)
    fresh = replace(model, parallel=fit_step_time_to_probes(observations), statistical=statistical)
    return replace(stored, model=fresh)


def is_remembered() -> ColumnElement[bool]:
    """Tell of a model whether it has learned something since it was to be forgotten, if ever."""
    same = (
        forgotten_models.c.project == models.c.project,
        forgotten_models.c.signature == models.c.signature,
    )
    return (
        ~select(forgotten_models)
        .where(*same, forgotten_models.c.at >= models.c.updated_at)
        .exists()
    )


def forget(connection: Connection, project: str, signature: str, now: datetime) -> None:
    """Ask that a model is forgotten as it is now: the next job of its signature searches anew.

    The row stays until that job replaces it. A reconciler that has read it before may still store
    what it grew to, with the moment of its reading, and that is not remembered either.
    """
    row = {"project": project, "signature": signature, "at": now}
    query = insert(forgotten_models).values(row)
    connection.execute(
        query.on_conflict_do_update(index_elements=["project", "signature"], set_={"at": now})
    )


def store(
    connection: Connection, project: str, model_key: str, model: StoredModel, now: datetime
) -> None:
    """Store a model, over the one it grew from."""
    content = {
        "model_key": model_key,
        "model": STORED_MODEL.dump_python(model, mode="json"),
        "jobs": model.jobs,
        "updated_at": now,
    }
    key = {"project": project, "signature": model.signature}
    query = insert(models).values(**key, **content)
    connection.execute(query.on_conflict_do_update(index_elements=list(key), set_=content))


def newest(
    connection: Connection,
    project: str,
    limit: int | None = None,
    before: tuple[datetime, str, str] | None = None,
    signature: str | None = None,
    *,
    is_forgotten: bool = False,
) -> list[ModelRow]:
    """Return a project's stored models with their keys and ages, newest first, below a position.

    Args:
        connection: Where from.
        project: Whose, or every one's.
        limit: How many at most; None for all.
        before: Position of the last one that is not wanted any more.
        signature: Only those with this signature.
        is_forgotten: Whether those count, too, that are to be forgotten.
    """
    position = (models.c.updated_at, models.c.project, models.c.signature)
    query = select(models).order_by(*(column.desc() for column in position))
    if not is_forgotten:
        query = query.where(is_remembered())
    if signature is not None:
        query = query.where(models.c.signature == signature)
    if project != EVERY_PROJECT:
        query = query.where(models.c.project == project)
    if before is not None:
        query = query.where(tuple_(*position) < before)
    return [
        ModelRow(
            row.project,
            row.model_key,
            with_uncertainty(STORED_MODEL.validate_python(row.model)),
            row.updated_at,
        )
        for row in connection.execute(query.limit(limit))
    ]


def recent(connection: Connection, project: str, limit: int) -> tuple[StoredModel, ...]:
    """Return a project's models, newest first; only what has changed is read again."""
    mine = select(models.c.signature, ROW_VERSION).where(
        models.c.project == project, is_remembered()
    )
    return _cached(connection, project, mine.order_by(models.c.updated_at.desc()).limit(limit))


def known(
    connection: Connection, project: str, signatures: Collection[str]
) -> Mapping[str, StoredModel]:
    """Return those models of a project there are, by signature; only what changed is read again."""
    mine = select(models.c.signature, ROW_VERSION).where(
        models.c.project == project, is_remembered()
    )
    found = _cached(connection, project, mine.where(models.c.signature.in_(signatures)))
    return {model.signature: model for model in found}


def _cached(connection: Connection, project: str, versions: Select[Any]) -> tuple[StoredModel, ...]:
    kept = MODEL_CACHE.get(connection.engine, {})
    listed = [(row[0], row[1]) for row in connection.execute(versions)]
    known = {version[0]: kept[version] for version in listed if version in kept}
    unread = [signature for signature, _ in listed if signature not in known]
    if unread:
        fresh = _read(connection, project, unread)
        MODEL_CACHE[connection.engine] = {
            **(kept if len(kept) < MAX_MODELS_CACHED else {}),
            **fresh,
        }
        known |= {signature: model for (signature, _), model in fresh.items()}
    return tuple(known[signature] for signature, _ in listed if signature in known)


def _read(
    connection: Connection, project: str, signatures: Sequence[str]
) -> dict[ModelVersion, StoredModel]:
    query = select(models.c.signature, ROW_VERSION, models.c.model)
    theirs = (models.c.project == project, models.c.signature.in_(signatures))
    rows = connection.execute(query.where(*theirs))
    return {
        (row[0], row[1]): with_uncertainty(STORED_MODEL.validate_python(row[2])) for row in rows
    }


def merge_job(earlier: StoredModel | None, fresh: StoredModel) -> StoredModel:
    """Add a finished job to what is stored: its laws replace, targets, runs and count add up."""
    if earlier is None:
        return fresh
    return replace(
        fresh,
        epochs_by_target={**rescale_epochs(earlier, fresh), **fresh.epochs_by_target},
        jobs=earlier.jobs + fresh.jobs,
        runs=merge_runs(earlier, fresh),
    )


def merge_runs(earlier: StoredModel, fresh: StoredModel) -> dict[str, tuple[FinishedRun, ...]]:
    """Return the newest runs to each target, oldest first."""
    targets = dict.fromkeys((*earlier.runs, *fresh.runs))
    return {
        target: (*earlier.runs.get(target, ()), *fresh.runs.get(target, ()))[-MAX_RUNS_KEPT:]
        for target in targets
    }


def rescale_epochs(earlier: StoredModel, fresh: StoredModel) -> dict[str, float]:
    """Return the earlier epochs to each target, counted at the fresh reference batch."""
    reference = fresh.model.reference_batch
    epochs = {t: earlier.epochs_to(t, reference) for t in earlier.epochs_by_target}
    return {target: value for target, value in epochs.items() if value is not None}
