"""Errors that people read: one line that names the place, the value, what was expected and how to fix it."""

from __future__ import annotations

import errno
import traceback
from dataclasses import dataclass
from enum import IntEnum

from services.printable import FAILURE_CHARACTERS, LINE_CHARACTERS, one_line, printable


class ExitCode(IntEnum):
    """Exit codes of all commands and daemons."""

    DONE = 0
    FAILED = 1
    REFUSED = 2
    """Wrong input. Starting a daemon again gives the same, so supervisors leave it down."""
    NOT_YET = 75
    """Something is missing for now, such as a free port or room in the queue. Supervisors start a
    daemon again, and people call again later. The number is `EX_TEMPFAIL` of sysexits.h."""


class TiermeshError(Exception):
    """Base of all errors that a person reads. The text is one printable line, whatever input it quotes.

    Attributes:
        limit: length of the longest text, in characters.
    """

    limit = FAILURE_CHARACTERS

    def __str__(self) -> str:
        return printable(super().__str__(), self.limit)


class Refused(TiermeshError):
    """Bad input, refused on entry: exit code 2 on the command line, INVALID_ARGUMENT on the wire."""

    limit = LINE_CHARACTERS


class RefusedWithPaths(Refused):
    """Refusal that names whole paths, which a person compares with those on the disk."""

    limit = FAILURE_CHARACTERS


class Failed(TiermeshError):
    """Failure of something that was accepted: exit code 1, or the gRPC status that fits."""


class NotYet(Failed):
    """Lack of something that may come later without a change of settings, such as a free port or room in the queue.

    Exit code 75.
    """


def exit_code_of(error: BaseException) -> ExitCode:
    """Return the exit code of a process that an error ends."""
    if isinstance(error, Refused):
        return ExitCode.REFUSED
    return ExitCode.NOT_YET if isinstance(error, NotYet) else ExitCode.FAILED


def describe_internal_error(error: BaseException) -> str:
    """Return one line about an unexpected error, and where its traceback is."""
    return f"{name_internal_error(error)}; --log-level debug shows the traceback"


def name_internal_error(error: BaseException) -> str:
    """Return one line about an unexpected error, with the file and line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
    text = one_line(text_of(error), 150)
    return f"internal error, {type(error).__name__}{place}: {text}"


def text_of(error: BaseException) -> str:
    """Return the text of an exception of any code; one that can't make its text has none."""
    try:
        return str(error)
    except Exception:
        return "(an exception without a text)"


def is_out_of_space(error: BaseException | None) -> bool:
    """Return whether an error, or the one that caused it, is that the disk or the user's quota of it is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__
    return False


@dataclass(frozen=True)
class Refusal:
    """Reason why something was not accepted.

    Functions that decide return `Refusal | None`, where None means accepted.

    Attributes:
        reason: one printable line that names the field, the value, what was expected and how to fix it.
    """

    reason: str

    def __post_init__(self) -> None:
        """Make the reason printable: it may quote a peer."""
        object.__setattr__(self, "reason", printable(self.reason, FAILURE_CHARACTERS))

    def __str__(self) -> str:
        return self.reason
