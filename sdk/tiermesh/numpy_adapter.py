"""Parameters as numpy arrays: the caller reads `work.weights`, and passes gradients to `work.done`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from tiermesh.errors import error_of
from tiermesh.parameters import Adapter, Float32Array, find_cpu, make_entries

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class NumpyAdapter(Adapter):
    """An adapter of a mapping from names to float32 arrays, whose values are the initial weights.

    Raises:
        Refused: a parameter is no such array.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        for name, value in parameters.items():
            if not isinstance(value, np.ndarray):
                kind = type(value).__name__
                raise error_of(
                    f"parameters[{name!r}]", kind, "a numpy array or a torch Parameter", "convert it"
                )
            if value.dtype != np.float32:
                raise error_of(f"parameters[{name!r}].dtype", value.dtype, "float32", "convert it")
        threads = {os.environ[name] for name in _THREAD_VARIABLES if name in os.environ}
        facts = {
            "adapter": "numpy",
            "numpy": np.__version__,
            "device": f"cpu {find_cpu()}",
            "threads": " ".join(sorted(threads)) or str(os.cpu_count()),
        }
        super().__init__(make_entries((name, value.shape) for name, value in parameters.items()), facts)
        self._initial = dict(parameters)

    def write_initial(self, out: Float32Array) -> None:
        """Write the caller's values to the flat array."""
        for entry in self.entries:
            out[entry.start : entry.stop] = self._initial[entry.name].ravel()

    def use(self, weights: Float32Array, gradient: Float32Array) -> None:
        """Do nothing: the caller reads the memory itself, and so it does in the calls below."""

    def load(self, first: int, stop: int) -> None:
        """Do nothing."""

    def check(self) -> None:
        """Do nothing: the weights are read-only."""

    def end(self) -> None:
        """Do nothing."""

    def finish(self, gradients: Mapping[str, Any] | None) -> None:
        """Write the gradients to the memory, last parameters first."""
        gradient = self._gradient
        if gradient is None:
            return
        if gradients is None:
            raise error_of(
                "gradients", None, f"a mapping by parameter for {gradient.what}", "pass it to done"
            )
        unknown = sorted(gradients.keys() - {each.name for each in self.entries})
        if unknown:
            raise error_of("gradients", unknown[0], "names of `parameters`", "correct it")
        for index, entry in reversed(list(enumerate(self.entries))):
            value = gradients.get(entry.name)
            if value is not None:
                value = np.asarray(value)
                gradient.place(index, value.dtype, value.shape)[...] = value
                gradient.complete(index)
