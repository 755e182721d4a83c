"""`ControllerClient`: the five requests that a machine sends to its controller."""

from __future__ import annotations

from typing import TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from scavenger.protocol import (
    RENEWAL_HEADER,
    CommandExit,
    EnrolmentCredentials,
    EnrolmentRequest,
    Hello,
    Reply,
    StepReport,
    VmLease,
)
from scavenger.worker_env import WorkerEnv
from worker_agent.errors import ControllerRefused, ControllerUnreachable

T = TypeVar("T")

STATUS_REQUEST_TIMEOUT, STATUS_TOO_MANY_REQUESTS = (
    408,
    429,
)  # nothing about what was said, only about how

_HELLO = TypeAdapter(Hello)
_REPORT = TypeAdapter(StepReport)
_EXIT = TypeAdapter(CommandExit)
_WORKER = TypeAdapter(dict[str, str])
_REPLY = TypeAdapter(Reply)
_LEASE = TypeAdapter(VmLease)
_ENROL, _ENROLLED = TypeAdapter(EnrolmentRequest), TypeAdapter(EnrolmentCredentials)


class ControllerClient:
    """Speak to the controller; every call may raise one of two errors.

    ``ControllerUnreachable`` says nothing about whether the controller heard it: the message may be
    sent again. ``ControllerRefused`` says it heard and declined. Safe to share between threads.

    Attributes:
        token: What it shows; an answer may bring the next one.
    """

    def __init__(self, settings: WorkerEnv) -> None:
        self.token = settings.token
        self._http = httpx.Client(
            base_url=settings.controller,
            timeout=httpx.Timeout(5.0, connect=1.0),
            # A proxy meant for the web must not come between a worker and its controller.
            trust_env=False,
        )

    def enrol(self, enrol: EnrolmentRequest) -> EnrolmentCredentials:
        """Show what this machine was launched with, for a token of its own."""
        enrolled = _parse(_ENROLLED, self._post("enrol", _ENROL.dump_json(enrol)))
        self.token = enrolled.token
        return enrolled

    def hello(self, hello: Hello) -> Reply:
        """Say that this worker is up and can join a generation."""
        return _parse(_REPLY, self._post("hello", _HELLO.dump_json(hello)))

    def report(self, report: StepReport) -> Reply:
        """Hand over what was measured; the reply is the newest Directive."""
        return _parse(_REPLY, self._post("report", _REPORT.dump_json(report)))

    def lease(self, worker: str) -> VmLease:
        """Ask how long this machine may go on, counted from before this call."""
        return _parse(_LEASE, self._post("lease", _WORKER.dump_json({"worker": worker})))

    def exit(self, message: CommandExit) -> None:
        """Say that the training command ended."""
        self._post("exit", _EXIT.dump_json(message))

    def _post(self, what: str, content: bytes) -> bytes:
        try:
            response = self._http.post(
                f"/v1/agent/{what}",
                content=content,
                headers={
                    "Content-Type": "application/json",
                    "Authorization": f"Bearer {self.token}",
                },
            )
        except httpx.RequestError as error:
            raise ControllerUnreachable(f"{what}: {error!r}") from error
        is_received = response.status_code not in (STATUS_REQUEST_TIMEOUT, STATUS_TOO_MANY_REQUESTS)
        if response.is_client_error and is_received:
            raise ControllerRefused(response.status_code, response.text)
        if not response.is_success:
            raise ControllerUnreachable(f"{what}: status {response.status_code}")
        self.token = response.headers.get(RENEWAL_HEADER, self.token)
        return response.content


def _parse(adapter: TypeAdapter[T], content: bytes) -> T:
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        raise ControllerUnreachable(f"an answer that is not the controller's: {error}") from error
