"""Where a server is, who the caller is, and what its errors mean. Nothing here connects."""

from __future__ import annotations

import ipaddress
import json
import math
import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

from tiermesh.errors import (
    Failed,
    NotAllowed,
    NotFound,
    NotYet,
    Refused,
    TiermeshError,
    Unreachable,
    error_of,
)
from tiermesh.version import VERSION

TOKEN_FILE = Path("~/.tiermesh/web-token")
"""Where `tiermesh web` keeps the token that it makes when it runs without TLS."""
_TOKEN_BYTES = 4096
_LINE_CHARACTERS = 1000
_KINDS: dict[int, type[TiermeshError]] = {
    401: NotAllowed,
    403: NotAllowed,
    404: NotFound,
    429: NotYet,
    503: Unreachable,
}


@dataclass(frozen=True)
class Server:
    """A server's address, and what every request to it needs.

    Attributes:
        url: `http://HOST:PORT` or `https://HOST:PORT`.
        token: the caller's token; empty for none.
        ca: PEM file of the authority that has signed the server's certificate; None for those of the system.
        timeout_seconds: longest wait for a connection, and for each further byte.
    """

    url: str
    token: str
    ca: Path | None
    timeout_seconds: float

    @classmethod
    def find(
        cls, url: str, token: str | None, ca: str | os.PathLike[str] | None, timeout_seconds: float
    ) -> Server:
        """Check an address, and find the token of a server on this host.

        Raises:
            Refused: the address is malformed, a token would cross the network in plain text, or its file is unsafe.
        """
        try:
            parsed = httpx2.URL(url)
            port = parsed.port
        except (httpx2.InvalidURL, TypeError):
            parsed, port = httpx2.URL(""), None
        if parsed.scheme not in ("http", "https") or not parsed.host or parsed.path != "/" or parsed.query:
            raise error_of("url", url, "https://HOST:PORT", "correct the address")
        if parsed.userinfo:
            raise error_of("url", parsed.host, "no user in it", "give the token as token=")
        if not (math.isfinite(timeout_seconds) and timeout_seconds > 0):
            raise error_of("timeout_seconds", timeout_seconds, "a number above 0", "correct it")
        local = _is_loopback(parsed.host)
        if token is None:
            token = read_token(TOKEN_FILE.expanduser()) if local and parsed.scheme == "http" else ""
        if not _is_header_text(token):
            raise error_of("token", f"{len(token)} characters", "printable ASCII", "give the token alone")
        if token and parsed.scheme == "http" and not local:
            raise error_of("url", url, "https", "the token would cross the network in plain text; use TLS")
        address = f"[{parsed.host}]" if ":" in parsed.host else parsed.host
        shown = f"{parsed.scheme}://{address}" + (f":{port}" if port is not None else "")
        return cls(shown, token, Path(ca) if ca is not None else None, timeout_seconds)

    def client_options(self) -> dict[str, Any]:
        """Return the arguments of `httpx2.Client` and `httpx2.AsyncClient` for this server."""
        headers = {"User-Agent": f"tiermesh-python/{VERSION}", "Accept-Encoding": "identity"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        return {
            "base_url": self.url,
            "headers": headers,
            "timeout": self.timeout_seconds,
            "verify": self._verify(),
            # A proxy of the environment leads nowhere from here, and would see the token.
            "trust_env": self.url.startswith("https:"),
        }

    def _verify(self) -> Any:
        if self.url.startswith("http:"):
            return False  # there is no certificate, and reading the system's authorities takes 50 ms
        if self.ca is None:
            return True
        import ssl

        try:
            return ssl.create_default_context(cafile=self.ca)
        except (OSError, ssl.SSLError) as error:
            raise error_of(
                "ca", self.ca, f"a readable PEM file ({error})", "give the authority's certificate"
            ) from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_header_text(text: str) -> bool:
    return all("!" <= each <= "~" for each in text)


def read_token(path: Path) -> str:
    """Return the token in a file of this user; empty if there is no such file.

    Raises:
        Refused: the file can't be read, or others may read or write it.
    """
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            text = file.read(_TOKEN_BYTES).decode("ascii", "replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise error_of("token", path, f"a readable file ({error.strerror})", "give token=") from None
    if status.st_mode & (stat.S_IRWXG | stat.S_IRWXO) or status.st_uid != os.geteuid():
        raise error_of(
            "token",
            path,
            "a file that only you can read",
            "remove it, and restart `tiermesh web`, which makes another",
        )
    return text


_CERTIFICATE_ERRORS = {
    10: ("url", "a certificate that has not expired", "renew it with `tiermesh certs renew`"),
    9: ("url", "a certificate that is valid already", "set the clocks of both hosts"),
    62: ("url", "a name in the server's certificate", "use one, or issue a certificate with `--host NAME`"),
    64: (
        "url",
        "an address in the server's certificate",
        "use one, or issue a certificate with `--host ADDRESS`",
    ),
}
"""What is wrong by OpenSSL's number: field, what was expected, and the fix."""
_UNKNOWN_AUTHORITY = (
    "ca",
    "the authority that has signed the server's certificate",
    "give the file authority.pem of `tiermesh certs` as ca=",
)


def error_of_tls(error: BaseException, url: str) -> TiermeshError | None:
    """Return the exception that a failed TLS handshake stands for; None if an error has another cause.

    Args:
        error: error of the transport.
        url: address of the server.
    """
    import ssl

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if cause is None:
        return None
    if isinstance(cause, ssl.SSLCertVerificationError):
        field, expected, fix = _CERTIFICATE_ERRORS.get(cause.verify_code, _UNKNOWN_AUTHORITY)
        return error_of(field, url, f"{expected} ({cause.verify_message})", fix)
    reason = cause.reason or "broken"
    return error_of(
        "url", url, f"a server with TLS (TLS: {reason})", "check the port, or use http:// if it has none"
    )


def error_of_answer(status: int, body: bytes, url: str) -> TiermeshError:
    """Return the exception that an answer other than 2xx stands for.

    Args:
        status: HTTP status.
        body: what was read of the body: problem details (RFC 9457), if it is this API that answers.
        url: address of the server, for people.
    """
    try:
        problem = json.loads(body)
    except (ValueError, RecursionError):
        problem = None
    if not isinstance(problem, dict) or not isinstance(problem.get("detail"), str):
        return Failed(
            f"{url}: answered with status {status} and no problem details, expected a `tiermesh web`; check the "
            "address",
            field="url",
            value=url,
            expected="the address of a `tiermesh web`",
            fix="check the address",
            status=status,
        )
    return error_of_problem({**problem, "status": status})


def error_of_problem(problem: dict[str, Any]) -> TiermeshError:
    """Return the exception that problem details stand for."""
    status = problem.get("status")
    status = status if isinstance(status, int) else 500
    if problem.get("type") == "/problems/missing-file":
        return MissingFiles(problem, status)
    kind = _KINDS.get(status, Refused if 400 <= status < 500 else Failed)
    return _fill(kind(_line(str(problem.get("detail")))), problem, status)


def _fill(error: TiermeshError, problem: dict[str, Any], status: int) -> TiermeshError:
    for name in ("field", "value", "expected", "fix"):
        text = problem.get(name)
        setattr(error, name, _line(text) if isinstance(text, str) else None)
    error.status = status
    return error


def _line(text: str) -> str:
    """Return a text of a server as one printable line."""
    line = "".join(each if each.isprintable() else " " for each in text)
    return line if len(line) <= _LINE_CHARACTERS else line[:_LINE_CHARACTERS] + "..."


class MissingFiles(Refused):
    """A submission whose config names files that the server lacks.

    Attributes:
        missing: each path, as the config has it, and the SHA-256 by which the server wants it; None if it has to be
            told that first.
    """

    def __init__(self, problem: dict[str, Any], status: int) -> None:
        super().__init__(_line(problem["detail"]))
        _fill(self, problem, status)
        found = problem.get("missing")
        self.missing: dict[str, str | None] = {
            each["path"]: each.get("sha256")
            for each in (found if isinstance(found, list) else [])
            if isinstance(each, dict) and isinstance(each.get("path"), str)
        }
