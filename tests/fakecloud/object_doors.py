"""Buckets of a fake S3 and a fake Cloud Storage, for the real clients of the product."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from service.clouds.aws import AwsProvider
from service.clouds.aws_entry import AwsEntry
from service.clouds.google import GoogleProvider
from service.clouds.google_entry import GoogleEntry
from service.clouds.metered import MeteredProvider
from service.clouds.object_store import ObjectStore
from service.settings import Settings
from tests.conformance.google.rental import ENTRY
from tests.fakecloud.aws_region import GROUP, IMAGE
from tests.fakecloud.object_server import ObjectServer, ObjectShelf
from tests.fakecloud.object_signatures import verify_aws, verify_google

KEY_ID, SECRET_KEY = "AKIAOFAFAKECLOUD0000", "the-secret-key-of-a-fake-cloud"
EMAIL = "controller@project-1.iam.gserviceaccount.com"


@dataclass(frozen=True)
class OpenBucket:
    """A bucket and the product's own way to it."""

    server: ObjectServer
    store: ObjectStore

    @property
    def shelf(self) -> ObjectShelf:
        return self.server.shelf


@contextmanager
def open_bucket(cloud: str, directory: Path) -> Iterator[OpenBucket]:
    """Open the bucket of one cloud, with credentials in the environment and in a directory."""
    with credentials(directory), open_s3() if cloud == "aws" else open_cloud_storage() as server:
        yield OpenBucket(server, STORES[cloud](server.url))


@contextmanager
def credentials(directory: Path) -> Iterator[None]:
    """Let both SDKs find credentials that the buckets know."""
    key_file = write_key_file(directory / "account.json")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
        environment.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        environment.delenv("AWS_SESSION_TOKEN", raising=False)
        environment.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key_file))
        yield


def bucket_entry(url: str) -> dict[str, str]:
    """Return what an entry of the clouds file says of a bucket."""
    return {"bucket": "kept", "prefix": "team/ours", "endpoint": url}


def aws_store(url: str) -> ObjectStore:
    """Return the bucket of an entry of AWS."""
    entry = AwsEntry.model_validate(
        {
            "region": "eu-central-1",
            "subnets": {"eu-central-1a": "subnet-000a"},
            "security_group": GROUP,
            "image": IMAGE,
            "checkpoints": bucket_entry(url),
        }
    )
    store = MeteredProvider(AwsProvider.open("rented", entry, Settings())).object_store
    assert store is not None
    return store


def google_store(url: str) -> ObjectStore:
    """Return the bucket of an entry of Google."""
    entry = GoogleEntry.model_validate({**ENTRY, "checkpoints": bucket_entry(url)})
    store = GoogleProvider.open("rented", entry, Settings()).object_store
    assert store is not None
    return store


STORES: dict[str, Callable[[str], ObjectStore]] = {"aws": aws_store, "google": google_store}


@contextmanager
def open_s3() -> Iterator[ObjectServer]:
    """Serve a bucket that judges signatures as S3 does."""
    with ObjectServer(ObjectShelf(verify_aws(KEY_ID, SECRET_KEY))) as server:
        yield server


@contextmanager
def open_cloud_storage() -> Iterator[ObjectServer]:
    """Serve a bucket that judges signatures as Cloud Storage does."""
    with ObjectServer(ObjectShelf(verify_google(EMAIL, account_key().public_key()))) as server:
        yield server


@cache
def account_key() -> rsa.RSAPrivateKey:
    """Return the key of a service account."""
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def write_key_file(path: Path) -> Path:
    """Write what Google gives for the key of a service account."""
    pem = account_key().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    facts = {
        "type": "service_account",
        "project_id": "project-1",
        "private_key_id": "1",
        "private_key": pem.decode(),
        "client_email": EMAIL,
        "token_uri": "https://oauth2.example.com/token",
    }
    path.write_text(json.dumps(facts))
    return path
