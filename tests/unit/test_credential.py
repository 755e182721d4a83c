"""Tokens of people are random, and known again by a hash."""

from __future__ import annotations

from service.auth.tokens import TOKEN_PATTERN, TokenDigest, make_token


def test_a_token_is_known_again_and_no_other() -> None:
    first, second = make_token(), make_token()
    assert TOKEN_PATTERN.fullmatch(first)
    assert TokenDigest.of(first).id == first.split("_")[1]
    assert TokenDigest.of(first).matches(TokenDigest.of(first).digest)
    assert not TokenDigest.of(second).matches(TokenDigest.of(first).digest)


def test_two_halves_of_different_tokens_are_another_token() -> None:
    first, second = make_token(), make_token()
    mixed = first[:17] + second[17:]
    assert TokenDigest.of(mixed).id == TokenDigest.of(first).id
    assert not TokenDigest.of(mixed).matches(TokenDigest.of(first).digest)


def test_a_credential_does_not_show_its_hash() -> None:
    credential = TokenDigest.of(make_token())
    assert credential.digest not in repr(credential)
