"""Layer normalisation with its gain and bias."""

from __future__ import annotations

from collections.abc import Iterator

from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable


class LayerNorm:
    """Rows with mean 0 and variance 1, times a gain that starts at 1, plus a bias that starts at 0.

    Args:
        name: prefix of the parameters' names.
        width: width of a row.
        bias: whether there is a bias.
        export_prefix: prefix of the parameters' names in checkpoints.
    """

    def __init__(self, name: str, width: int, *, bias: bool, export_prefix: str) -> None:
        self.gain = Parameter(
            f"{name}.weight", (width,), export_name=f"{export_prefix}weight", initial_mean=1.0
        )
        self.bias = Parameter(f"{name}.bias", (width,), export_name=f"{export_prefix}bias") if bias else None

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        yield self.gain
        if self.bias is not None:
            yield self.bias

    def __call__(self, tape: Tape, x: Variable) -> Variable:
        """Map [1, 1, N, width] to the same shape."""
        return ops.layer_norm(tape, x, self.gain, self.bias)
