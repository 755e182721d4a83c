"""The metadata that a machine asks its cloud about itself, as EC2 and Google answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from tests.fakecloud.http_server import Answer, HttpRequest

Kind = Literal["aws", "google"]
NoticeOf = Callable[[], datetime | None]
TOKEN_PATH, SESSION = "/latest/api/token", "a-session-of-this-machine"
NOT_FOUND, NOT_ALLOWED = (404, "text/html", b"not found"), (401, "text/html", b"who asks?")


def no_notice() -> datetime | None:
    """Tell a machine that it may stay."""
    return None


@dataclass(frozen=True, slots=True)
class Metadata:
    """Answers one machine.

    Attributes:
        kind: Whose words it speaks; it answers the words of the other as that cloud does.
        id: The cloud's number of the machine.
        address: Where other machines reach it.
        notice: Returns when the cloud takes it back, as far as it may know.
    """

    kind: Kind
    id: str
    address: str
    notice: NoticeOf = no_notice

    def answer(self, request: HttpRequest) -> Answer:
        """Answer a request of the machine."""
        headers = {name.lower(): text for name, text in request.headers.items()}
        known = self._of_aws if self.kind == "aws" else self._of_google
        return known(request, headers)

    def variables(self, url: str) -> dict[str, str]:
        """Return the variables that lead both vendors' libraries to a server at a URL."""
        return {
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": url,
            "GCE_METADATA_HOST": url.removeprefix("http://"),
        }

    def _of_aws(self, request: HttpRequest, headers: Mapping[str, str]) -> Answer:
        if (request.method, request.target) == ("PUT", TOKEN_PATH):
            has_lifetime = "x-aws-ec2-metadata-token-ttl-seconds" in headers
            return (200, "text/plain", SESSION.encode()) if has_lifetime else NOT_ALLOWED
        if headers.get("x-aws-ec2-metadata-token") != SESSION:
            return NOT_ALLOWED
        root = "/latest/meta-data"
        told = {f"{root}/instance-id": self.id, f"{root}/local-ipv4": self.address}
        moment = self.notice()
        if moment is not None:
            action = {"action": "terminate", "time": f"{moment:%Y-%m-%dT%H:%M:%SZ}"}
            told[f"{root}/spot/instance-action"] = json.dumps(action)
        return found(told, request.target)

    def _of_google(self, request: HttpRequest, headers: Mapping[str, str]) -> Answer:
        if headers.get("metadata-flavor") != "Google":
            return (403, "text/html", b"Metadata-Flavor is missing")
        root = "/computeMetadata/v1/instance"
        asked = urlsplit(request.target)
        if asked.path == f"{root}/preempted":
            return self._preempted(parse_qs(asked.query))
        told = {f"{root}/id": self.id, f"{root}/network-interfaces/0/ip": self.address}
        return found(told, request.target)

    def _preempted(self, query: Mapping[str, list[str]]) -> Answer:
        """Answer once the value is another than the one that the machine has seen."""
        until = time.monotonic() + float(query.get("timeout_sec", ["0"])[0])
        while True:
            text = "FALSE" if self.notice() is None else "TRUE"
            etag = f"{len(text):016x}"
            if query.get("last_etag") != [etag] or time.monotonic() > until:
                return 200, "application/text", text.encode(), {"ETag": etag}
            time.sleep(0.05)


def found(told: Mapping[str, str], path: str) -> Answer:
    """Answer with the text that belongs to a path."""
    return (200, "text/plain", told[path].encode()) if path in told else NOT_FOUND
