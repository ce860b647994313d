"""Root-mean-square normalisation with its gain."""

from __future__ import annotations

from collections.abc import Iterator

from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable


class RMSNorm:
    """Rows with mean square 1, times a gain that starts at 1.

    Args:
        name: prefix of the parameter's name.
        width: width of a row.
        export_prefix: prefix of the parameter's name in checkpoints.
    """

    def __init__(self, name: str, width: int, *, export_prefix: str) -> None:
        self.gain = Parameter(
            f"{name}.weight", (width,), export_name=f"{export_prefix}weight", initial_mean=1.0
        )

    def parameters(self) -> Iterator[Parameter]:
        """Yield the gain."""
        yield self.gain

    def __call__(self, tape: Tape, x: Variable) -> Variable:
        """Map [1, 1, N, width] to the same shape."""
        return ops.rms_norm(tape, x, self.gain)
