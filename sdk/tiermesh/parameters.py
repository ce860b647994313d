"""The parameters of a caller's model, as one flat float32 array, and what adapts them to the caller's library."""

from __future__ import annotations

import json
import platform
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tiermesh.errors import error_of

if TYPE_CHECKING:
    from tiermesh.gradient import Gradient

Float32Array = npt.NDArray[np.float32]

MAX_PARAMETERS = 1 << 15
"""Maximum number of parameters, as the cluster has it."""
MAX_DIMENSIONS = 8
"""Maximum number of a parameter's dimensions, as the cluster has it."""
MAX_NAME_CHARACTERS = 500
"""Maximum length of a parameter's name, as the cluster has it."""

_CPU_FEATURES = ("SSE42", "FMA3", "AVX2", "AVX512F", "AVX512_SKX", "ASIMD", "VSX")
"""Features by which libraries choose between kernels whose last bits differ."""


@dataclass(frozen=True)
class Entry:
    """A parameter.

    Attributes:
        name: its name.
        shape: its shape.
        start: index of its first element in the flat array.
    """

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """Index after its last element in the flat array."""
        return self.start + prod(self.shape)


class Adapter(ABC):
    """What is done with parameters in the caller's library.

    Args:
        entries: the parameters.
        facts: what the bits of gradients depend on, by name.

    Attributes:
        entries: the parameters.
        facts: what the bits of gradients depend on, by name; `device` says where the model computes.
    """

    def __init__(self, entries: list[Entry], facts: dict[str, str]) -> None:
        self.entries = entries
        self.facts = facts
        self._gradient: Gradient | None = None

    @abstractmethod
    def write_initial(self, out: Float32Array) -> None:
        """Write the values that the caller's parameters had at first to the flat array."""

    @abstractmethod
    def use(self, weights: Float32Array, gradient: Float32Array) -> None:
        """Take the flat arrays that are shared with the daemon."""

    @abstractmethod
    def load(self, first: int, stop: int) -> None:
        """Give the model the weights of these entries, which have arrived."""

    def begin(self, gradient: Gradient | None) -> None:
        """Begin a micro-batch; `gradient` takes its gradient, and is None for a held-out batch."""
        self._gradient = gradient

    @abstractmethod
    def finish(self, gradients: Mapping[str, Any] | None) -> None:
        """Complete the gradient that was begun, at the caller's `done`, as far as there is one."""

    @abstractmethod
    def check(self) -> None:
        """Check that the caller's code has not changed the model (Refused)."""

    @abstractmethod
    def end(self) -> None:
        """Give the model weights of its own, and take nothing from it any longer."""


def make_entries(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> list[Entry]:
    """Return the entries of parameters, given by name and shape.

    Raises:
        Refused: a job can't have such a parameter.
    """
    entries: list[Entry] = []
    for name, shape in shapes:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= MAX_NAME_CHARACTERS:
            expected = f"a printable text of at most {MAX_NAME_CHARACTERS} characters"
            raise error_of("parameters", name, f"{expected} as a parameter's name", "rename it")
        if len(shape) > MAX_DIMENSIONS or 0 in shape:
            expected = f"at most {MAX_DIMENSIONS} dimensions, none of size 0"
            raise error_of(f"parameters[{name!r}].shape", shape, expected, "reshape it or leave it out")
        entries.append(Entry(name, tuple(shape), entries[-1].stop if entries else 0))
    if not 0 < len(entries) <= MAX_PARAMETERS:
        raise error_of("parameters", f"{len(entries)} of them", f"1 to {MAX_PARAMETERS}", "pass the model's")
    return entries


def dump_layout(entries: Iterable[Entry]) -> str:
    """Return the layout as canonical JSON, in which all workers' layouts are compared."""
    layout = [
        {
            "name": each.name,
            "shape": each.shape,
            "offset": each.start,
            "decays": len(each.shape) >= 2,
            "export_name": each.name,
            "export_transpose": False,
        }
        for each in entries
    ]
    return json.dumps(layout, sort_keys=True, separators=(",", ":"))


def find_cpu() -> str:
    """Return the processor's kind, with the features by which numpy chooses its kernels."""
    # numpy 2 renamed the package that has the table.
    package = "numpy.core" if np.__version__.startswith("1.") else "numpy._core"
    found: Mapping[str, bool] = import_module(f"{package}._multiarray_umath").__cpu_features__
    return " ".join((platform.machine(), *(each for each in _CPU_FEATURES if found.get(each))))
