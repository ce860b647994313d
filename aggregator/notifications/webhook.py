"""Posts a message to a webhook, within limits of time and size. A URL is a secret: nothing here quotes it."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import IO

from services.version import tiermesh_version

WAIT_SECONDS = 10.0
"""Longest wait for a connection, and for each part of the answer's head."""
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


def post(url: str, body: bytes) -> Failure | None:
    """Post a JSON body; return None if it was taken, else why not. The answer's body is not read."""
    headers = {"Content-Type": "application/json", "User-Agent": f"tiermesh/{tiermesh_version()}"}
    opener = urllib.request.build_opener(_NoRedirect)  # with the proxies of the environment
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
