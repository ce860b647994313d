"""Credits of the links between workers: how many arrays one may send ahead of those that the other has taken."""

from __future__ import annotations

from dataclasses import dataclass

from services.pipeline.schedule import LEAST_CREDITS, ScheduleKind

_HIDING_CREDITS = LEAST_CREDITS + 1
"""One array that is being sent while the receiver's pass of the one before runs."""


@dataclass(frozen=True)
class Credits:
    """Number of arrays of each kind that may be under way in one direction of a link.

    They bound what each end keeps, and suffice for every schedule, whatever the delays. Each kind has its own: shared
    ones would let two stages wait for each other.

    Attributes:
        activations: number of activations.
        gradients: number of gradients of activations.
        tied: number of the last range's parts of the token embedding's gradient, which may be large.
    """

    activations: int
    gradients: int
    tied: int

    @classmethod
    def choose(cls, kind: ScheduleKind, stages: int, *, shares_workers: bool) -> Credits:
        """Return the credits of a pipeline's links.

        Args:
            kind: name of the schedule.
            stages: number of stages.
            shares_workers: whether a worker has several stages, whose passes it runs one after another. It may then
                run as many passes of one stage as there are stages before it takes what it is sent.
        """
        if shares_workers:
            return cls(max(stages, _HIDING_CREDITS), max(stages, _HIDING_CREDITS), stages)
        # Interleaving, the last range runs a group of backward passes before the first range runs the first of them.
        tied = stages if kind == "interleaved_1f1b" else LEAST_CREDITS
        return cls(_HIDING_CREDITS, _HIDING_CREDITS, tied)
