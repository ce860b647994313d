"""The checks of one step: which are open, and which a row computes now."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice

from aggregator.core.verification.check import Check
from aggregator.core.verification.opinions import CheckOutcome
from services.tensors.reduction_tree import Node

LOOKED_AT = 256
"""Number of open checks that are looked at after one input. With more, they take turns."""


class StepChecks:
    """The checks of one step, by micro-batch.

    Args:
        checked: the micro-batches that a second row computes too.
    """

    def __init__(self, checked: Iterable[int]) -> None:
        self._indices = sorted(checked)
        self._checks = {each: Check(each) for each in self._indices}
        self._open = dict(self._checks)
        self._leased: dict[int, Check] = {}

    def __bool__(self) -> bool:
        return bool(self._checks)

    @property
    def closed(self) -> bool:
        """Whether every check is closed."""
        return not self._open

    def within(self, node: Node) -> list[int]:
        """Return the micro-batches of a node that are checked."""
        first, last = bisect_left(self._indices, node.first), bisect_left(self._indices, node.stop)
        return self._indices[first:last]

    def expect(self, node: Node) -> bool:
        """Open the checks of a node that a row is about to compute for the sum; return whether there are any.

        What was computed and checked before may be lost: then the new result has to agree with an answer of that time.
        """
        indices = self.within(node)
        for index in indices:
            check = self._open[index] = self._checks[index]
            check.awaited = True
            if check.outcome is CheckOutcome.PASSED:
                del check.answers[1:]
            check.outcome = None
        return bool(indices)

    def find_open(self, micro_batch: int) -> Check | None:
        """Return the open check of a micro-batch; None if it is closed or there is none."""
        return self._open.get(micro_batch)

    def take_turns(self) -> list[Check]:
        """Return the open checks to look at now; with too many, other ones are first the next time."""
        turn = list(islice(self._open.values(), LOOKED_AT))
        if len(turn) < len(self._open):
            for check in turn:
                self._open[check.micro_batch] = self._open.pop(check.micro_batch)
        return turn

    def close(self, check: Check, outcome: CheckOutcome) -> None:
        """Record how a check ended."""
        check.outcome = outcome
        self._open.pop(check.micro_batch, None)

    # ---- leases ----

    def leased(self) -> list[Check]:
        """Return the checks that rows compute now."""
        return list(self._leased.values())

    def find_leased(self, session: int, lease: int) -> Check | None:
        """Return the check that a row computes under this lease; None if the lease is no check or void."""
        check = self._leased.get(lease)
        return check if check is not None and check.session == session else None

    def lease(self, check: Check, lease: int, session: int, now: float) -> None:
        """Record that a row computes a check."""
        check.lease, check.session, check.since_seconds = lease, session, now
        self._leased[lease] = check

    def release(self, check: Check) -> None:
        """Record that no row computes a check any longer."""
        self._leased.pop(check.lease, None)
        check.lease = 0
