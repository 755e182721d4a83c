"""What can go wrong in a command besides what the client says.

::

    CommandError
    ├── UnusableDocument     a document or a table cannot be used: correct what ``problems`` name
    ├── NoSuchTable          no table, or several, by this name: name one of those there are
    ├── NothingFits          no configuration meets the limits: relax one
    ├── NoPlots              what draws pictures is not installed: install it
    ├── NoSuchJob            no job goes by this: list what there is
    ├── AmbiguousJob         several jobs go by this: write more of the id
    ├── NoCurve              too little of a job is measured for a curve: wait for its first probe
    ├── NothingHeld          no machine waits for a confirmation: there is nothing to do
    ├── NeedsAnswer          a question, and nobody to answer it: pass the flag
    └── ControllerDied       the controller this command started ended: read its last lines
"""

from __future__ import annotations

from collections.abc import Sequence

from scavenger.errors import Problem
from scavenger.view import JobView


class CommandError(Exception):
    """Root of everything a command raises on purpose."""


class UnusableDocument(CommandError):
    """A job document or a table cannot be used; correct what its problems name.

    Attributes:
        source: The file, as the user wrote it.
        problems: What is wrong, in order of appearance.
        remedy: What to do once it is corrected.
    """

    def __init__(
        self, source: str, problems: Sequence[Problem], remedy: str = "submit again"
    ) -> None:
        self.source = source
        self.problems = tuple(problems)
        self.remedy = remedy
        super().__init__(f"{source}: {'; '.join(map(str, self.problems))}")


class NoSuchTable(CommandError):
    """No table goes by this name, or several do and one is needed; name one of those there are.

    Attributes:
        names: Tables there are to choose from.
    """

    def __init__(self, what: str, names: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(what)


class NothingFits(CommandError):
    """No configuration meets the limits; relax the one that the message names."""


class NoPlots(CommandError):
    """What draws pictures is not installed; install it, or leave the picture out."""


class NoSuchJob(CommandError):
    """No job goes by this reference; list what there is."""

    def __init__(self, reference: str) -> None:
        self.reference = reference
        super().__init__(f"no job goes by {reference}")


class AmbiguousJob(CommandError):
    """Several jobs go by this reference; write more of the id.

    Attributes:
        candidates: Ids that fit.
    """

    def __init__(self, reference: str, candidates: Sequence[str]) -> None:
        self.reference = reference
        self.candidates = tuple(candidates)
        super().__init__(f"{len(self.candidates)} jobs go by {reference}")


class NoCurve(CommandError):
    """Too little of a job is measured for a curve; wait for its first probe, if it goes on.

    Attributes:
        job: The job.
        why: What keeps it, as far as the controller says.
    """

    def __init__(self, job: JobView, why: str) -> None:
        self.job = job
        self.why = why
        super().__init__(f"{job.name} ({job.id}) has no curve")


class NothingHeld(CommandError):
    """No machine waits for a confirmation; there is nothing to do."""


class NeedsAnswer(CommandError):
    """A question has to be answered and nobody is there; pass the flag instead."""

    def __init__(self, question: str, flag: str) -> None:
        self.question = question
        self.flag = flag
        super().__init__(f"{question} pass {flag}")


class ControllerDied(CommandError):
    """The controller this command started ended or never answered; read its last lines."""

    def __init__(self, what: str, tail: str) -> None:
        self.tail = tail
        super().__init__(what)
