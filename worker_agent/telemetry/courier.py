"""Courier: brings what machines measured to a controller, in the name of a person."""

from __future__ import annotations

import time

import httpx
from pydantic import TypeAdapter, ValidationError

from scavenger.protocol import Hello, Reply, StepReport
from worker_agent.client import TOO_OFTEN
from worker_agent.errors import ControllerRefused, ControllerUnreachable

PAUSE = 1.0  # seconds, while the controller wants to hear less
REPORT, REPLY = TypeAdapter(StepReport), TypeAdapter(Reply)


class Courier:
    """Speaks for any machine of a controller, with the token of a person.

    Args:
        url: Address of the controller.
        token: Token that people use; a machine's token speaks for that machine only, elsewhere.
    """

    def __init__(self, url: str, token: str) -> None:
        self._http = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30.0
        )

    def __enter__(self) -> Courier:
        """Use it with ``with``: its connections are closed at the end."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._http.close()

    def hello(self, hello: Hello) -> Reply:
        """Nothing to say: the controller knows its machines, and nobody trains here."""
        return Reply(None, 0)

    def report(self, report: StepReport) -> Reply:
        """Hand over a report of a spool.

        Raises:
            ControllerUnreachable: No answer that makes sense; try again later.
            ControllerRefused: It said no; its text says why.
        """
        headers = {"Content-Type": "application/json"}
        content = REPORT.dump_json(report)
        while True:
            try:
                answer = self._http.post("/v1/deliveries", content=content, headers=headers)
            except httpx.HTTPError as error:
                raise ControllerUnreachable(str(error) or type(error).__name__) from error
            if answer.status_code != TOO_OFTEN:
                break
            time.sleep(PAUSE)
        if answer.is_client_error:
            raise ControllerRefused(answer.status_code, answer.text)
        if not answer.is_success:
            raise ControllerUnreachable(f"status {answer.status_code}")
        try:
            return REPLY.validate_json(answer.content)
        except ValidationError as error:
            raise ControllerUnreachable("an answer that is not a controller's") from error
