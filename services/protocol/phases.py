"""Phases of a running job, as its record names them."""

from __future__ import annotations

from enum import Enum


class JobPhase(str, Enum):
    """What a running job does now; the value is the text in `Job.phase`."""

    INITIALISE = "initialise"
    TRAIN = "train"
    EVALUATE = "evaluate"
    CHECKPOINT = "checkpoint"

    def __str__(self) -> str:
        return self.value
