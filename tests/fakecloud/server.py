"""Server: one fake cloud behind HTTP, with a second door for tests.

``/cloud/...`` is what a controller may ask, ``/control/...`` what only a test may do. Requests are
JSON objects that name the arguments. Nothing is kept: this is the outside world.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http import HTTPStatus

from pydantic import validate_call
from pydantic_core import from_json, to_json

from tests.fakecloud.cloud import FakeCloud
from tests.fakecloud.http_server import Answer, HttpServer
from tests.fakecloud.refusal import Gibberish, Refusal

JSON = "application/json"
HTML = b"<html><head><title>500</title></head><body><h1>Something broke</h1></body></html>"
BUSY = {"RequestLimitExceeded", "InsufficientInstanceCapacity", "InternalError", "Unavailable"}

Verbs = tuple[Callable[..., object], ...]
Doors = Mapping[str, Callable[..., object]]


class CloudServer(HttpServer):
    """Serves a cloud on a free port of this computer until it is closed.

    Attributes:
        cloud: The cloud, for tests in the same process.
    """

    def __init__(self, cloud: FakeCloud) -> None:
        self.cloud = cloud
        doors = doors_of(cloud)
        super().__init__(lambda asked: answer(doors, asked.target, asked.body))


def doors_of(cloud: FakeCloud) -> Doors:
    """Return what is done at each path."""
    faults, clock = cloud.faults, cloud.clock
    asked: Verbs = (cloud.launch, cloud.list, cloud.describe, cloud.terminate)
    controls: Verbs = (
        *(cloud.machines, cloud.bill, cloud.interrupt, cloud.renew, cloud.stock),
        *(cloud.power_off, cloud.break_zone, cloud.repair_zone),
        *(faults.next, faults.always, faults.sometimes, faults.calm),
        *(faults.counts, faults.unfired, clock.now, clock.advance),
    )
    paths = {f"/cloud/{do.__name__}": do for do in asked}
    paths |= {f"/control/{do.__name__}": do for do in controls}
    return {path: validate_call(do) for path, do in paths.items()}


def answer(doors: Doors, path: str, body: bytes) -> Answer:
    """Return status, media type and content for one request; may raise ConnectionLost."""
    if path not in doors:
        return _refuse(HTTPStatus.NOT_FOUND, "InvalidAction", f"there is no {path}")
    try:
        return HTTPStatus.OK, JSON, to_json(doors[path](**from_json(body)))
    except Gibberish:
        return HTTPStatus.INTERNAL_SERVER_ERROR, "text/html", HTML
    except ValueError as error:
        return _refuse(HTTPStatus.BAD_REQUEST, "MalformedRequest", str(error))
    except Refusal as refusal:
        is_busy = refusal.code in BUSY
        status = HTTPStatus.SERVICE_UNAVAILABLE if is_busy else HTTPStatus.BAD_REQUEST
        return _refuse(status, refusal.code, refusal.message)


def _refuse(status: int, code: str, message: str) -> Answer:
    return status, JSON, to_json({"code": code, "message": message})
