"""The REST client against a transport that answers as the controller would."""

import json

import httpx
import pytest

from scavenger.client.client import Client
from scavenger.client.errors import (
    Conflict,
    ErrorResponse,
    Forbidden,
    InvalidRequest,
    NotFound,
    RateLimited,
    ServerFault,
    Unauthenticated,
    Unreachable,
    Validation,
)
from tests.unit.test_cli_rendering import ID, curve_view, event, job_view, problem


def client(answer, url="http://127.0.0.1:8321", pause=0.0):
    """Return a client whose requests a function answers."""
    return Client(url, "secret", transport=httpx.MockTransport(answer), pause=pause)


def answering(view, status=200):
    return lambda request: httpx.Response(status, text=view.model_dump_json())


def test_a_job_document_is_sent_as_it_is_with_token_and_media():
    def answer(request):
        assert request.method == "POST"
        assert request.url.path == "/v1/jobs"
        assert request.headers["authorization"] == "Bearer secret"
        assert request.headers["content-type"] == "application/yaml"
        assert request.content == b"name: x"
        return httpx.Response(201, text=job_view().model_dump_json())

    assert client(answer).submit("name: x", "yaml") == job_view()


def test_jobs_are_read_page_after_page():
    pages = {None: (["a", "b"], "2"), "2": (["c"], None)}

    def answer(request):
        names, cursor = pages[request.url.params.get("cursor")]
        jobs = [json.loads(job_view(name=name).model_dump_json()) for name in names]
        return httpx.Response(200, json={"jobs": jobs, "next_cursor": cursor})

    assert [job.name for job in client(answer).jobs(q="a")] == ["a", "b", "c"]
    assert [job.name for job in client(answer).list_jobs(9).jobs] == ["a", "b", "c"]


def test_events_are_read_page_after_page():
    def answer(request):
        before = int(request.url.params.get("cursor", request.url.params["after"]))
        page = [event(before + 1), event(before + 2)]
        found = [json.loads(each.model_dump_json()) for each in page]
        following = str(before + 2) if before < 2 else None
        return httpx.Response(200, json={"events": found, "next_cursor": following})

    assert [each.sequence for each in client(answer).events(ID)] == [1, 2, 3, 4]
    assert [each.sequence for each in client(answer).events(ID, after=2)] == [3, 4]


LOST = [httpx.ReadTimeout("lost"), httpx.ReadError("lost"), httpx.RemoteProtocolError("lost")]
LATER = [problem(503, code="database_unavailable"), problem(409, code="idempotency_in_progress")]


@pytest.mark.parametrize("failure", [*LOST, *LATER], ids=str)
def test_what_may_have_been_done_is_sent_again_under_the_same_key(failure):
    keys = []

    def answer(request):
        keys.append(request.headers["idempotency-key"])
        if len(keys) % 3:
            if isinstance(failure, Exception):
                raise failure
            header = {"retry-after": "0"}
            return httpx.Response(failure.status, text=failure.model_dump_json(), headers=header)
        return httpx.Response(201, text=job_view().model_dump_json())

    asking = client(answer, pause=0)
    assert asking.submit("name: x") == asking.cancel(ID) == job_view()
    assert [keys.count(key) for key in dict.fromkeys(keys)] == [3, 3]


@pytest.mark.parametrize(
    ("failure", "tries"), [(httpx.ConnectError("refused"), 1), (httpx.ReadTimeout("silence"), 3)]
)
def test_what_was_never_sent_and_what_never_answers_ends(failure, tries):
    sent = []

    def answer(request):
        sent.append(request)
        raise failure

    with pytest.raises(Unreachable):
        client(answer, pause=0).submit("name: x")
    assert len(sent) == tries


def test_every_other_answer_becomes_a_view():
    assert client(answering(curve_view())).curve(ID).model_dump() == curve_view().model_dump()
    assert client(answering(job_view())).get_job(ID) == job_view()
    assert client(answering(job_view(), 202)).cancel(ID) == job_view()
    assert not [*client(lambda _: httpx.Response(200, json={"models": []})).models()]
    assert client(lambda _: httpx.Response(200, json={"status": "ok"})).get_health().status == "ok"


def test_fields_of_a_newer_controller_are_tolerated():
    document = json.loads(job_view().model_dump_json()) | {"unheard_of": 1}
    assert client(lambda _: httpx.Response(200, json=document)).get_job(ID) == job_view()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, InvalidRequest),
        (401, Unauthenticated),
        (403, Forbidden),
        (404, NotFound),
        (405, InvalidRequest),
        (409, Conflict),
        (413, InvalidRequest),
        (422, Validation),
        (429, RateLimited),
        (500, ServerFault),
        (503, ServerFault),
    ],
)
def test_a_problem_becomes_the_error_of_its_status(status, error):
    with pytest.raises(ErrorResponse) as caught:
        client(answering(problem(status, detail="because"), status)).get_job(ID)
    assert type(caught.value) is error
    assert caught.value.problem.detail == "because"


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(502, text="<html>bad gateway"), ServerFault),
        (httpx.Response(404, text="nginx"), NotFound),
        (httpx.Response(302, headers={"location": "http://elsewhere/"}), ServerFault),
        (httpx.Response(200, text="hello"), ServerFault),
        (httpx.Response(200, json={"id": "job_1"}), ServerFault),
    ],
)
def test_an_answer_of_something_else_is_an_error_too(answer, error):
    with pytest.raises(error):
        client(lambda _: answer).get_job(ID)


@pytest.mark.parametrize("failure", [httpx.ConnectError, httpx.ReadTimeout, httpx.ReadError])
def test_silence_is_unreachable(failure):
    def answer(request):
        raise failure("no controller")

    with pytest.raises(Unreachable, match="no controller") as caught:
        client(answer).get_job(ID)
    assert caught.value.url == "http://127.0.0.1:8321"


@pytest.mark.parametrize("url", ["ftp://x", "nonsense", "http://[::1", ""])
def test_what_is_no_address_is_unreachable(url):
    with pytest.raises(Unreachable):
        Client(url, "secret").get_job(ID)


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("", "scavenger serve"),
        ("http://127.0.0.1:8321", "scavenger serve"),
        ("https://example.org", "SCAVENGER_URL"),
    ],
)
def test_a_controller_is_started_here_only_where_it_belongs(url, remedy):
    assert remedy in Unreachable(url, "no answer").remedy


def test_a_strange_id_stays_one_part_of_the_path():
    paths = []

    def answer(request):
        paths.append(request.url.raw_path)
        return httpx.Response(404)

    with pytest.raises(NotFound):
        client(answer).get_job("a/../../x?y#z")
    assert paths == [b"/v1/jobs/a%2F..%2F..%2Fx%3Fy%23z"]
