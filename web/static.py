"""The files of the page, which are read at the start: no path of a request reaches the disk."""

from __future__ import annotations

import hashlib
import html
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.errors import Failed
from services.printable import printable_path
from services.version import tiermesh_version

PAGE_FOLDER = Path(__file__).parent / "page"
"""The page that ships."""
INDEX = "index.html"

_MEDIA_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Media types of the files that are served, by suffix."""
_VERSION = '<meta name="tiermesh-version" content="">'
"""Element of the index that the server writes its version into. A page of another version than its server says so."""


class StaticFile(NamedTuple):
    """A file of the page.

    Attributes:
        body: its content.
        media_type: value of Content-Type.
        etag: value of ETag, which changes with the content.
    """

    body: bytes
    media_type: str
    etag: str


def read_page(folder: Path) -> dict[str, StaticFile]:
    """Return the files of a page by the paths of their URLs: `/` for the index, `/page/NAME` for others.

    Raises:
        Failed: there is no page, or it can't be read.
    """
    files = {}
    try:
        for place in sorted(folder.rglob("*")):
            if place.suffix in _MEDIA_TYPES and place.is_file():
                name = place.relative_to(folder).as_posix()
                files["/" if name == INDEX else f"/page/{name}"] = _read(place)
    except OSError as error:
        raise Failed(
            f"{printable_path(folder)}: the page can't be read ({error.strerror}); install again"
        ) from None
    if "/" not in files:
        raise Failed(f"{printable_path(folder)}: no {INDEX}, expected the page; install again")
    return files


def _read(place: Path) -> StaticFile:
    body = place.read_bytes()
    if place.name == INDEX:
        filled = _VERSION.replace('""', f'"{html.escape(tiermesh_version())}"')
        body = body.replace(_VERSION.encode(), filled.encode())
    return StaticFile(body, _MEDIA_TYPES[place.suffix], f'"{hashlib.sha256(body).hexdigest()}"')


def page_routes(files: Mapping[str, StaticFile]) -> list[Route]:
    """Return a route for each file."""
    return [Route(path, _answering(file), include_in_schema=False) for path, file in files.items()]


def _answering(file: StaticFile) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    headers = {"etag": file.etag, "cache-control": "no-cache"}

    async def answer(request: Request) -> Response:
        known = (
            each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")
        )
        if any(each in (file.etag, "*") for each in known):
            return Response(status_code=304, headers=headers)
        return Response(file.body, headers={**headers, "content-type": file.media_type})

    return answer
