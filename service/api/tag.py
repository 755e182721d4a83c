"""Tag: the version of a job as it was seen, in the header ETag, and conditions on it.

A tag has two halves. The first is of what is decided about a job and changes with it; the second is
of everything shown, progress and measurements included. Who asks again (If-None-Match) is told of
any change. Who wishes a change (If-Match) wants to know that nothing else was decided meanwhile,
and would never succeed on a job that trains if progress counted. What only follows from the clock
is in neither.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from fastapi import Header

from scavenger.view import JobView

WRITTEN = re.compile(r'(W/)?"([!#-~]*)"')
MEASURED = {"progress", "indicators", "cost", "elapsed"}
BY_THE_CLOCK: dict[str, bool | set[str]] = {
    "elapsed": True,
    "cost": {"accrued", "search", "forecast"},
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
class Tag:
    """A version of a job.

    Attributes:
        decided: Changes with what is decided.
        shown: Changes with anything that is shown.
    """

    decided: str
    shown: str

    def __str__(self) -> str:
        return f'"{self.decided}-{self.shown}"'

    def is_among(self, condition: str) -> bool:
        """Tell whether this very version is in the list of If-None-Match."""
        return condition.strip() == "*" or str(self) in {f'"{tag}"' for _, tag in read(condition)}

    def agrees_with(self, condition: str) -> bool:
        """Tell whether nothing was decided since one of the versions in the list of If-Match."""
        strong = {tag.partition("-")[0] for weak, tag in read(condition) if not weak}
        return condition.strip() == "*" or self.decided in strong


def tag_of(job: JobView) -> Tag:
    """Return the version of a job."""
    return Tag(
        digest(job.model_dump_json(exclude=MEASURED)),
        digest(job.model_dump_json(exclude={**BY_THE_CLOCK})),
    )


def digest(text: str) -> str:
    """Shorten text to what still tells two versions apart."""
    return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def read(condition: str) -> list[tuple[str, str]]:
    """Read a list of tags: whether each is weak, and its text; what is no tag is left out."""
    return WRITTEN.findall(condition)
