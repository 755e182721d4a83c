"""HTTP to the controller: `ControllerClient` for a machine, `TelemetryUploader` for an operator."""

from __future__ import annotations

import ssl
import time
from collections.abc import Mapping
from hashlib import sha256
from typing import IO, TypeVar

import httpx
from pydantic import TypeAdapter, ValidationError

from scavenger.checkpoints import (
    CheckpointTrouble,
    CheckpointUpload,
    NewestCheckpoint,
    StoredCheckpoint,
    UploadTarget,
)
from scavenger.code_archive import MAX_PACKED_BYTES, MEBIBYTE
from scavenger.protocol import (
    RENEWAL_HEADER,
    CommandExit,
    EnrolmentReply,
    EnrolmentRequest,
    ExitReply,
    Hello,
    InterruptionNotice,
    LogBatch,
    ProfileReply,
    ProfileReport,
    Reply,
    StepReport,
    VmLease,
)
from scavenger.worker_env import WorkerEnv
from worker_agent.errors import BucketUnavailable, ControllerRefused, ControllerUnreachable

_T = TypeVar("_T")

# These 4xx say nothing about the request itself, so repeating it may help.
_RETRYABLE = (TOO_SLOW, TOO_MANY_REQUESTS) = (408, 429)
RATE_LIMIT_PAUSE = 1.0
BUCKET_TIMEOUT = 60.0
MISSING = 404
UNAVAILABLE, BUCKET_PROBLEM = 503, "bucket_unavailable"

_HELLO = TypeAdapter(Hello)
_REPORT = TypeAdapter(StepReport)
_EXIT, _EXIT_REPLY = TypeAdapter(CommandExit), TypeAdapter(ExitReply)
_NOTICE = TypeAdapter(InterruptionNotice)
_LOG = TypeAdapter(LogBatch)
_WORKER = TypeAdapter(dict[str, str])
_REPLY = TypeAdapter(Reply)
_LEASE = TypeAdapter(VmLease)
_UPLOAD, _TARGET = TypeAdapter(CheckpointUpload), TypeAdapter(UploadTarget)
_NEWEST, _TROUBLE = TypeAdapter(NewestCheckpoint), TypeAdapter(CheckpointTrouble)
_PROFILE, _LAYOUT = TypeAdapter(ProfileReport), TypeAdapter(ProfileReply)
_ENROL, _ENROLLED = TypeAdapter(EnrolmentRequest), TypeAdapter(EnrolmentReply)


class ControllerClient:
    """The requests of a machine; each may raise one of two errors.

    ``ControllerUnreachable`` leaves open whether the controller has received the message, so it may
    be sent again. ``ControllerRefused`` says that it received and declined it. Safe to share
    between threads.

    Attributes:
        token: Token of the next request; a reply may renew it.
    """

    def __init__(self, settings: WorkerEnv) -> None:
        self.token = settings.token
        self._http = httpx.Client(
            base_url=settings.controller,
            timeout=httpx.Timeout(5.0, connect=1.0),
            # A proxy meant for the web must not come between a worker and its controller.
            trust_env=False,
            verify=True if settings.ca is None else ssl.create_default_context(cafile=settings.ca),
        )

    def enrol(self, enrol: EnrolmentRequest) -> EnrolmentReply:
        """Exchange the credential that this machine was launched with for a token of its own."""
        enrolled = _parse(_ENROLLED, self._post("enrol", _ENROL.dump_json(enrol)))
        self.token = enrolled.token
        return enrolled

    def hello(self, hello: Hello) -> Reply:
        """Announce that this worker is up and can join a generation."""
        return _parse(_REPLY, self._post("hello", _HELLO.dump_json(hello)))

    def send_profile(self, report: ProfileReport) -> ProfileReply:
        """Report what was measured of the model; the reply says how processes share it."""
        # JSON has no infinity, which a memory has that nothing tells.
        content = _PROFILE.dump_json(report, exclude_defaults=True)
        return _parse(_LAYOUT, self._post("profile", content))

    def report(self, report: StepReport) -> Reply:
        """Send measurements; the reply contains the newest Directive."""
        return _parse(_REPLY, self._post("report", _REPORT.dump_json(report)))

    def lease(self, worker: str) -> VmLease:
        """Renew the lease of this machine; it is counted from before this call."""
        return _parse(_LEASE, self._post("lease", _WORKER.dump_json({"worker": worker})))

    def exit(self, message: CommandExit) -> ExitReply:
        """Report that the training command ended; the reply may say how to start it again."""
        return _parse(_EXIT_REPLY, self._post("exit", _EXIT.dump_json(message)))

    def notice(self, message: InterruptionNotice) -> None:
        """Report that the cloud will take this machine back."""
        self._post("notice", _NOTICE.dump_json(message))

    def send_log(self, message: LogBatch) -> None:
        """Send lines that the command printed."""
        self._post("logs", _LOG.dump_json(message))

    def fetch_code(self, file: IO[bytes]) -> str:
        """Write the code of this machine's job to a file; returns the SHA-256 of what arrived.

        Raises:
            OSError: The file does not take it.
        """
        digest, size, path = sha256(), 0, "/v1/agent/code"
        headers = {"Authorization": f"Bearer {self.token}"}
        try:
            with self._http.stream("GET", path, headers=headers) as response:
                if not response.is_success:
                    response.read()
                _check_status(response)
                for part in response.iter_bytes(MEBIBYTE):
                    size += len(part)
                    if size > MAX_PACKED_BYTES:
                        raise ControllerUnreachable(f"GET {path}: more than any code may be")
                    digest.update(part)
                    file.write(part)
        except httpx.RequestError as error:
            raise ControllerUnreachable(f"GET {path}: {str(error) or repr(error)}") from error
        self.token = response.headers.get(RENEWAL_HEADER, self.token)
        return digest.hexdigest()

    def fetch_bundle(self, key: str) -> bytes | None:
        """Return the archive of compiled code of a key; None if the project has none."""
        try:
            return self._exchange_bundle("GET", key)
        except ControllerRefused as error:
            if error.status == MISSING:
                return None
            raise

    def store_bundle(self, key: str, archive: bytes) -> None:
        """Keep an archive of compiled code for the project."""
        self._exchange_bundle("PUT", key, archive)

    def _exchange_bundle(self, method: str, key: str, content: bytes = b"") -> bytes:
        path = f"/v1/agent/bundles/{key}"
        headers = {
            "Content-Type": "application/octet-stream",
            "Authorization": f"Bearer {self.token}",
        }
        try:
            response = self._http.request(
                method, path, content=content, headers=headers, timeout=BUCKET_TIMEOUT
            )
        except httpx.RequestError as error:
            raise ControllerUnreachable(f"{method} {path}: {str(error) or repr(error)}") from error
        _check_status(response)
        self.token = response.headers.get(RENEWAL_HEADER, self.token)
        return response.content

    def put_checkpoint(self, upload: CheckpointUpload) -> UploadTarget:
        """Announce a checkpoint for the bucket, or that all of it was sent.

        Raises:
            BucketUnavailable: The controller cannot reach or use the bucket; the message says why.
        """
        content = _UPLOAD.dump_json(upload)
        return _parse(_TARGET, self._ask_bucket("PUT", upload.id, content=content))

    def newest_checkpoint(self, older_than: str | None = None) -> StoredCheckpoint | None:
        """Ask where the newest complete checkpoint in the bucket is, or the newest before one.

        Raises:
            BucketUnavailable: The controller cannot reach or use the bucket; the message says why.
        """
        query = {} if older_than is None else {"older_than": older_than}
        return _parse(_NEWEST, self._ask_bucket("GET", "newest", params=query)).stored

    def report_checkpoint_trouble(self, trouble: CheckpointTrouble) -> None:
        """Report that the bucket took or gave no checkpoint."""
        self._post("checkpoints/trouble", _TROUBLE.dump_json(trouble))

    def _ask_bucket(
        self,
        method: str,
        what: str,
        *,
        content: bytes = b"",
        params: Mapping[str, str] | None = None,
    ) -> bytes:
        path = f"/v1/agent/checkpoints/{what}"
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        try:
            response = self._http.request(
                method,
                path,
                content=content,
                params=params,
                headers=headers,
                timeout=BUCKET_TIMEOUT,  # the controller asks the cloud before it answers
            )
        except httpx.RequestError as error:
            raise ControllerUnreachable(f"{method} {path}: {str(error) or repr(error)}") from error
        if response.status_code == UNAVAILABLE and BUCKET_PROBLEM in response.text:
            raise BucketUnavailable(_detail(response))
        _check_status(response)
        self.token = response.headers.get(RENEWAL_HEADER, self.token)
        return response.content

    def _post(self, what: str, content: bytes) -> bytes:
        response = _post(self._http, f"/v1/agent/{what}", content, self.token)
        self.token = response.headers.get(RENEWAL_HEADER, self.token)
        return response.content


class TelemetryUploader:
    """Sends spooled reports of any machine with an operator's token.

    Args:
        url: Address of the controller.
        token: Token of an operator; a machine's token is valid for that machine only.
    """

    def __init__(self, url: str, token: str) -> None:
        self._http, self._token = httpx.Client(base_url=url, timeout=30.0), token

    def __enter__(self) -> TelemetryUploader:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def hello(self, hello: Hello) -> Reply:
        """Do nothing: the controller knows its machines, and none of them trains here."""
        return Reply(None, 0)

    def report(self, report: StepReport) -> Reply:
        """Send one report, and wait while the controller limits the rate.

        Raises:
            ControllerUnreachable: No valid answer; try again later.
            ControllerRefused: The controller declined; the text says why.
        """
        while True:
            try:
                content = _REPORT.dump_json(report)
                answer = _post(self._http, "/v1/telemetry/backfill", content, self._token)
                return _parse(_REPLY, answer.content)
            except ControllerUnreachable as error:
                if error.status != TOO_MANY_REQUESTS:
                    raise
            time.sleep(RATE_LIMIT_PAUSE)


def _post(http: httpx.Client, path: str, content: bytes, token: str) -> httpx.Response:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    try:
        response = http.post(path, content=content, headers=headers)
    except httpx.RequestError as error:
        raise ControllerUnreachable(f"POST {path}: {str(error) or repr(error)}") from error
    _check_status(response)
    return response


def _check_status(response: httpx.Response) -> None:
    status, request = response.status_code, response.request
    if response.is_client_error and status not in _RETRYABLE:
        raise ControllerRefused(status, response.text)
    if not response.is_success:
        where = f"{request.method} {request.url.path}"
        raise ControllerUnreachable(f"{where}: status {status}", status)


def _detail(response: httpx.Response) -> str:
    try:
        return str(response.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return f"the controller cannot use the bucket: status {response.status_code}"


def _parse(adapter: TypeAdapter[_T], content: bytes) -> _T:
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        raise ControllerUnreachable(f"the answer is not a controller's: {error}") from error
