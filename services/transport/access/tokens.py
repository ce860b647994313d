"""Bearer tokens of people, for those that have no certificate. The aggregator's file has their hashes only.

A token is `tm_ID_SECRET`, with a secret of 256 random bits. A line of the file is `ID KIND NAME EXPIRES SHA256`,
where SHA256 is the hash of the whole token. Lines that begin with `#` are comments. A token is revoked by removing
its line.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from services.errors import Refused
from services.names import check_name
from services.transport.access.permissions import CallerKind
from services.transport.access.watched_files import read_small_file

TOKEN_KINDS = (CallerKind.PERSON, CallerKind.DEVELOPER, CallerKind.ADMIN)
"""Kinds of callers that may have tokens."""
_TOKEN = re.compile(r"tm_([0-9a-f]{8})_([0-9a-f]{64})")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class TokenRecord:
    """Record that the aggregator keeps of a token.

    Attributes:
        id: public part of the token, by which it is named.
        kind: kind of caller.
        name: person that it belongs to.
        expires_seconds: Unix time from which on it is not valid.
        sha256: hexadecimal SHA-256 of the token.
    """

    id: str
    kind: CallerKind
    name: str
    expires_seconds: float
    sha256: str

    def to_line(self) -> str:
        """Return the token's line of the file, without a line end."""
        expires = datetime.fromtimestamp(int(self.expires_seconds), timezone.utc).isoformat()
        return f"{self.id} {self.kind.value} {self.name} {expires} {self.sha256}"


Tokens = Mapping[str, TokenRecord]
"""Tokens by id."""


def draw_token() -> str:
    """Return a new token, which is nobody's."""
    return f"tm_{secrets.token_hex(4)}_{secrets.token_hex(32)}"


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token."""
    return _TOKEN.fullmatch(text) is not None


def make_token(kind: CallerKind, name: str, expires_seconds: float) -> tuple[str, TokenRecord]:
    """Return a new token, which only its owner may keep, and its record, which the aggregator keeps."""
    token = draw_token()
    check_name("name", name)
    return token, TokenRecord(token.split("_")[1], kind, name, int(expires_seconds), _hash(token))


def find_token(tokens: Tokens, token: str) -> TokenRecord | None:
    """Return the record of a token; None if it has none. The token may have expired."""
    found = _TOKEN.fullmatch(token)
    record = tokens.get(found[1]) if found else None
    # The comparison takes as long for every wrong secret.
    return record if record is not None and hmac.compare_digest(record.sha256, _hash(token)) else None


def read_tokens(path: Path) -> Tokens:
    """Return the tokens of a file.

    Raises:
        Refused: it can't be read, or a line is wrong.
    """
    tokens: dict[str, TokenRecord] = {}
    for number, line in enumerate(read_small_file("--tokens", path).splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            record = _parse(f"--tokens {path}: line {number}", line)
            if record.id in tokens:
                raise Refused(
                    f"--tokens {path}: line {number}: id {record.id} is there twice; remove one line"
                )
            tokens[record.id] = record
    return tokens


def read_token_file(path: Path) -> str:
    """Return the token in a person's file.

    Raises:
        Refused: it can't be read, or has no token.
    """
    token = read_small_file("--token-file", path).strip()
    if not _TOKEN.fullmatch(token):
        raise Refused(
            f"--token-file {path}: has no token, expected one line tm_ID_SECRET as `tiermesh tokens issue` prints it"
        )
    return token


def _parse(where: str, line: str) -> TokenRecord:
    parts = line.split()
    if len(parts) != 5 or not re.fullmatch(r"[0-9a-f]{8}", parts[0]) or not _HASH.fullmatch(parts[4]):
        raise Refused(f"{where}: expected ID KIND NAME EXPIRES SHA256, as `tiermesh tokens issue` writes it")
    try:
        kind = CallerKind(parts[1])
    except ValueError:
        kind = None
    if kind not in TOKEN_KINDS:
        expected = ", ".join(each.value for each in TOKEN_KINDS)
        raise Refused(f"{where}: kind {parts[1][:40]!r}, expected {expected}")
    try:
        expires = datetime.fromisoformat(parts[3])
    except ValueError:
        raise Refused(
            f"{where}: time {parts[3][:40]!r}, expected one like 2027-01-31T12:00:00+00:00"
        ) from None
    if expires.tzinfo is None:
        expires = expires.replace(tzinfo=timezone.utc)
    return TokenRecord(parts[0], kind, check_name(f"{where}: name", parts[2]), expires.timestamp(), parts[4])


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
