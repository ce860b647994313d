"""A linear layer."""

from __future__ import annotations

from collections.abc import Iterator

from worker import ops
from worker.autograd import Parameter, Tape, Variable


class Linear:
    """x @ weight + bias.

    Args:
        name: prefix of the parameters' names.
        inputs: width of x.
        outputs: width of the result.
        bias: whether there is one; it starts at 0.
        deviation: of the normal distribution that the weight starts from.
        export_prefix: of the parameters' names in checkpoints.
    """

    def __init__(
        self, name: str, inputs: int, outputs: int, *, bias: bool, deviation: float, export_prefix: str
    ) -> None:
        self.weight = Parameter(
            f"{name}.weight",
            (inputs, outputs),
            export_name=f"{export_prefix}weight",
            initial_deviation=deviation,
        )
        self.bias = (
            Parameter(f"{name}.bias", (outputs,), export_name=f"{export_prefix}bias") if bias else None
        )

    def parameters(self) -> Iterator[Parameter]:
        """In order of first use."""
        yield self.weight
        if self.bias is not None:
            yield self.bias

    def __call__(self, tape: Tape, x: Variable) -> Variable:
        """[1, 1, N, inputs] to [1, 1, N, outputs]."""
        return ops.linear(tape, x, self.weight, self.bias)
