"""Laws of the redactor: no secret reaches the log, no matter what stands around it."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import quote

from hypothesis import assume, given
from hypothesis import strategies as st

from service.observability.logs import FORMATTERS, LogStyle, QuietHandler
from service.observability.redaction import MIN_SECRET_LENGTH, REDACTED, Redactor, encodings_of

WORDS = st.text(max_size=40)
SAFE = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
TOKENS = st.text(SAFE, min_size=20, max_size=48)
KNOWN = st.text(min_size=MIN_SECRET_LENGTH, max_size=40).filter(
    lambda secret: secret not in f" {REDACTED} "
)
STYLES = st.sampled_from(["json", "text"])
# How a secret looks that the redactor was not told of.
LOOKS = st.sampled_from(
    [
        "scv_{}",
        "eyJ{0}.{0}.{0}",
        "Authorization: Bearer {}",
        "{{'authorization': 'Basic {}'}}",
        "postgresql://scavenger:{}@db.example.org/scavenger",
        "password={}",
        '{{"api_key": "{}"}}',
        "SCAVENGER_JOB_SECRET={}",
        "{{'SCAVENGER_TOKEN': '{}'}}",
        "https://kept.s3.amazonaws.com/a?X-Amz-Expires=900&X-Amz-Signature={}",
        "GET /kept/a?X-Goog-Credential={0}&X-Goog-Signature={0}&X-Goog-Expires=900",
    ]
)


@contextmanager
def logger(redactor: Redactor, style: LogStyle) -> Iterator[tuple[logging.Logger, io.StringIO]]:
    """A log of one's own, and what it wrote."""
    written = io.StringIO()
    handler = QuietHandler(written)
    handler.setFormatter(FORMATTERS[style](redactor))
    log = logging.Logger("service.law")
    log.addHandler(handler)
    yield log, written


def say(log: logging.Logger, text: str) -> None:
    """Log a text in every way there is."""
    log.warning("%s", text)
    log.warning(text.replace("%", "%%"), extra={"facts": {"path": text}})
    try:
        try:
            raise KeyError(text)
        except KeyError as error:
            raise ValueError(f"after {text}") from error
    except ValueError:
        log.exception("%r went wrong", text)


@given(KNOWN, WORDS, WORDS, STYLES)
def test_a_known_secret_never_leaves_the_log(
    secret: str, before: str, after: str, style: LogStyle
) -> None:
    with logger(Redactor([secret]), style) as (log, written):
        say(log, f"{before}{secret}{after}")
    # Of what a line is made of besides, the secret may be a part.
    with logger(Redactor(), style) as (log, plain):
        say(log, "")
    assume(not any(each in plain.getvalue() for each in encodings_of(secret)))
    assert not any(each in written.getvalue() for each in encodings_of(secret))


@given(LOOKS, TOKENS, WORDS, WORDS, STYLES)
def test_what_looks_like_a_secret_never_leaves_the_log(
    look: str, token: str, before: str, after: str, style: LogStyle
) -> None:
    assume(token not in f"{before} {look} {after}")
    with logger(Redactor(), style) as (log, written):
        say(log, f"{before} {look.format(token)} {after}")
    assert token not in written.getvalue()


@given(st.permutations(["abcdef", "abcdefgh", "abcdefghij"]))
def test_a_secret_that_begins_with_another_goes_as_a_whole(secrets: list[str]) -> None:
    assert Redactor(secrets).clean("<abcdefghij>") == f"<{REDACTED}>"


@given(WORDS, STYLES)
def test_a_record_without_secrets_is_written_as_it_is(text: str, style: LogStyle) -> None:
    assume(Redactor().clean(text) == text)
    with logger(Redactor(), style) as (log, written):
        log.warning("%s", text)
    if style == "json":
        assert json.loads(written.getvalue())["message"] == text
    else:
        assert text in written.getvalue()


@given(st.text(SAFE, min_size=8, max_size=20), st.text(SAFE + "/+@ é", min_size=8, max_size=20))
def test_a_secret_is_found_in_a_url_and_in_json(name: str, secret: str) -> None:
    assume(secret not in name and name not in secret)
    redactor = Redactor([secret])
    for written in (quote(secret), quote(secret, safe=""), json.dumps(secret), repr(secret)):
        assert REDACTED in redactor.clean(f"{name} {written} {name}")
