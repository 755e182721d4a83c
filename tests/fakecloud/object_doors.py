"""Buckets of a fake S3 and a fake Cloud Storage, for the real clients of the product."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.fakecloud.object_server import ObjectServer, ObjectShelf
from tests.fakecloud.object_signatures import verify_aws, verify_google

KEY_ID, SECRET_KEY = "AKIAOFAFAKECLOUD0000", "the-secret-key-of-a-fake-cloud"
EMAIL = "controller@project-1.iam.gserviceaccount.com"


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
