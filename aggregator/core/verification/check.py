"""The check of one micro-batch: the answers so far, and who is computing another one."""

from __future__ import annotations

from dataclasses import dataclass, field

from aggregator.core.verification.answers import Answer
from aggregator.core.verification.opinions import CheckOutcome


@dataclass
class Check:
    """The check of one micro-batch.

    Attributes:
        micro_batch: its index in the step.
        answers: the answers so far; the first is from the row that computed it first for the step's sum.
        awaited: whether a row has yet to say what it has computed for the step's sum.
        lease: the lease under which it is being computed again; 0 if it isn't.
        session: the session of the row with that lease.
        since_seconds: when that lease was granted or, before that, when the first answer came. On the monotonic clock.
        declined: who was asked and did not answer, by their workers' names.
        outcome: how the check ended; None while it is open.
    """

    micro_batch: int
    answers: list[Answer] = field(default_factory=list)
    awaited: bool = True
    lease: int = 0
    session: int = 0
    since_seconds: float = 0.0
    declined: set[tuple[str, ...]] = field(default_factory=set)
    outcome: CheckOutcome | None = None

    def add(self, answer: Answer) -> bool:
        """Record an answer, unless its lease has one already: then it is a repeated message.

        Returns:
            False if it can't be compared, since it has not the checksums that the first answer has.
        """
        if self.answers and not answer.is_like(self.answers[0]):
            return False
        if all(each.lease != answer.lease for each in self.answers):
            self.answers.append(answer)
        return True
