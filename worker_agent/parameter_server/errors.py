"""What can go wrong between workers and parameter servers.

::

    AgentError
    ├── Garbled        bytes that are no frame of ours: close the connection
    ├── NotServable    an optimizer that servers cannot run: tell the person
    └── Fenced         a word from a generation that is over: the server refuses it
"""

from __future__ import annotations

from worker_agent.errors import AgentError


class Garbled(AgentError):
    """Bytes that are no frame of ours, or a frame that makes no sense; close the connection."""


class NotServable(AgentError):
    """The script's optimizer cannot run on parameter servers; the message says what can."""


class Fenced(AgentError):
    """The sender's generation is over or broken; it has to join a newer one."""
