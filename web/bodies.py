"""The body of a request: within limits of size and time, of one media type, and if it is JSON, well-formed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from services.json_text import JsonKind, parse_json
from web.problems import Problem, refused

Scope: TypeAlias = "dict[str, Any]"
Receive: TypeAlias = "Callable[[], Any]"

REQUEST_JSON = JsonKind("request", 1 << 20, 50_000)
"""Body of a POST."""
JSON_SECONDS = 15.0
"""Longest wait for such a body."""

_DRAINED_BYTES = 4 << 20
_DRAIN_SECONDS = 2.0


class Body:
    """Body of a request.

    Args:
        scope: the request.
        receive: gives its messages.

    Attributes:
        is_complete: whether all of it has come.
    """

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self._receive = receive
        self._waits = any(name == b"expect" for name, _ in scope["headers"])  # until it is asked for
        self.is_complete = False

    async def receive(self) -> Any:
        """Return the next message."""
        self._waits = False
        message = await self._receive()
        self.is_complete = self.is_complete or not message.get("more_body", False)
        return message

    async def drain(self) -> None:
        """Read some of the rest, since a caller that is cut off while it writes does not see the answer."""

        async def read() -> None:
            size = 0
            while size < _DRAINED_BYTES and not self.is_complete:
                size += len((await self.receive()).get("body", b""))

        if not self._waits:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(read(), _DRAIN_SECONDS)


async def checked_body(scope: Scope, headers: dict[str, str], receive: Receive) -> Receive:
    """Return what gives the body of a request: a POST's is read and parsed here, a PUT's is left to its reader."""
    if scope["method"] not in ("POST", "PUT"):
        return receive
    wanted = "application/octet-stream" if scope["method"] == "PUT" else "application/json"
    # A page of another site can send a POST without a type or with a form's, but no PUT without being let to.
    given = headers.get("content-type", wanted if scope["method"] == "PUT" else "")
    charset = given.partition(";")[2].replace(" ", "").lower()
    if given.partition(";")[0].strip().lower() != wanted or charset not in ("", "charset=utf-8"):
        raise refused("Content-Type", given or "none", wanted, "send the body as such", 415, "media-type")
    if "content-encoding" in headers:
        raise refused(
            "Content-Encoding",
            headers["content-encoding"],
            "none",
            "send the body as it is",
            415,
            "media-type",
        )
    if scope["method"] == "PUT":
        return receive
    body = await _read_json(receive)
    is_read = False

    async def replay() -> Any:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


async def _read_json(receive: Receive) -> bytes:
    try:
        body = await asyncio.wait_for(_read_all(receive, REQUEST_JSON.limit_bytes), JSON_SECONDS)
    except asyncio.TimeoutError:
        text = f"body: not all of it came within {JSON_SECONDS:g} s; send it at once"
        raise Problem(408, "malformed", text) from None
    try:
        parse_json(body, REQUEST_JSON)
    except ValueError as error:
        raise Problem(400, "malformed", f"body: no JSON in UTF-8 ({error!s:.200}); correct it") from None
    return body


async def _read_all(receive: Receive, most_bytes: int) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise Problem(400, "malformed", "body: ended early; send all of it")
        body += message["body"]
        if len(body) > most_bytes:
            raise refused(
                "body",
                f"more than {most_bytes} bytes",
                f"at most {most_bytes}",
                "send files by PUT",
                413,
                "too-large",
            )
        if not message["more_body"]:
            return bytes(body)
