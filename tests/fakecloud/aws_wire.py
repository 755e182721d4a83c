"""AWS on the wire: requests read and answers written by botocore's own model of each service.

What the model does not have is an error, in a request as in an answer; so a misspelt member is
found by the test that sends it and not by the first customer.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl
from uuid import uuid4
from xml.sax.saxutils import escape

from botocore.loaders import Loader
from botocore.model import OperationModel, ServiceModel, Shape
from pydantic_core import from_json, to_json

from tests.fakecloud.http_server import Answer, HttpRequest
from tests.fakecloud.refusal import Refusal

XML, JSON_TYPE = "text/xml;charset=UTF-8", "application/x-amz-json-1.1"
SERVICES = {  # by version or target
    "2016-11-15": "ec2",
    "2011-06-15": "sts",
    "AmazonSSM": "ssm",
    "AWSPriceListService": "pricing",
}
STATUSES = {
    "AuthFailure": HTTPStatus.UNAUTHORIZED,
    "UnauthorizedOperation": HTTPStatus.FORBIDDEN,
    "DryRunOperation": HTTPStatus.PRECONDITION_FAILED,
    "RequestLimitExceeded": HTTPStatus.SERVICE_UNAVAILABLE,
    "EC2ThrottledException": HTTPStatus.SERVICE_UNAVAILABLE,
    "Unavailable": HTTPStatus.SERVICE_UNAVAILABLE,
    "InsufficientInstanceCapacity": HTTPStatus.INTERNAL_SERVER_ERROR,
    "InsufficientHostCapacity": HTTPStatus.INTERNAL_SERVER_ERROR,
    "InternalError": HTTPStatus.INTERNAL_SERVER_ERROR,
    "InternalFailure": HTTPStatus.INTERNAL_SERVER_ERROR,
    "ServerInternal": HTTPStatus.INTERNAL_SERVER_ERROR,
}

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """One call as a caller of boto3 wrote it.

    Attributes:
        service: As botocore calls it, such as ``ec2``.
        action: Such as ``RunInstances``.
        parameters: With the names that boto3 has for them.
    """

    service: str
    action: str
    parameters: Parameters

    @property
    def model(self) -> OperationModel:
        return _model(self.service).operation_model(self.action)


def read(request: HttpRequest) -> Asked:
    """Return what a request asks for.

    Raises:
        Refusal: The service has no such action, or the action no such parameter.
    """
    headers = {name.lower(): value for name, value in request.headers.items()}
    if target := headers.get("x-amz-target"):
        service, action = target.split(".")
        return Asked(SERVICES[service], action, from_json(request.body))
    query = _nested(parse_qsl(request.body.decode(), keep_blank_values=True))
    action, service = query.pop("Action"), SERVICES[query.pop("Version")]
    if action not in _model(service).operation_names:
        raise Refusal("InvalidAction", f"The action {action} is not valid for this web service.")
    shape = _model(service).operation_model(action).input_shape
    return Asked(service, action, _decode(shape, query, "") if shape is not None else {})


def write(asked: Asked, value: Parameters) -> Answer:
    """Return the answer of a call that succeeded."""
    shape = asked.model.output_shape
    if asked.service in ("ssm", "pricing"):
        _require_members(shape, value)
        return HTTPStatus.OK, JSON_TYPE, to_json(value)
    inner = f"<requestId>{uuid4()}</requestId>{''.join(_encode(shape, value))}"
    if wrapper := shape.serialization.get("resultWrapper"):
        inner = f"<{wrapper}>{inner}</{wrapper}>"
    space = _model(asked.service).metadata["xmlNamespace"]
    text = f'<{asked.action}Response xmlns="{space}">{inner}</{asked.action}Response>'
    return HTTPStatus.OK, XML, text.encode()


def refuse(service: str, refusal: Refusal) -> Answer:
    """Return the answer of a call that failed, in the service's own form."""
    status = STATUSES.get(refusal.code, HTTPStatus.BAD_REQUEST)
    code, message = escape(refusal.code), escape(refusal.message)
    error = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    match service:
        case "ssm" | "pricing":
            told = {"__type": refusal.code, "message": refusal.message}
            return status, JSON_TYPE, to_json(told)
        case "sts":
            text = f"<ErrorResponse>{error}<RequestId>{uuid4()}</RequestId></ErrorResponse>"
        case _:
            identity = f"<RequestID>{uuid4()}</RequestID>"
            text = f"<Response><Errors>{error}</Errors>{identity}</Response>"
    return status, XML, text.encode()


@cache
def _model(service: str) -> ServiceModel:
    return ServiceModel(Loader().load_service_model(service, "service-2"), service)


def _nested(pairs: list[tuple[str, str]]) -> dict[str, Any]:
    """Return ``a.1.b=c`` as ``{"a": {"1": {"b": "c"}}}``."""
    tree: dict[str, Any] = {}
    for key, value in pairs:
        at = tree
        *path, last = key.split(".")
        for step in path:
            at = at.setdefault(step, {})
        at[last] = value
    return tree


def _decode(shape: Shape, told: Any, where: str) -> Any:
    match shape.type_name:
        case "structure":
            members = {_sent_name(name, one): (name, one) for name, one in shape.members.items()}
            for key in set(told) - set(members):
                raise Refusal("UnknownParameter", f"The parameter {where}{key} is not recognized")
            known = [(*members[key], key) for key in told]
            return {name: _decode(one, told[key], f"{where}{key}.") for name, one, key in known}
        case "list":
            return [_decode(shape.member, told[key], where) for key in sorted(told, key=int)]
        case "integer" | "long":
            return int(told)
        case "boolean":
            return told == "true"
        case "timestamp":
            return datetime.fromisoformat(told)
        case _:
            return told


def _sent_name(name: str, shape: Shape) -> str:
    """Return a member's name in a request: EC2 sends locations with a capital."""
    sent = str(shape.serialization.get("queryName", shape.serialization.get("name", name)))
    return sent[0].upper() + sent[1:]


def _encode(shape: Shape, value: Any) -> Iterator[str]:
    match shape.type_name:
        case "structure":
            _require_members(shape, value)
            for name, member in shape.members.items():
                if value.get(name) is not None:
                    tag = member.serialization.get("name", name)
                    yield f"<{tag}>{''.join(_encode(member, value[name]))}</{tag}>"
        case "list":
            tag = shape.member.serialization.get("name", "member")
            for one in value:
                yield f"<{tag}>{''.join(_encode(shape.member, one))}</{tag}>"
        case "boolean":
            yield "true" if value else "false"
        case "timestamp":
            yield value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        case _:
            yield escape(str(value))


def _require_members(shape: Shape, value: Parameters) -> None:
    if unknown := set(value) - set(shape.members):
        raise KeyError(f"{shape.name} has no {', '.join(sorted(unknown))}")


def decoded(user_data: str) -> bytes:
    """Return user data as the machine gets it.

    Raises:
        Refusal: It is not Base64, or longer than EC2 takes.
    """
    try:
        data = base64.b64decode(user_data, validate=True)
    except binascii.Error as error:
        raise Refusal("InvalidUserData.Malformed", "Invalid BASE64 encoding") from error
    if len(data) > 16_384:
        raise Refusal("InvalidParameterValue", "User data is limited to 16384 bytes")
    return data
