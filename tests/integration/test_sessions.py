"""Signing in: what a cookie opens, what it needs beside it, and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text

from scavenger.schemas.access import SessionView, SignInCodeView
from service.api.security import NO_SESSION
from service.auth.permissions import PublicAccess
from service.auth.rate_limit import RateLimiter
from service.auth.sessions import SESSION_COOKIE, secret_digest
from service.auth.tokens import TokenDigest
from service.db import clock, sessions
from tests.contract.host import ROUTES
from tests.integration.house import JSON, House, code_of
from tests.integration.test_access import VISITORS, expected

HERE = "http://testserver"
OF_THE_SESSION = ("POST", "/v1/session/codes")  # the one route that wants a token itself


@dataclass(frozen=True, slots=True)
class Browser:
    """A browser that is signed in; it sends what a page of the controller sends."""

    house: House
    cookie: str
    shown: SessionView

    def ask(self, method: str, path: str, client: Any = None, **changes: str) -> Any:
        """Send a request of the page; a change that is empty leaves a header out."""
        headers = {"Cookie": f"{SESSION_COOKIE}={self.cookie}", "X-CSRF": self.shown.csrf}
        headers |= {"Sec-Fetch-Site": "same-origin", **JSON}
        headers |= {name.replace("_", "-"): value for name, value in changes.items()}
        sent = {name: value for name, value in headers.items() if value}
        return (client or self.house.client).request(method, path, headers=sent, content=b"{}")


def sign_in(house: House, wish: Mapping[str, str], client: Any = None, **headers: str) -> Any:
    client = client or house.client
    answer = client.post("/v1/session", json=wish, headers=headers)
    client.cookies.clear()  # each test says itself which cookie it sends
    return answer


def browser(house: House, token: str) -> Browser:
    answer = sign_in(house, {"token": token})
    assert answer.status_code == 200, answer.text
    cookie = answer.headers["set-cookie"].partition(";")[0].partition("=")[2]
    return Browser(house, cookie, SessionView.model_validate_json(answer.text))


def test_a_token_begins_a_session_of_which_only_a_hash_is_kept(house: House) -> None:
    answer = sign_in(house, {"token": house.token("viewer")})
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith("scavenger=scs_")
    assert {part.strip() for part in cookie.split(";")[1:]} == {
        "HttpOnly",
        "Path=/",
        "SameSite=strict",
        f"Max-Age={7 * 86400}",
    }
    secret = cookie.partition(";")[0].partition("=")[2]
    shown = SessionView.model_validate_json(answer.text)
    assert (shown.token, shown.project) == (TokenDigest.of(house.token("viewer")).id, "alpha")
    assert secret not in answer.text
    with house.engine.connect() as connection:
        kept = connection.execute(text("SELECT t::text FROM sessions t")).scalars().all()
        assert sessions.find_session(connection, secret_digest(secret)) is not None
    assert shown.csrf not in str(kept)
    assert secret not in str(kept)
    written = house.written()[-1]
    assert (written["who"], written["route"], written["status"]) == (
        shown.token,
        "/v1/session",
        200,
    )


def test_the_cookie_travels_by_https_only_where_there_is_https(house: House) -> None:
    secure = house.open(is_https=True)
    answer = sign_in(house, {"token": house.token()}, secure)
    assert "Secure" in answer.headers["set-cookie"]


def test_a_session_opens_what_its_token_opens(house: House) -> None:
    for role, project in VISITORS:
        if project == "*" or (project == "beta" and role != "admin"):
            continue
        mine = browser(house, house.token(role, project))
        for (method, path), access in ROUTES.items():
            if (method, path) in (OF_THE_SESSION, ("DELETE", "/v1/session")):
                continue
            answer = mine.ask(method, house.fill(path))
            refused = answer.status_code if answer.status_code in (401, 403, 404, 429) else None
            assert refused == expected(access, role, project, path), (method, path, answer.text)
            if path.endswith("revoke"):  # or the viewer would be gone
                house.tokens.pop(("viewer", "alpha"), None)


FORGED: Mapping[str, dict[str, str]] = {
    "no X-CSRF": {"X_CSRF": ""},
    "the X-CSRF of another session": {"X_CSRF": "0" * 64},
    "another site": {"Sec_Fetch_Site": "cross-site"},
    "another port of this computer": {"Sec_Fetch_Site": "same-site"},
    "the address bar": {"Sec_Fetch_Site": "none"},
    "a forged Origin": {"Sec_Fetch_Site": "", "Origin": "https://evil.example"},
    "an Origin of the same name by another way": {
        "Sec_Fetch_Site": "",
        "Origin": "https://testserver",
    },
    "the Origin of a sandbox": {"Sec_Fetch_Site": "", "Origin": "null"},
    "no Origin": {"Sec_Fetch_Site": ""},
}


AT_EVERY_ROUTE = ("no X-CSRF", "another site", "a forged Origin")


def test_no_other_page_changes_anything_with_the_cookie(house: House) -> None:
    mine, before = browser(house, house.token("admin", "*")), house.written()
    asked = [each for each, access in ROUTES.items() if access != PublicAccess()]
    changing = [(method, house.fill(path)) for method, path in asked if method != "GET"]
    for forgery, changes in FORGED.items():
        for method, path in changing if forgery in AT_EVERY_ROUTE else changing[:1]:
            answer = mine.ask(method, path, **changes)
            assert (answer.status_code, code_of(answer)) == (403, "csrf"), (forgery, path)
    assert {row["status"] for row in house.written()[len(before) :]} == {403}


def test_an_equal_origin_is_enough_where_a_browser_says_no_more(house: House) -> None:
    mine = browser(house, house.token())
    for changes in ({"Sec_Fetch_Site": "", "Origin": HERE}, {"Origin": HERE}):
        answer = mine.ask("POST", f"/v1/jobs/{house.job}/actions/cancel", **changes)
        assert answer.status_code == 202


def test_another_page_signs_no_browser_in(house: House) -> None:
    token = {"token": house.token()}
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        answer = sign_in(house, token, None, **headers)
        assert (answer.status_code, code_of(answer)) == (403, "csrf")
        assert "set-cookie" not in answer.headers
    for headers in ({"Sec-Fetch-Site": "same-origin"}, {"Origin": HERE}, {}):
        assert sign_in(house, token, None, **headers).status_code == 200


def opens_nothing(house: House, mine: Browser, client: Any = None) -> None:
    """Check that a cookie opens no route but those that are open to strangers."""
    for (method, path), access in ROUTES.items():
        answer = mine.ask(method, house.fill(path), client)
        is_open = access == PublicAccess()
        assert (answer.status_code == 401) is not is_open or path == "/v1/session", (method, path)


def test_the_end_of_a_token_is_the_end_of_its_sessions(house: House) -> None:
    token = house.token("operator")
    first, second = browser(house, token), browser(house, token)
    revoke = f"/v1/tokens/{TokenDigest.of(token).id}/actions/revoke"
    assert house.ask("POST", revoke, house.token("admin")).status_code == 200
    for mine in (first, second):
        opens_nothing(house, mine)
    assert "this token was revoked" in first.ask("GET", "/v1/jobs").json()["detail"]


def test_who_signs_out_is_signed_out_of_this_session_alone(house: House) -> None:
    token = house.token("operator")
    first, second = browser(house, token), browser(house, token)
    answer = first.ask("DELETE", "/v1/session")
    assert answer.status_code == 204
    assert 'scavenger=""' in answer.headers["set-cookie"]
    opens_nothing(house, first)
    assert first.ask("GET", "/v1/jobs").json()["detail"] == NO_SESSION
    assert second.ask("GET", "/v1/jobs").status_code == 200


HOUR = timedelta(hours=1)


def test_a_session_ends_after_twelve_idle_hours_and_after_seven_days(house: House) -> None:
    mine = browser(house, house.token("viewer"))
    assert mine.ask("GET", "/v1/jobs", house.open(11 * HOUR)).status_code == 200
    over = mine.ask("GET", "/v1/jobs", house.open(24 * HOUR))
    assert (over.status_code, over.json()["detail"]) == (
        401,
        "this session has ended; sign in again",
    )
    used = browser(house, house.token("viewer"))
    with house.engine.begin() as connection:
        began = clock.read(connection)
        for hours in range(0, 200, 10):
            session = sessions.find_session(connection, secret_digest(used.cookie))
            assert session is not None
            now = began + hours * HOUR
            assert (session.invalid_reason(now) is None) is (hours < 168)
            sessions.record_session_use(connection, session, now)
        assert sessions.delete_ended(connection, began) == 0
        assert sessions.delete_ended(connection, began + 8 * 24 * HOUR) == 2


def test_a_session_ends_with_a_token_that_expires(house: House) -> None:
    made = house.ask(
        "POST",
        "/v1/tokens",
        house.token("admin"),
        json={"name": "short", "role": "viewer", "lifetime": 3600},
    ).json()
    mine = browser(house, made["token"])
    assert str(mine.shown.expires_at) == str(
        SessionView.model_validate(mine.ask("GET", "/v1/session").json()).expires_at
    )
    assert mine.ask("GET", "/v1/jobs").status_code == 200
    assert mine.ask("GET", "/v1/jobs", house.open(2 * HOUR)).status_code == 401


def test_a_session_shows_who_it_is_and_so_does_a_token(house: House) -> None:
    mine = browser(house, house.token("submitter"))
    shown = SessionView.model_validate_json(mine.ask("GET", "/v1/session").text)
    assert (shown.token, shown.role, shown.csrf) == (
        mine.shown.token,
        mine.shown.role,
        mine.shown.csrf,
    )
    plain = house.ask("GET", "/v1/session", house.token("submitter"))
    assert SessionView.model_validate_json(plain.text).csrf == ""
    assert house.ask("DELETE", "/v1/session", house.token("submitter")).status_code == 204
    assert house.ask("GET", "/v1/session", house.token("submitter")).status_code == 200


def test_an_authorization_wins_over_a_cookie_and_needs_no_csrf(house: House) -> None:
    mine = browser(house, house.token("viewer"))
    cookie = {"Cookie": f"{SESSION_COOKIE}={mine.cookie}"}
    path = f"/v1/jobs/{house.job}/actions/cancel"
    assert house.ask("POST", path, house.token("operator"), headers=cookie).status_code == 202
    wrong = house.ask("GET", "/v1/jobs", "scv_wrong", headers=cookie)
    assert wrong.status_code == 401, "a wrong token is not made good by a cookie"


def buy(house: House, token: str) -> SignInCodeView:
    answer = house.ask("POST", "/v1/session/codes", token)
    assert answer.status_code == 201, answer.text
    return SignInCodeView.model_validate_json(answer.text)


def test_a_code_signs_in_once_within_a_minute_as_the_token_that_bought_it(house: House) -> None:
    bought = buy(house, house.token("viewer"))
    answer = sign_in(house, {"code": bought.code})
    assert answer.status_code == 200
    assert answer.json()["token"] == TokenDigest.of(house.token("viewer")).id
    again = sign_in(house, {"code": bought.code})
    assert (again.status_code, again.json()["detail"]) == (
        401,
        "this controller does not know this code",
    )
    late = sign_in(house, {"code": buy(house, house.token("viewer")).code}, house.open(HOUR / 50))
    assert late.status_code == 401
    with house.engine.connect() as connection:
        kept = connection.execute(text("SELECT t::text FROM sign_in_codes t")).scalars().all()
    assert bought.code not in str(kept)


def test_a_code_of_a_revoked_token_signs_nothing_in(house: House) -> None:
    token = house.token("viewer")
    bought = buy(house, token)
    revoke = f"/v1/tokens/{TokenDigest.of(token).id}/actions/revoke"
    house.ask("POST", revoke, house.token("admin"))
    answer = sign_in(house, {"code": bought.code})
    assert answer.status_code == 401
    assert "this token was revoked" in answer.json()["detail"]


def test_a_session_buys_no_code(house: House) -> None:
    mine = browser(house, house.token())
    answer = mine.ask(*OF_THE_SESSION)
    assert (answer.status_code, code_of(answer)) == (409, "conflict_state")


@pytest.mark.parametrize(
    "wish", [{}, {"token": ""}, {"token": "a", "code": "b"}, {"token": 1}, {"name": "x"}]
)
def test_what_signs_nothing_in_is_said(house: House, wish: Any) -> None:
    answer = sign_in(house, wish)
    assert (answer.status_code, code_of(answer)) == (422, "validation")


def test_wrong_tokens_make_their_address_wait_and_no_other(house: House) -> None:
    strict = house.open(limiter=RateLimiter(lambda: 0.0))
    found = [
        sign_in(house, {"token": f"scv_{number}"}, strict).status_code for number in range(101)
    ]
    assert found == [401] * 100 + [429]
    waiting = sign_in(house, {"code": "scc_x"}, strict)
    assert (waiting.status_code, waiting.headers["retry-after"]) == (429, "1")
    assert sign_in(house, {"token": house.token()}, strict).status_code == 200
