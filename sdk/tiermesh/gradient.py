"""The gradient of one micro-batch on its way to the daemon."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tiermesh.errors import error_of
from tiermesh.parameters import Entry, Float32Array

READY_ELEMENTS = 1 << 19
"""Least number of elements that the daemon is told of at once: those of a chunk."""


class Gradient:
    """A gradient that the caller's code computes parameter by parameter, in any order, in memory that the daemon reads.

    The daemon is told of what is complete from the end of the flat array on, so that it sends the last layers while
    the backward pass computes the first ones.

    Args:
        what: names the micro-batch in errors.
        memory: the flat array, shared with the daemon.
        entries: the parameters.
        ask: asks the daemon for the begin of the gradient; returns False if the lease was revoked.
        tell: tells the daemon from which element on the gradient is complete.

    Attributes:
        is_abandoned: whether the lease was revoked, and the gradient is not wanted.
        begun_seconds: monotonic time of the first parameter's gradient; None before.
        non_finite: first parameter whose gradient has a NaN or an infinity; empty for none.
    """

    def __init__(
        self,
        what: str,
        memory: Float32Array,
        entries: Sequence[Entry],
        ask: Callable[[], bool],
        tell: Callable[[int], None],
    ) -> None:
        self.what = what
        self.memory = memory
        self._entries = entries
        self._ask = ask
        self._tell = tell
        self._missing = [True] * len(entries)
        self._next = len(entries)  # all entries from this one on are complete
        self._told = memory.size
        self.is_abandoned = False
        self.begun_seconds: float | None = None
        self.non_finite = ""

    def place(self, index: int, dtype: Any, shape: Sequence[int]) -> Float32Array:
        """Return where a parameter's gradient belongs, in its shape.

        Raises:
            Refused: the gradient is of another dtype or shape, or was there before.
        """
        entry = self._entries[index]
        field = f"gradients[{entry.name!r}]"
        if "float32" not in str(dtype):
            raise error_of(f"{field}.dtype", dtype, "float32", "convert it")
        if tuple(shape) != entry.shape:
            raise error_of(f"{field}.shape", tuple(shape), str(entry.shape), "give that of the parameter")
        if not self._missing[index]:
            raise error_of(
                field, "a second time", f"once in {self.what}", "call backward once for a micro-batch"
            )
        return self.memory[entry.start : entry.stop].reshape(entry.shape)

    def complete(self, index: int) -> None:
        """Take note that a parameter's gradient is in its place."""
        if self.is_abandoned:
            return
        if self.begun_seconds is None:
            self.begun_seconds = time.monotonic()
            self.is_abandoned = not self._ask()
            if self.is_abandoned:
                return
        entry = self._entries[index]
        self._missing[index] = False
        if not self.non_finite and not np.isfinite(self.memory[entry.start : entry.stop]).all():
            self.non_finite = entry.name
        while self._next and not self._missing[self._next - 1]:
            self._next -= 1
        start = self._entries[self._next].start if self._next < len(self._entries) else self.memory.size
        if start < self._told and (not start or self._told - start >= READY_ELEMENTS):
            self._told = start
            self._tell(start)

    def missing(self) -> list[int]:
        """Return the indices of the parameters that have no gradient, the last one first."""
        return [index for index in reversed(range(len(self._entries))) if self._missing[index]]

    def fill(self, unused: str) -> None:
        """Complete the gradient with zeros, if `unused` allows it.

        Raises:
            Refused: it does not, and gradients are missing.
        """
        missing = [] if self.is_abandoned else self.missing()
        if missing and unused != "zero":
            names = ", ".join(self._entries[index].name for index in missing[::-1][:5])
            more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
            raise error_of(
                "gradients",
                f"none for {names}{more}",
                f"one for each parameter in {self.what}",
                'let the loss depend on it, leave it out of `parameters`, or pass unused="zero" to join',
            )
        for index in missing:
            self.memory[self._entries[index].start : self._entries[index].stop] = 0.0
            self.complete(index)
