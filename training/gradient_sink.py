"""Gradients of a backward pass, read from the mesh into their places in a flat array."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from services.tensors.kernels.arithmetic import all_finite
from services.tensors.layout import Entry
from training.autograd.variable import Parameter, Tensor

Float32Array = npt.NDArray[np.float32]


class GradientSink:
    """Flat array that takes gradients in any order and reports the offset from which on they are complete.

    Args:
        entries: the layout entries whose gradients it takes, contiguous.
        places: index in `entries` of each parameter.
        read: returns a gradient from the mesh, flat and in the order of its logical shape.
        out: the array, with one element for each of the entries'.
        ready: callback, called with an index of `out` from which on it is complete; the last call is with 0.

    Attributes:
        non_finite: name of the first parameter whose gradient has a NaN or an infinity; empty if none has.
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        places: Mapping[Parameter, int],
        read: Callable[[Parameter, Tensor], Float32Array],
        out: Float32Array,
        ready: Callable[[int], None],
    ) -> None:
        self._entries = entries
        self._places = places
        self._read = read
        self._out = out
        self._ready = ready
        self._start = entries[0].offset
        self._missing_below = len(entries)
        self._early: set[int] = set()
        self.non_finite = ""

    def take(self, parameter: Parameter, gradient: Tensor) -> None:
        """Read a complete gradient from the mesh into its place."""
        index = self._places[parameter]
        entry = self._entries[index]
        place = self._out[entry.offset - self._start : entry.stop - self._start]
        place[:] = self._read(parameter, gradient)
        if not self.non_finite and not all_finite(place):  # before `ready` adds other micro-batches to it
            self.non_finite = entry.name
        self._early.add(index)
        offset = None
        while self._missing_below - 1 in self._early:
            self._missing_below -= 1
            self._early.remove(self._missing_below)
            offset = self._entries[self._missing_below].offset - self._start
        if offset is not None:
            self._ready(offset)

    def finish(self) -> None:
        """Check that every gradient has arrived.

        Raises:
            ValueError: the model lists a parameter that its loss does not use.
        """
        if self._missing_below:
            name = self._entries[self._missing_below - 1].name
            raise ValueError(f"no gradient of {name}: parameters() lists it, but the loss does not use it")
