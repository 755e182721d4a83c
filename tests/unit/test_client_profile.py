import json

import pytest

from scavenger.client.errors import NoToken, Unreachable
from scavenger.client.profile import (
    ConnectionProfile,
    data_directory,
    find_profile,
    read_connection,
)

LOCAL = {"url": "http://127.0.0.1:8321", "token": "of-the-file"}


@pytest.fixture
def home(tmp_path):
    (tmp_path / "connection.json").write_text(json.dumps(LOCAL))
    return {"SCAVENGER_HOME": str(tmp_path)}


ELSEWHERE = {"SCAVENGER_URL": "http://elsewhere:1/", "SCAVENGER_TOKEN": "of-the-environment"}


@pytest.mark.parametrize(
    ("url", "token", "variables", "expected"),
    [
        (None, None, {}, ("http://127.0.0.1:8321", "of-the-file")),
        (None, None, ELSEWHERE, ("http://elsewhere:1", "of-the-environment")),
        ("http://named/", "named", ELSEWHERE, ("http://named", "named")),
        (None, "named", {}, ("http://127.0.0.1:8321", "named")),
        ("http://127.0.0.1:8321/", None, {}, ("http://127.0.0.1:8321", "of-the-file")),
    ],
)
def test_options_come_before_variables_and_these_before_the_file(
    home, url, token, variables, expected
):
    assert find_profile(url, token, home | variables) == ConnectionProfile(*expected)


def test_the_token_of_the_file_is_not_sent_elsewhere(home):
    with pytest.raises(NoToken, match="http://elsewhere"):
        find_profile("http://elsewhere", None, home)


@pytest.mark.parametrize("text", [None, "", "{}", "[]", '{"url": "http://x"}', "\x00"])
def test_without_a_usable_file_no_controller_is_known(tmp_path, text):
    if text is not None:
        (tmp_path / "connection.json").write_text(text)
    assert read_connection(tmp_path / "connection.json") is None
    with pytest.raises(Unreachable, match=r"connection\.json"):
        find_profile(environment={"SCAVENGER_HOME": str(tmp_path)})


def test_the_data_directory_is_that_of_the_user_unless_named(tmp_path):
    assert data_directory({"SCAVENGER_HOME": str(tmp_path)}) == tmp_path
    assert data_directory({}).name in (".scavenger", "scavenger")


@pytest.mark.parametrize("token", ["two words", "line\nbreak", "ünlike"])
def test_a_token_that_no_header_can_hold_is_refused(token):
    with pytest.raises(NoToken):
        ConnectionProfile("http://x", token)


def test_a_profile_does_not_show_its_token():
    assert "secret" not in repr(ConnectionProfile("http://x", "secret"))
