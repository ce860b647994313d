"""How arrays get from one range's pass to the next: within a process, or by what a worker gives in its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from mesh.exact_transfer import ExactArray
from services.errors import Refused
from services.pipeline.schedule import Pass

ReceivedKind: TypeAlias = Literal["activation", "gradient", "tied part"]
"""Kind of an array that a range takes from another: the one before it, the one after it, or the last one."""


class WrongArray(Refused):
    """An array from another range that no range of this job computes: the sender is at fault.

    Attributes:
        kind: kind of the array.
    """

    def __init__(self, kind: ReceivedKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind


@dataclass(frozen=True)
class ArraySizes:
    """Largest arrays that the ranges of a job exchange.

    Attributes:
        dtype: dtype of all of them: float32, or uint16 for the bits of bfloat16.
        activation_elements: number of elements of an activation, or of its gradient.
        tied_elements: number of elements of a part of the token embedding's gradient; 0 if no range here exchanges it.
    """

    dtype: np.dtype[Any]
    activation_elements: int
    tied_elements: int


class PassExchange(Protocol):
    """Carries the results of a lease's passes to the passes that take them.

    The micro-batches of its passes are indices in the step, or of held-out batches. A call may wait, and raises what
    ended the wait. Arrays must not be changed after they were sent.
    """

    def send(self, to: Pass, array: ExactArray) -> None:
        """Send a pass its activation, or its gradient."""

    def receive(self, one: Pass) -> ExactArray:
        """Return what a pass of a neighbouring range has sent to this one."""

    def send_tied(self, micro_batch: int, array: ExactArray) -> None:
        """Send the first range the last one's part of the token embedding's gradient."""

    def receive_tied(self, micro_batch: int) -> ExactArray:
        """Return what the last range has sent by `send_tied`."""


class LocalExchange:
    """A `PassExchange` of ranges in one process, whose passes run in an order in which none waits."""

    def __init__(self) -> None:
        self._arrays: dict[Pass, ExactArray] = {}  # by the pass that takes them
        self._tied: dict[int, ExactArray] = {}  # by micro-batch

    def send(self, to: Pass, array: ExactArray) -> None:
        """Keep an array for its pass."""
        self._arrays[to] = array

    def receive(self, one: Pass) -> ExactArray:
        """Hand over an array."""
        return self._arrays.pop(one)

    def send_tied(self, micro_batch: int, array: ExactArray) -> None:
        """Keep a tied part for the first range."""
        self._tied[micro_batch] = array

    def receive_tied(self, micro_batch: int) -> ExactArray:
        """Hand over a tied part."""
        return self._tied.pop(micro_batch)
