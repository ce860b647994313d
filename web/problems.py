"""Errors as answers: RFC 9457 problems, with the parts of the sentence that says what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import grpc

from services.errors import Failed, NotYet, Refused, TiermeshError, name_internal_error
from services.files.errors import FileMissing, NoRoom, UploadUnderWay, WrongFile
from services.jobs.connection import CallRefused, Unreachable
from services.printable import FAILURE_CHARACTERS, printable

PROBLEM_TYPE = "application/problem+json"
RETRY_SECONDS = 2
"""Time after which a caller may ask again for an aggregator that is away."""
NO_ROOM_SECONDS = 10
"""Time after which a caller may ask again for room in a queue or on a disk."""

_SENTENCE = re.compile(
    r"(?:(?P<field>[^\s:;]+(?: [^\s:;]+)?): )?(?:(?P<value>[^;]{1,200}?)(?: given)?, )?"
    r"(?:expected (?P<expected>[^;]+))?(?:; (?P<fix>.+))?",
    re.DOTALL,
)
_CODES: Mapping[grpc.StatusCode, tuple[int, str]] = {
    grpc.StatusCode.UNAUTHENTICATED: (401, "unauthenticated"),
    grpc.StatusCode.PERMISSION_DENIED: (403, "forbidden"),
    grpc.StatusCode.NOT_FOUND: (404, "not-found"),
    grpc.StatusCode.ALREADY_EXISTS: (409, "conflict"),
    grpc.StatusCode.FAILED_PRECONDITION: (409, "conflict"),
}
"""Status and type of what the aggregator refuses; other codes are 422."""


class Problem(Exception):
    """An answer that says what is wrong.

    Args:
        status: HTTP status.
        kind: last part of the type, `/problems/KIND`.
        detail: sentence for people.
        headers: further headers of the answer.
        members: further members of the problem.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        **members: object,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.kind = kind
        self.headers = {"content-type": PROBLEM_TYPE, **(headers or {})}
        self._detail = printable(detail, FAILURE_CHARACTERS)
        self._members = members

    def body(self) -> bytes:
        """Return the problem as JSON."""
        title = self.kind.replace("-", " ").capitalize()
        fields = {
            "type": f"/problems/{self.kind}",
            "title": title,
            "status": self.status,
            "detail": self._detail,
            **parts_of(self._detail),
            **self._members,
        }
        return json.dumps(fields).encode()


def parts_of(sentence: str) -> dict[str, str | None]:
    """Return field, value, expected and fix of a refusal; those that it does not have are None.

    A refusal is `field: value given, expected what is right; how to fix it` (CONTRIBUTING.md).
    """
    nothing: dict[str, str | None] = dict.fromkeys(("field", "value", "expected", "fix"))
    found = _SENTENCE.fullmatch(sentence)
    if found is None:
        field, _, rest = sentence.partition(": ")
        fix = sentence.rpartition("; ")[2] if "; " in sentence else None
        return {**nothing, "field": field if rest and " " not in field else None, "fix": fix}
    return {**nothing, **found.groupdict()}


def problem_of(error: Exception) -> Problem:
    """Return the answer to a request that an error has ended."""
    text = str(error)
    match error:
        case Problem():
            return error
        case CallRefused():
            status, kind = _CODES.get(error.code, (422, "refused"))
            return Problem(
                status, kind, text, headers={"www-authenticate": "Bearer"} if status == 401 else {}
            )
        case Unreachable():
            return away(text)
        case WrongFile():
            return Problem(422, "wrong-hash", text)
        case FileMissing():
            return Problem(404, "not-found", text)
        case UploadUnderWay():
            return Problem(409, "conflict", text)
        case NotYet() | NoRoom():
            return Problem(429, "no-room", text, headers={"retry-after": str(NO_ROOM_SECONDS)})
        case Refused():
            return Problem(422, "refused", text)
        case Failed() | TiermeshError():
            return Problem(502, "failed", text)
    return Problem(500, "internal", name_internal_error(error))


def away(text: str, **members: object) -> Problem:
    """Return the answer while no aggregator answers for the cluster."""
    return Problem(503, "away", text, headers={"retry-after": str(RETRY_SECONDS)}, **members)


def refused(
    field: str, value: object, expected: str, fix: str, status: int = 422, kind: str = "refused"
) -> Problem:
    """Return the answer to a request with a wrong value."""
    shown = printable(str(value), 200)
    text = f"{field}: {shown} given, expected {expected}; {fix}"
    return Problem(status, kind, text, field=field, value=shown, expected=expected, fix=fix)
