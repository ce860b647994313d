"""Posts a message to a webhook, within limits of time and size. A URL is a secret: nothing here quotes it."""

from __future__ import annotations

import http.client
import io
import socket
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

from services.version import tiermesh_version

WAIT_SECONDS = 10.0
"""Longest time from the beginning of an exchange to the end of the answer's head."""
_PASSING = (408, 425, 429)
"""Answers of 4xx after which another attempt may succeed."""


@dataclass(frozen=True)
class Failure:
    """Reason why a message was not taken.

    Attributes:
        reason: what went wrong, for people, without the URL.
        is_final: whether another attempt would fail too.
    """

    reason: str
    is_final: bool = False


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Handler that follows no redirect: a message goes to the operator's URL, and nowhere else."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        """Return no request, so that the answer is an error."""


class _BytesUntil(io.RawIOBase):
    """Bytes of a socket until a deadline; the socket's own limit is for each read, so one byte at a time would pass it.

    Args:
        connected: the socket.
        ends_seconds: the deadline, on the monotonic clock.
    """

    def __init__(self, connected: socket.socket, ends_seconds: float) -> None:
        super().__init__()
        self._socket = connected
        self._bytes = connected.makefile("rb", buffering=0)
        self._ends_seconds = ends_seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left_seconds = self._ends_seconds - time.monotonic()
        if left_seconds <= 0.0:
            raise TimeoutError
        self._socket.settimeout(left_seconds)
        return self._bytes.readinto(buffer)

    def close(self) -> None:
        self._bytes.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """An answer that is read until a deadline, of the webhook or of a proxy before it."""

    def __init__(self, sock: socket.socket, *args: Any, ends_seconds: float, **others: Any) -> None:
        super().__init__(sock, *args, **others)
        self.fp.close()
        self.fp = io.BufferedReader(_BytesUntil(sock, ends_seconds))


class _HTTPHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens connections whose answers are read until a deadline.

    Args:
        ends_seconds: the deadline, on the monotonic clock.
    """

    def __init__(self, ends_seconds: float) -> None:
        super().__init__()
        self._response = partial(_Response, ends_seconds=ends_seconds)

    def do_open(self, http_class: Any, req: urllib.request.Request, **others: Any) -> Any:
        """Open a request."""

        def connect(*args: Any, **options: Any) -> Any:
            connection: Any = http_class(*args, **options)
            connection.response_class = self._response
            return connection

        return super().do_open(connect, req, **others)


def post(url: str, body: bytes) -> Failure | None:
    """Post a JSON body; return None if it was taken, else why not. The answer's body is not read."""
    headers = {"Content-Type": "application/json", "User-Agent": f"tiermesh/{tiermesh_version()}"}
    ends_seconds = time.monotonic() + WAIT_SECONDS
    # The opener has the proxies of the environment.
    opener = urllib.request.build_opener(_NoRedirect, _HTTPHandler(ends_seconds))
    try:
        opener.open(urllib.request.Request(url, body, headers), timeout=WAIT_SECONDS).close()
    except urllib.error.HTTPError as error:
        error.close()
        if 300 <= error.code < 400:
            return Failure(f"it answered {error.code}, a redirect, which is not followed", is_final=True)
        is_final = 400 <= error.code < 500 and error.code not in _PASSING
        return Failure(f"it answered {error.code}", is_final=is_final)
    except Exception as error:  # of any kind: what a webhook does must end here
        return Failure(_describe(error))
    return None


def _describe(error: Exception) -> str:
    """Return what an error is, without its text, which may quote the URL."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, TimeoutError):
        return f"no answer within {WAIT_SECONDS:g} s"
    if isinstance(cause, OSError) and cause.strerror:
        return f"{type(cause).__name__}: {cause.strerror}"
    return type(cause).__name__
