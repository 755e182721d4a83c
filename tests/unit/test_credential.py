"""Tokens of people are random, and known again by a hash."""

from __future__ import annotations

from service.auth.tokens import TOKEN_PATTERN, ApiToken, make_token


def test_a_token_is_known_again_and_no_other() -> None:
    first, second = make_token(), make_token()
    assert TOKEN_PATTERN.fullmatch(first)
    assert ApiToken.of(first).id == first.split("_")[1]
    assert ApiToken.of(first).is_of(ApiToken.of(first).digest)
    assert not ApiToken.of(second).is_of(ApiToken.of(first).digest)


def test_two_halves_of_different_tokens_are_another_token() -> None:
    first, second = make_token(), make_token()
    mixed = first[:17] + second[17:]
    assert ApiToken.of(mixed).id == ApiToken.of(first).id
    assert not ApiToken.of(mixed).is_of(ApiToken.of(first).digest)


def test_a_credential_does_not_show_its_hash() -> None:
    credential = ApiToken.of(make_token())
    assert credential.digest not in repr(credential)
