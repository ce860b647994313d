"""Phases of a running job, as its record names them."""

from __future__ import annotations

from enum import Enum


class JobPhase(str, Enum):
    """Phase of a running job. The value is the text of `Job.phase`."""

    INITIALISE = "initialise"
    TRAIN = "train"
    EVALUATE = "evaluate"
    CHECKPOINT = "checkpoint"

    def __str__(self) -> str:
        return self.value
