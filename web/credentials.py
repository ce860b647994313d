"""What the headers of a request say: the server that it is meant for, the page that sent it, and its caller's token.

A program shows its token in `Authorization`. A browser shows it in a cookie that no script can read. It is the whole
session: nothing is kept here, so a token that is revoked ends its sessions, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from services.transport.access.tokens import is_token
from web.problems import Problem, refused

_READ_HEADERS = frozenset(
    {
        "host", "origin", "sec-fetch-site", "authorization", "cookie", "content-type", "content-length",
        "content-encoding",
    }
)  # fmt: skip
_OWN_PAGE = ("same-origin", "none")
"""Values of Sec-Fetch-Site of requests by this server's own page, and of those by a person, such as a bookmark's."""


class Shown(NamedTuple):
    """A token that a request shows.

    Attributes:
        token: the token, which has the form of one.
        by_cookie: whether a browser shows it, for its session.
    """

    token: str
    by_cookie: bool


def read_headers(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that are checked before a path is looked up, each of which may be there once (Problem)."""
    found: dict[str, str] = {}
    for name, value in scope["headers"]:
        key = name.decode("latin-1")
        if key in _READ_HEADERS:
            if key in found:
                raise Problem(400, "malformed", f"{key}: given twice, expected once; send it once")
            found[key] = value.decode("latin-1").strip()
    return found


def check_place(headers: Mapping[str, str], hosts: Collection[str]) -> None:
    """Check that a request is meant for this server, and is not sent by the page of another one (Problem).

    Args:
        headers: headers of the request.
        hosts: names and addresses of this server, in lower case.
    """
    host = headers.get("host", "")
    if _host_name(host) not in hosts:
        fix = "use one of its names, or start it with --allow-host"
        raise refused("Host", host, "a name of this server", fix, status=421, kind="host")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
        raise _foreign("Origin", origin, f"none, or that of {host}")


def _host_name(host: str) -> str:
    """Return the name or address in a Host header, in lower case; empty if there is none."""
    try:
        return (urlsplit(f"//{host}").hostname or "") if "@" not in host and "/" not in host else ""
    except ValueError:
        return ""


def _foreign(field: str, value: str, expected: str) -> Problem:
    return refused(field, value, expected, "send it from no other page", status=403, kind="forbidden")


def find_token(headers: Mapping[str, str]) -> Shown:
    """Return the token that a request shows.

    Raises:
        Problem: it shows none, or shows that of a session from another server's page.
    """
    cookie = None if "authorization" in headers else _find_cookie(headers)
    if cookie is not None:
        site = headers.get("sec-fetch-site", _OWN_PAGE[0])
        if site not in _OWN_PAGE:  # a page at another port of this host is of the same site
            raise _foreign("Sec-Fetch-Site", site, f"{' or '.join(_OWN_PAGE)} with a session's cookie")
        token, by_cookie = cookie, True
    else:
        scheme, _, text = headers.get("authorization", "").partition(" ")
        token, by_cookie = text.strip() if scheme.lower() == "bearer" else "", False
    if not is_token(token):
        found = "no token" if "authorization" not in headers and cookie is None else "something else"
        raise Problem(
            401,
            "unauthenticated",
            f"Authorization: {found} given, expected `Bearer TOKEN`; show a token from `tiermesh tokens issue`, or the "
            "one in the --token-file of `tiermesh web`",
            headers={"www-authenticate": "Bearer"},
        )
    return Shown(token, by_cookie)


def _find_cookie(headers: Mapping[str, str]) -> str | None:
    """Return the value of the session's cookie; None if there is none (Problem if there are several)."""
    name = _cookie_name(headers.get("host", ""))
    pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    values = [value for key, _, value in pairs if key == name]
    if len(values) > 1:  # another server of the site may have set one
        raise Problem(
            400, "malformed", f"Cookie: {name} given twice, expected once; clear this site's cookies"
        )
    return values[0] if values else None


def _cookie_name(host: str) -> str:
    """Return the name of a session's cookie, which has the port, as browsers send cookies to all ports of a host.

    By its prefix, browsers take it from this very host alone, not from another one of its domain.
    """
    port = host.rpartition("]")[2].partition(":")[2]
    return f"__Host-tiermesh-{port}" if port else "__Host-tiermesh"


def begin_session(host: str, token: str) -> str:
    """Return the Set-Cookie header that begins a session, which ends with the browser."""
    return f"{_cookie_name(host)}={token}; {_ATTRIBUTES}"


def end_session(host: str) -> str:
    """Return the Set-Cookie header that ends a session."""
    return f"{_cookie_name(host)}=; Max-Age=0; {_ATTRIBUTES}"


_ATTRIBUTES = "HttpOnly; Secure; SameSite=Strict; Path=/"
"""Attributes of the cookie. Browsers take loopback for secure."""
