"""Errors that a person reads: one line that says what, where, the value, what was expected, and how to mend it."""

from __future__ import annotations

import traceback
from dataclasses import dataclass


class TiermeshError(Exception):
    """Base of all errors raised for a reader; its text is one complete line, whatever was quoted in it."""

    def __str__(self) -> str:
        text = super().__str__()
        if text.isprintable():
            return text
        return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


class Refused(TiermeshError):
    """Bad input, refused at the door: exit code 2 on the command line, INVALID_ARGUMENT on the wire."""


class Failed(TiermeshError):
    """Something that was accepted could not be finished: exit code 1, or the fitting gRPC status."""


def describe_internal_error(error: BaseException) -> str:
    """An unexpected error in one line, with the place it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    text = " | ".join(str(error).split("\n"))
    return f"internal error, {type(error).__name__}{place}: {text}; --log-level debug shows the traceback"


@dataclass(frozen=True)
class Refusal:
    """Why something was not accepted. Functions that decide return `Refusal | None`; None means accepted.

    Attributes:
        reason: one line that names the field, the value, what was expected and how to fix it.
    """

    reason: str

    def __str__(self) -> str:
        return self.reason
