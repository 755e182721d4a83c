"""Tokens of people are random, and known again by a hash."""

from __future__ import annotations

from service.credential import TOKEN, Credential, make_token


def test_a_token_is_known_again_and_no_other() -> None:
    first, second = make_token(), make_token()
    assert TOKEN.fullmatch(first)
    assert Credential.of(first).id == first.split("_")[1]
    assert Credential.of(first).is_of(Credential.of(first).digest)
    assert not Credential.of(second).is_of(Credential.of(first).digest)


def test_two_halves_of_different_tokens_are_another_token() -> None:
    first, second = make_token(), make_token()
    mixed = first[:17] + second[17:]
    assert Credential.of(mixed).id == Credential.of(first).id
    assert not Credential.of(mixed).is_of(Credential.of(first).digest)


def test_a_credential_does_not_show_its_hash() -> None:
    credential = Credential.of(make_token())
    assert credential.digest not in repr(credential)
