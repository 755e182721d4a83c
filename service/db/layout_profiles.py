"""Profiles of models: what a machine measured once, and the layouts of a job follow from.

A job takes over the profile of the newest job of its project that trains the same, as it takes
over the model of its laws. If both run the same code, it leaves out the layouts that the other one
left out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select
from sqlalchemy.dialects.postgresql import insert

from scavenger.job.run import RunSpec
from scavenger.measurement.layout_profile import LAYOUT_PROFILE, LayoutProfile
from scavenger.stack import StackCheck
from service.db import directives, jobs, measurements
from service.db.schema import layout_profiles


@dataclass(frozen=True, slots=True)
class StoredProfile:
    """What is known of the layouts of a job's model.

    Attributes:
        profile: The profile; None where the model could not be profiled.
        failure: Why it could not be; empty where it was.
        refusals: Layouts that the job which was profiled did without, where another takes over
            the profile.
    """

    profile: LayoutProfile | None
    failure: str = ""
    refusals: tuple[StackCheck, ...] = ()


def record(
    connection: Connection,
    job: str,
    project: str,
    signature: str,
    found: StoredProfile,
    now: datetime,
) -> bool:
    """Store the profile of a job's model; False if it has one already, which stays."""
    document = None
    if found.profile is not None:
        document = LAYOUT_PROFILE.dump_python(found.profile, mode="json", exclude_defaults=True)
    row = {
        "job": job,
        "project": project,
        "signature": signature,
        "profile": document,
        "failure": found.failure,
        "at": now,
    }
    query = insert(layout_profiles).values(row).on_conflict_do_nothing()
    return connection.execute(query.returning(layout_profiles.c.job)).first() is not None


def of_jobs(connection: Connection, wanted: Collection[str]) -> Mapping[str, StoredProfile]:
    """Return the profiles of those jobs that have one, by job."""
    query = select(
        layout_profiles.c.job, layout_profiles.c.profile, layout_profiles.c.failure
    ).where(layout_profiles.c.job.in_(wanted))
    return {
        str(job): StoredProfile(
            None if document is None else LAYOUT_PROFILE.validate_python(document), failure
        )
        for job, document, failure in connection.execute(query)
    }


def newest(
    connection: Connection, project: str, signature: str, run: RunSpec
) -> StoredProfile | None:
    """Return the newest profile of a project's jobs that train the same; None without any.

    Args:
        connection: The database.
        project: The project.
        signature: What the jobs train.
        run: What the job runs that takes over the profile.
    """
    table = layout_profiles
    query = (
        select(table.c.job, table.c.profile)
        .where(
            table.c.project == project,
            table.c.signature == signature,
            table.c.profile.is_not(None),
        )
        .order_by(table.c.at.desc())
        .limit(1)
    )
    found = connection.execute(query).first()
    if found is None:
        return None
    profile = LAYOUT_PROFILE.validate_python(found.profile)
    return StoredProfile(profile, refusals=_lasting_refusals(connection, found.job, run))


def _lasting_refusals(connection: Connection, job: str, run: RunSpec) -> tuple[StackCheck, ...]:
    """Return the layouts in which the same run would fail again.

    Other code may have been mended, and what is not in the controller's store may have changed. A
    job that trained in no layout at all failed for another reason.
    """
    if run.code is None or not directives.newest_trained_layout(connection, job):
        return ()
    earlier = jobs.find(connection, job)
    if earlier is None or earlier.spec.run != run:
        return ()
    checks = measurements.stack_checks_of_jobs(connection, [job])[job]
    return tuple(check for check in checks if check.refusal)
