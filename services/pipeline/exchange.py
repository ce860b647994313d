"""What the passes of a lease give: gradients, and arrays that go to the next range's pass.

It is what a training step and a worker's daemon tell each other, so neither imports the other for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from services.errors import Refused
from services.pipeline.schedule import Pass

Float32Array: TypeAlias = npt.NDArray[np.float32]

ExactArray: TypeAlias = npt.NDArray[np.float32] | npt.NDArray[np.uint16]
"""Values of a tensor, exactly: float32, or the bits of bfloat16 as uint16."""

EXACT_TYPES: dict[int, Any] = {4: np.float32, 2: np.uint16}
"""Their types, by the bytes of an element."""

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
class FinishedPass:
    """What a range's part of a micro-batch gives, besides the gradients of its parameters.

    Attributes:
        gradient: gradient of the activation that entered, for the range before; None in the first range.
        tied: the last range's part of the token embedding's gradient, for the first range; None without one.
        loss: mean loss of the micro-batch; None except in the last range.
        count: number of rows (tokens or samples) that count in this loss; 0 except in the last range.
        non_finite: name of the range's first parameter, in the order of the backward pass, whose gradient has a NaN or
            an infinity; empty if none has.
    """

    gradient: ExactArray | None
    tied: ExactArray | None
    loss: float | None
    count: int
    non_finite: str


Compute: TypeAlias = Callable[[Float32Array, Callable[[int], None]], FinishedPass]
"""Function that writes a range's gradient of a micro-batch to an array, from its end to its start.

It calls back with the index from which on the array is complete; the last call is with 0."""

AddLeaf: TypeAlias = Callable[[int, int, Compute], FinishedPass]
"""Function that takes the index of a range, that of a micro-batch, and what computes the gradient of both.

It gives `Compute` an array and returns what that returns. A range's micro-batches come in index order."""


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
