"""A linear layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from training import ops
from training.autograd import Parameter, Split, Tape, Variable

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights."""


class Linear:
    """x @ weight + bias.

    Args:
        name: prefix of the parameters' names.
        inputs: width of x.
        outputs: width of the result.
        bias: whether there is one; it starts at 0.
        deviation: of the normal distribution that the weight starts from.
        export_prefix: of the parameters' names in checkpoints.
        split: what tensor-parallel devices share out: its outputs (each then has its columns of the result) or its
            inputs (which takes such columns); None if each has the whole layer.
        parts: of the outputs, if several things lie side by side there (see `Split`).
        transposed: whether the weight lies as [outputs, inputs], as Hugging Face has it for all but GPT-2.
    """

    def __init__(
        self,
        name: str,
        inputs: int,
        outputs: int,
        *,
        bias: bool,
        deviation: float,
        export_prefix: str,
        split: Literal["outputs", "inputs"] | None = None,
        parts: tuple[int, ...] = (),
        transposed: bool = False,
    ) -> None:
        self._transposed = transposed
        dim = int((split == "outputs") != transposed)
        self.weight = Parameter(
            f"{name}.weight",
            (outputs, inputs) if transposed else (inputs, outputs),
            export_name=f"{export_prefix}weight",
            initial_deviation=deviation,
            split=None if split is None else Split(dim, parts),
        )
        self.bias = None
        if bias:
            self.bias = Parameter(
                f"{name}.bias",
                (outputs,),
                export_name=f"{export_prefix}bias",
                split=Split(0, parts) if split == "outputs" else None,
            )

    def parameters(self) -> Iterator[Parameter]:
        """In order of first use."""
        yield self.weight
        if self.bias is not None:
            yield self.bias

    def __call__(self, tape: Tape, x: Variable) -> Variable:
        """[1, 1, N, inputs] to [1, 1, N, outputs]."""
        return ops.linear(tape, x, self.weight, self.bias, transpose_weight=self._transposed)


def residual_deviation(blocks: int) -> float:
    """Of weights whose product adds to the residual stream, which has two such summands a block."""
    return float(INITIAL_DEVIATION / (2 * blocks) ** 0.5)
