"""Buckets of both clouds, and of moto as a second opinion on the protocol of S3."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from service.clouds.google_store import Signer, sign_url
from service.clouds.object_store import ObjectStore
from service.errors import CredentialsRefused, ProviderUnavailable
from tests.conformance.object_stores import (
    CONTENT,
    DIGEST,
    NAME,
    Advance,
    ObjectStoreConformance,
    SignedObjectStoreConformance,
    put,
)
from tests.fakecloud.object_doors import (
    OpenBucket,
    aws_store,
    credentials,
    google_store,
    open_bucket,
)
from tests.fakecloud.object_server import ObjectServer

SIMPLE_GET = "00e2fb794ea93d7adb703edaebdd509821fcc7d4f1a79ac5c8d2b394df109320"
OTHER_TIME = "779f19fdb6fd381390e2d5af04947cf21750277ee3c20e0c97b7e46a1dff8907"


def ahead(server: ObjectServer) -> Advance:
    def advance(seconds: float) -> None:
        server.shelf.ahead += timedelta(seconds=seconds)

    return advance


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBucket]:
    """A client takes seconds to make, so that all tests have one."""
    with open_bucket("aws", tmp_path_factory.mktemp("aws")) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def cloud_storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenBucket]:
    with open_bucket("google", tmp_path_factory.mktemp("google")) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, ObjectStore]]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    with credentials(tmp_path_factory.mktemp("moto")):
        client = boto3.client("s3", endpoint_url=url, region_name="eu-central-1")
        place = {"LocationConstraint": "eu-central-1"}
        client.create_bucket(Bucket="kept", CreateBucketConfiguration=place)
        yield client, aws_store(url)
    server.stop()


class TestS3(SignedObjectStoreConformance):
    """The bucket of AWS, at a door that checks signature, expiry, condition and hash."""

    @pytest.fixture
    def server(self, s3: OpenBucket) -> ObjectServer:
        s3.shelf.clear()
        return s3.server

    @pytest.fixture
    def store(self, s3: OpenBucket, server: ObjectServer) -> ObjectStore:
        return s3.store

    @pytest.fixture
    def advance(self, server: ObjectServer) -> Advance:
        return ahead(server)

    def test_other_content_of_the_same_size_is_refused(self, store: ObjectStore) -> None:
        request = store.sign_upload(NAME, len(CONTENT), DIGEST)
        assert put(request, CONTENT.upper()) == 400
        assert not store.holds(NAME, len(CONTENT), DIGEST)

    def test_an_object_of_another_hash_is_not_the_one(self, store: ObjectStore) -> None:
        self.upload(store)
        assert not store.holds(NAME, len(CONTENT), "0" * 64)

    def test_a_missing_right_says_which(self, store: ObjectStore, server: ObjectServer) -> None:
        server.shelf.denied |= {"HEAD", "DELETE"}
        with pytest.raises(CredentialsRefused, match="s3:GetObject"):
            store.holds(NAME, len(CONTENT), DIGEST)
        with pytest.raises(CredentialsRefused):
            store.delete(NAME)

    def test_a_bucket_that_does_not_answer_is_unavailable(
        self, store: ObjectStore, server: ObjectServer
    ) -> None:
        server.shelf.fail("HEAD", "lose", "refuse")
        for _ in range(2):
            with pytest.raises(ProviderUnavailable):
                store.holds(NAME, len(CONTENT), DIGEST)

    def test_it_is_named_as_people_name_it(self, store: ObjectStore) -> None:
        assert store.url == "s3://kept/team/ours"


class TestCloudStorage(SignedObjectStoreConformance):
    """The bucket of Google, signed with the key of a service account."""

    @pytest.fixture
    def server(self, cloud_storage: OpenBucket) -> ObjectServer:
        cloud_storage.shelf.clear()
        return cloud_storage.server

    @pytest.fixture
    def store(self, cloud_storage: OpenBucket, server: ObjectServer) -> ObjectStore:
        return cloud_storage.store

    @pytest.fixture
    def advance(self, server: ObjectServer) -> Advance:
        return ahead(server)

    def test_a_missing_right_says_which(self, store: ObjectStore, server: ObjectServer) -> None:
        server.shelf.denied |= {"HEAD", "DELETE"}
        with pytest.raises(CredentialsRefused, match=r"storage\.objects"):
            store.holds(NAME, len(CONTENT), DIGEST)
        with pytest.raises(CredentialsRefused):
            store.delete(NAME)

    def test_a_bucket_that_does_not_answer_shows_no_signature(
        self, store: ObjectStore, server: ObjectServer
    ) -> None:
        server.shelf.fail("HEAD", "lose", "refuse")
        for _ in range(2):
            with pytest.raises(ProviderUnavailable) as caught:
                store.holds(NAME, len(CONTENT), DIGEST)
            assert "X-Goog" not in str(caught.value)

    def test_a_persons_login_cannot_sign_and_says_so(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        person = tmp_path / "person.json"
        person.write_text(
            '{"type": "authorized_user", "client_id": "c", "client_secret": "s",'
            ' "refresh_token": "r"}'
        )
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(person))
        with pytest.raises(CredentialsRefused, match="key file of a service account"):
            google_store("http://127.0.0.1:9").sign_download(NAME)

    def test_no_credentials_are_said_to_be_missing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
        with pytest.raises(CredentialsRefused, match="no credentials"):
            google_store("http://127.0.0.1:9").sign_download(NAME)


class TestMotosS3(ObjectStoreConformance):
    """The same client before another program's S3, which judges no signature."""

    @pytest.fixture
    def store(self, moto: tuple[Any, ObjectStore]) -> ObjectStore:
        client, store = moto
        for item in client.list_objects_v2(Bucket="kept").get("Contents", ()):
            client.delete_object(Bucket="kept", Key=item["Key"])
        return store


@pytest.mark.parametrize(
    ("day", "seconds", "digest"),
    [
        # What Google publishes of a simple GET, and of another time and duration.
        (datetime(2019, 2, 1, 9, tzinfo=UTC), 10, SIMPLE_GET),
        (datetime(2019, 3, 1, 9, tzinfo=UTC), 20, OTHER_TIME),
    ],
)
def test_what_is_signed_is_what_google_publishes(day: datetime, seconds: int, digest: str) -> None:
    signed: list[str] = []

    def sign(told: bytes) -> bytes:
        signed.append(told.decode())
        return b""

    signer = Signer("test-iam-credentials@dummy-project-id.iam.gserviceaccount.com", sign)
    place = "https://storage.googleapis.com/test-bucket/test-object"
    sign_url(signer, "GET", place, {}, day, seconds)
    moment = f"{day:%Y%m%dT%H%M%SZ}"
    scope = f"{day:%Y%m%d}/auto/storage/goog4_request"
    assert signed == [f"GOOG4-RSA-SHA256\n{moment}\n{scope}\n{digest}"]
