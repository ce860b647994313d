"""A linear layer, and the deviations that GPT-2's weights start with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Split, Variable

INITIAL_DEVIATION = 0.02
"""Standard deviation of initial weights."""


class Linear:
    """Linear layer: x @ weight + bias.

    Args:
        name: prefix of the parameters' names.
        inputs: width of x.
        outputs: width of the result.
        bias: whether there is a bias; it starts at 0.
        deviation: standard deviation of the weight's initial values.
        export_prefix: prefix of the parameters' names in checkpoints.
        split: what tensor-parallel devices share out: the outputs (each device then has its columns of the result) or
            the inputs (the layer then takes such columns); None if each device has the whole layer.
        parts: sizes of the blocks of outputs that are cut separately, see `Split`.
        padded: whether the split width is padded to whole tiles for each device. The layers on both sides of such a
            width must agree, and what lies between them works element by element.
        transposed: whether the weight is [outputs, inputs], as Hugging Face has it for all models except GPT-2.
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
        padded: bool = False,
        transposed: bool = False,
    ) -> None:
        self._transposed = transposed
        dim = int((split == "outputs") != transposed)
        self.weight = Parameter(
            f"{name}.weight",
            (outputs, inputs) if transposed else (inputs, outputs),
            export_name=f"{export_prefix}weight",
            initial_deviation=deviation,
            split=None if split is None else Split(dim, parts, padded),
        )
        self.bias = None
        if bias:
            self.bias = Parameter(
                f"{name}.bias",
                (outputs,),
                export_name=f"{export_prefix}bias",
                split=Split(0, parts, padded) if split == "outputs" else None,
            )

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        yield self.weight
        if self.bias is not None:
            yield self.bias

    def __call__(self, tape: Tape, x: Variable) -> Variable:
        """Map [1, 1, N, inputs] to [1, 1, N, outputs]."""
        return ops.linear(tape, x, self.weight, self.bias, transpose_weight=self._transposed)


def compute_residual_deviation(blocks: int) -> float:
    """Return the initial deviation of weights whose product adds to the residual stream.

    Each block adds two such summands; this keeps the variance of their sum independent of the number of blocks.
    """
    return float(INITIAL_DEVIATION / (2 * blocks) ** 0.5)
