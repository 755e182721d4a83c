"""What can go wrong beside the training process that the agent must handle.

::

    AgentError
    ├── ControllerUnreachable    no answer that makes sense: carry on, ask again later
    ├── ControllerRefused        the controller understood and said no: do not repeat it
    └── Broken                   a generation's collective failed: wait for a newer Directive
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
