"""Lines that a job's code prints on its workers: in the job's log, and no more of them than the log can take."""

from __future__ import annotations

from collections.abc import Mapping

from aggregator.core.job_report import JobReport
from aggregator.core.membership.members import Member
from protos.cluster_pb2 import Printed
from services.printable import counted
from services.protocol.bounds import PRINTED_BURST_LINES, PRINTED_LINES_A_SECOND
from services.token_bucket import TokenBucket

WORKERS = 4
"""A job prints as many lines a second, and at once, as so many of its workers may."""
LINES_IN_ALL = 100_000
"""Maximum number of printed lines in a job's log of one run, so that its own lines stay."""


class PrintedLines:
    """The printed lines of one job. Those above a limit are left out and counted.

    Args:
        members: the workers that serve the job, by session.
        report: the job's log.
    """

    def __init__(self, members: Mapping[int, Member], report: JobReport) -> None:
        self._members = members
        self._report = report
        self._lines = TokenBucket(WORKERS * PRINTED_LINES_A_SECOND, WORKERS * PRINTED_BURST_LINES)
        self._room = LINES_IN_ALL

    def take(self, member: Member, printed: Printed, now: float) -> None:
        """Write a worker's lines to the job's log."""
        for line in printed.lines:
            if self._room and member.printed.seconds_until(1, now) <= 0 and self._take_place(now):
                member.printed.take(1, now)
                self._note(member, line)
            else:
                member.left_out_lines += 1

    def tick(self, now: float) -> None:
        """Write how many lines were left out since the last time."""
        for member in self._members.values():
            if member.left_out_lines and self._take_place(now):
                count, member.left_out_lines = member.left_out_lines, 0
                self._note(member, f"({counted(count, 'line')} left out)")

    def _take_place(self, now: float) -> bool:
        if not self._room or self._lines.seconds_until(1, now) > 0:
            return False
        self._lines.take(1, now)
        self._room -= 1
        return True

    def _note(self, member: Member, line: str) -> None:
        self._report.note("printed", f"worker {member.name}: {line}")
        if not self._room:
            text = f"{LINES_IN_ALL} lines were printed: later ones are in the logs of the workers only"
            self._report.note("printed", text)
