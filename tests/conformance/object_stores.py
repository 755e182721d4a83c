"""What every bucket does, whichever cloud has it."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import httpx
import pytest

from scavenger.checkpoints import SignedRequest
from service.clouds.object_store import SIGNATURE_SECONDS, ObjectStore

CONTENT = b"weights" * 1000
DIGEST = sha256(CONTENT).hexdigest()
NAME = "job_1/0000000001-000000000010-ab/state.json.0"
Advance = Callable[[float], None]


def put(request: SignedRequest, content: bytes = CONTENT, **changes: str) -> int:
    """Send content as a machine does; returns the status."""
    sent = {**request.headers, "Content-Length": str(len(content)), **changes}
    return httpx.put(request.url, content=content, headers=sent, trust_env=False).status_code


def get(request: SignedRequest) -> httpx.Response:
    return httpx.get(request.url, headers=request.headers, trust_env=False)


class ObjectStoreConformance:
    """Inherit it, with the fixture ``store``."""

    @pytest.fixture
    def store(self) -> ObjectStore:
        raise NotImplementedError

    def upload(self, store: ObjectStore, content: bytes = CONTENT, name: str = NAME) -> int:
        digest = sha256(content).hexdigest()
        return put(store.sign_upload(name, len(content), digest), content)

    def test_what_was_sent_is_there_and_comes_back(self, store: ObjectStore) -> None:
        assert not store.holds(NAME, len(CONTENT), DIGEST)
        assert self.upload(store) == 200
        assert store.holds(NAME, len(CONTENT), DIGEST)
        assert get(store.sign_download(NAME)).content == CONTENT

    def test_an_empty_object_is_one(self, store: ObjectStore) -> None:
        assert self.upload(store, b"") == 200
        assert store.holds(NAME, 0, sha256(b"").hexdigest())

    def test_an_object_is_written_once(self, store: ObjectStore) -> None:
        assert [self.upload(store), self.upload(store)] == [200, 412]
        assert self.upload(store, CONTENT.upper()) == 412
        assert get(store.sign_download(NAME)).content == CONTENT

    def test_an_object_of_another_size_is_not_the_one(self, store: ObjectStore) -> None:
        self.upload(store)
        assert not store.holds(NAME, len(CONTENT) + 1, DIGEST)

    def test_what_is_not_there_is_not_sent(self, store: ObjectStore) -> None:
        assert get(store.sign_download(NAME)).status_code == 404

    def test_deleting_may_be_repeated_and_makes_room(self, store: ObjectStore) -> None:
        store.delete(NAME)
        self.upload(store)
        store.delete(NAME)
        store.delete(NAME)
        assert not store.holds(NAME, len(CONTENT), DIGEST)
        assert self.upload(store) == 200


class SignedObjectStoreConformance(ObjectStoreConformance):
    """The same for a bucket that judges signatures, with the fixture ``advance`` besides."""

    @pytest.fixture
    def advance(self) -> Advance:
        """Let time pass at the bucket."""
        raise NotImplementedError

    def test_a_signature_expires(self, store: ObjectStore, advance: Advance) -> None:
        upload = store.sign_upload(NAME, len(CONTENT), DIGEST)
        download = store.sign_download(NAME)
        advance(SIGNATURE_SECONDS + 1)
        assert put(upload) == 403
        assert get(download).status_code == 403

    def test_a_signature_is_for_one_method_and_one_object(self, store: ObjectStore) -> None:
        self.upload(store)
        download = store.sign_download(NAME)
        assert put(SignedRequest(download.url)) == 403
        other = download.url.replace("state.json.0", "state.json.1")
        assert get(SignedRequest(other)).status_code == 403
        assert httpx.delete(download.url, trust_env=False).status_code == 403

    def test_without_its_condition_no_upload_is_accepted(self, store: ObjectStore) -> None:
        request = store.sign_upload(NAME, len(CONTENT), DIGEST)
        assert put(SignedRequest(request.url)) == 403

    def test_more_or_less_than_was_told_is_refused(self, store: ObjectStore) -> None:
        request = store.sign_upload(NAME, len(CONTENT), DIGEST)
        for content in (CONTENT[1:], CONTENT * 2, b""):
            assert put(request, content) in (400, 403)
        assert not store.holds(NAME, len(CONTENT), DIGEST)
