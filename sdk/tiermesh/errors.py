"""Exceptions of the package. Each says which field is wrong, its value, what was expected, and how to fix it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tiermesh.records import Job


class TiermeshError(Exception):
    """Base of all exceptions of this package. Its text is one line for people.

    Attributes:
        field: setting, argument or file that is wrong, dotted as in a config; None if it is none of them.
        value: its value, as text; None if it is not known.
        expected: what was expected instead; None if it is not known.
        fix: what to do about it; None if it is not known.
        status: HTTP status of the answer that said so; None if the error arose here.
    """

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        value: str | None = None,
        expected: str | None = None,
        fix: str | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.field = field
        self.value = value
        self.expected = expected
        self.fix = fix
        self.status = status


class Refused(TiermeshError):
    """A request that is wrong: the same request is refused again."""


class NotFound(Refused):
    """A request for a job, checkpoint or file that does not exist."""


class NotAllowed(Refused):
    """A request whose token is missing, unknown, expired, or does not permit it."""


class NotYet(TiermeshError):
    """A request that the cluster can't serve at the moment; the same request may succeed later."""


class Unreachable(NotYet):
    """No answer: the server can't be reached or takes too long, or no aggregator answers it.

    Attributes:
        was_sent: whether the request may have reached the server.
    """

    was_sent = True


class Failed(TiermeshError):
    """A request that was right, and went wrong all the same."""


class JobFailed(Failed):
    """A job that was waited for, and failed or was cancelled.

    Attributes:
        job: the job as it ended.
    """

    def __init__(self, message: str, job: Job) -> None:
        super().__init__(message)
        self.job = job

    def __reduce__(self) -> tuple[type[JobFailed], tuple[str, Job]]:
        return type(self), (str(self), self.job)


def error_of(field: str, value: object, expected: str, fix: str) -> Refused:
    """Return the error about a wrong argument, whose text is made of its parts."""
    shown = str(value)
    shown = shown if len(shown) <= 200 else shown[:200] + "..."
    return Refused(
        f"{field}: {shown!r} given, expected {expected}; {fix}",
        field=field,
        value=shown,
        expected=expected,
        fix=fix,
    )
