"""What can go wrong beside the training process that the agent must handle.

::

    AgentError
    ├── ControllerUnreachable    no answer that makes sense: carry on, ask again later
    ├── ControllerRefused        the controller understood and said no: do not repeat it
    ├── Broken                   a generation's collective failed: wait for a newer Directive
    ├── Aborted                  a change was called off: go on in the generation before
    ├── StateRefused             a state cannot be carried or does not fit: its message says where
    ├── OptimizerRefused         an optimizer steps in a way that cannot be followed
    ├── ReadAhead                a script asks for batches before it trains on those it has
    └── SpoolUnusable            in use, or another's: do without, or name another directory
"""

from __future__ import annotations


class AgentError(Exception):
    """Root of everything the agent raises on purpose."""


class ControllerUnreachable(AgentError):
    """The controller did not answer, or not sensibly; training goes on, ask again later."""


class ControllerRefused(AgentError):
    """The controller said no (4xx); repeating the same words will not help.

    Attributes:
        status: HTTP status of the answer.
        text: What the controller wrote.
    """

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(f"{status}: {text}")


class Broken(AgentError):
    """A generation could not be formed or fell apart; wait for a newer Directive."""


class Aborted(AgentError):
    """A change was called off before anybody left the generation before; go on in it."""


class StateRefused(AgentError):
    """A state holds what cannot be carried, or does not fit this model; nothing was changed.

    Start anew without it, and show the person the message: it names the place.
    """


class OptimizerRefused(AgentError):
    """The script's optimizer steps in a way that the agent cannot follow.

    No wrong weight was trained. Show the person the message: it says what to do instead.
    """


class ReadAhead(AgentError):
    """The script asked for a batch before it had trained on the one before.

    No wrong weight was trained. Show the person the message: it says what to do instead.
    """


class SpoolUnusable(AgentError):
    """A spool is in use, or not this worker's, or none; go on without, or use another directory."""
