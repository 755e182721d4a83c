"""The metadata that a machine asks its cloud about itself, as EC2 and Google answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tests.fakecloud.http_server import Answer, HttpRequest

Kind = Literal["aws", "google"]
TOKEN_PATH, SESSION = "/latest/api/token", "a-session-of-this-machine"
NOT_FOUND, NOT_ALLOWED = (404, "text/html", b"not found"), (401, "text/html", b"who asks?")


@dataclass(frozen=True, slots=True)
class Metadata:
    """Answers one machine.

    Attributes:
        kind: Whose words it speaks; it answers the words of the other as that cloud does.
        id: The cloud's number of the machine.
        address: Where other machines reach it.
    """

    kind: Kind
    id: str
    address: str

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
        return found(told, request.target)

    def _of_google(self, request: HttpRequest, headers: Mapping[str, str]) -> Answer:
        if headers.get("metadata-flavor") != "Google":
            return (403, "text/html", b"Metadata-Flavor is missing")
        root = "/computeMetadata/v1/instance"
        told = {f"{root}/id": self.id, f"{root}/network-interfaces/0/ip": self.address}
        return found(told, request.target)


def found(told: Mapping[str, str], path: str) -> Answer:
    """Answer with the text that belongs to a path."""
    return (200, "text/plain", told[path].encode()) if path in told else NOT_FOUND
