"""ETag: the version of a job as it was shown, and the conditions If-Match and If-None-Match.

A tag has two halves. The first hashes what is decided about the job, the second everything shown,
progress and measurements included. If-None-Match compares both, so a poller learns of any change.
If-Match compares the first half only: a client that changes a job wants to know that nothing else
was decided meanwhile, and would never succeed on a training job if progress counted. Nor do the
probes of a search count, which follow one another in seconds: nothing is chosen before it ends, and
that is another phase. Values that follow from the clock alone are in neither half.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from fastapi import Header

from scavenger.schemas.jobs import JobPhase, JobView

ENTITY_TAG = re.compile(r'(W/)?"([!#-~]*)"')
MEASURED_FIELDS = {"progress", "indicators", "cost", "elapsed", "eta"}
# What a search changes from probe to probe.
PROBED_FIELDS = {
    "reason",
    "target",
    "applied",
    "generation",
    "search",
    "workers_alive",
    "servers_alive",
}
CLOCK_FIELDS: dict[str, bool | set[str]] = {
    "elapsed": True,
    "eta": True,
    "cost": {"accrued", "search", "forecast", "reserved"},
}

IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match",
        description="Act only if nothing was decided since the answer with this ETag",
        max_length=1000,
    ),
]
IfNoneMatch = Annotated[
    str | None,
    Header(
        alias="If-None-Match",
        description="Answer 304 if nothing changed since the answer with this ETag",
        max_length=1000,
    ),
]


@dataclass(frozen=True, slots=True)
class JobETag:
    """A version of a job.

    Attributes:
        decided: Changes with what is decided.
        shown: Changes with anything that is shown.
    """

    decided: str
    shown: str

    @classmethod
    def of(cls, job: JobView) -> JobETag:
        is_searched = job.phase is JobPhase.PROBING
        undecided = MEASURED_FIELDS | PROBED_FIELDS if is_searched else MEASURED_FIELDS
        return cls(
            short_digest(job.model_dump_json(exclude=undecided)),
            short_digest(job.model_dump_json(exclude={**CLOCK_FIELDS})),
        )

    def __str__(self) -> str:
        return f'"{self.decided}-{self.shown}"'

    def satisfies_if_none_match(self, condition: str) -> bool:
        """Tell whether the list of If-None-Match names exactly this version."""
        tags = {f'"{tag}"' for _, tag in ENTITY_TAG.findall(condition)}
        return condition.strip() == "*" or str(self) in tags

    def satisfies_if_match(self, condition: str) -> bool:
        """Tell whether nothing was decided since one of the versions in the list of If-Match."""
        # A weak tag never agrees: RFC 9110 asks for the strong comparison here.
        strong = {tag.partition("-")[0] for weak, tag in ENTITY_TAG.findall(condition) if not weak}
        return condition.strip() == "*" or self.decided in strong


def short_digest(text: str) -> str:
    """Return a hash that is long enough to tell two versions apart."""
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]
