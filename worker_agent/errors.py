"""Errors that the agent raises on purpose and that its callers must handle.

::

    ScavengerError
    └── AgentError
        ├── ControllerUnreachable    no valid answer: carry on and retry later
        ├── ControllerRefused        the controller declined: do not repeat the request
        ├── BucketUnavailable        it took or gave no checkpoint: training goes on, retry later
        ├── CodeUnusable             the user's code cannot be unpacked: the machine ends
        ├── GenerationBroken         a generation's collective failed: wait for a newer Directive
        ├── ChangeAborted            a change was cancelled: continue in the current generation
        ├── LayoutChanged            the processes share the model in another way: start them again
        ├── StateRefused             it cannot be saved or sent, or does not fit: see the message
        ├── UnsupportedModel         no framework that is loaded has it: the message says what is
        ├── UnsupportedStrategy      the framework lacks it: the message names those it has
        ├── UnsupportedOptimizer     an optimizer steps in a way that the agent cannot follow
        ├── UnsupportedServerOptimizer  an optimizer that parameter servers cannot run
        ├── ProcessLost              another process of this worker has ended: end, too
        ├── ReadAhead                a script draws a batch before it has trained on the one before
        ├── SpoolUnusable            in use, or another worker's: use another directory, or none
        ├── MalformedFrame           received bytes are not a valid frame: close the connection
        └── Fenced                   a message from a generation that is over: the server refuses it
"""

from __future__ import annotations

from scavenger.errors import ExitCode, ScavengerError


class AgentError(ScavengerError):
    """Root of everything the agent raises on purpose."""


class ControllerUnreachable(AgentError):
    """The controller sent no valid answer; training goes on, retry later.

    Attributes:
        status: HTTP status of the answer; None without one.
    """

    exit_code = ExitCode.UNREACHABLE
    headline = "no controller answers"
    remedy = (
        "name another address: --url URL. Else nothing is lost: run the same command again later"
    )

    def __init__(self, why: str, status: int | None = None) -> None:
        self.status = status
        super().__init__(why)


class ControllerRefused(AgentError):
    """The controller declined the request (4xx); repeating it will not help.

    Attributes:
        status: HTTP status of the answer.
        text: Body of the answer.
    """

    headline = "the controller refuses it"

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        self.text = text
        super().__init__(f"{status}: {text}")
        self._next_step = "read what the controller logged"
        match status:
            case 401 | 403:
                self.exit_code = ExitCode.AUTHENTICATION
                self._next_step = "pass the token of an operator: SCAVENGER_TOKEN or --token"
            case 404:
                self.exit_code = ExitCode.NOT_FOUND
                self._next_step = "name the controller that ran the job: --url URL"
            case 409:
                self.exit_code = ExitCode.CONFLICT
                self._next_step = "run the same command again when the job has ended"
            case _:
                pass

    @property
    def remedy(self) -> str:
        return f"{self._next_step}; nothing is lost"


class BucketUnavailable(AgentError):
    """The bucket of a job took or gave no checkpoint; training goes on, retry later."""


class CodeUnusable(AgentError):
    """The user's code cannot be unpacked on this machine; nothing of it was run.

    End the machine with the message as its exit reason.
    """


class GenerationBroken(AgentError):
    """A generation could not be formed or fell apart; wait for a newer Directive."""


class ProcessLost(AgentError):
    """Another process of this worker has ended, so that this one cannot go on: let it end, too."""


class ChangeAborted(AgentError):
    """A change was cancelled before any member left the generation; continue in it."""


class LayoutChanged(AgentError):
    """The processes of the workers are to share the model in another way: start them again so.

    Attributes:
        layout: The other way, as ``Layout`` writes it.
    """

    def __init__(self, layout: str) -> None:
        super().__init__(f"the workers go on with {layout}")
        self.layout = layout


class StateRefused(AgentError):
    """A state cannot be saved or sent to other workers, or does not fit this model.

    Nothing was changed. Start without the state, and show the message: it names the place.
    """


class UnsupportedModel(AgentError):
    """The script's model belongs to no framework that the agent supports and the script loaded."""


class UnsupportedStrategy(AgentError):
    """The model's framework does not have the job's training strategy; choose another one."""


class UnsupportedOptimizer(AgentError):
    """The script's optimizer steps in a way that the agent cannot follow.

    No wrong weight was trained. Show the message: it says what to do instead.
    """


class ReadAhead(AgentError):
    """The script asked for a batch before it had trained on the one before.

    No wrong weight was trained. Show the message: it says what to do instead.
    """


class SpoolUnusable(AgentError):
    """A spool is in use, damaged, missing, or another worker's; use another directory, or none."""

    headline = "its spool cannot be used"
    remedy = "end the process that uses it, or check the disk, then repeat the command"


class MalformedFrame(AgentError):
    """Received bytes are not a valid frame; close the connection."""


class UnsupportedServerOptimizer(AgentError):
    """The script's optimizer cannot run on parameter servers; the message says what can."""


class Fenced(AgentError):
    """The sender's generation is over or broken; it has to join a newer one."""
