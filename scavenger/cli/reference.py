"""Finds the job a person means: by id, part of an id, name, or ``latest``."""

from __future__ import annotations

from collections.abc import Iterable

from scavenger.cli.errors import AmbiguousJob, NoSuchJob
from scavenger.client.client import Client
from scavenger.view import JobView

PREFIX = "job_"
LATEST = "latest"


def find_job(client: Client, reference: str) -> JobView:
    """Return the job a reference means; the controller is asked for those alone that fit.

    Raises:
        NoSuchJob: No job fits: list what there is.
        AmbiguousJob: Several ids fit: write more of it.
    """
    if reference == LATEST:
        return pick(client.newest_jobs(limit=1).jobs, reference)
    return pick(client.jobs(reference) if reference else (), reference)


def pick(jobs: Iterable[JobView], reference: str) -> JobView:
    """Pick from jobs, newest first: the latest, the newest by name, or the only one by id."""
    candidates = []
    for job in jobs:
        if reference in (LATEST, job.name, job.id):
            return job
        if is_part(reference, job.id):
            candidates.append(job)
    if not candidates:
        raise NoSuchJob(reference)
    if len(candidates) > 1:
        raise AmbiguousJob(reference, [job.id for job in candidates])
    return candidates[0]


def is_part(reference: str, job_id: str) -> bool:
    """Tell whether an id begins or ends with a reference, its prefix not counted.

    >>> [is_part(text, "job_01JC8Q") for text in ("job_01", "01JC", "C8Q", "1JC", "")]
    [True, True, True, False, False]
    """
    bare = job_id.removeprefix(PREFIX)
    is_start = job_id.startswith(reference) or bare.startswith(reference)
    return bool(reference) and (is_start or bare.endswith(reference))
