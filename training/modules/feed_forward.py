"""GPT-2's feed-forward half of a block."""

from __future__ import annotations

from collections.abc import Iterator

from services.config.models import GPT2Config
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.modules.linear import INITIAL_DEVIATION, Linear, compute_residual_deviation


class FeedForward:
    """Linear layer to four times the width, gelu, linear layer back, dropout.

    Args:
        name: prefix of the names of parameters and dropout sites.
        config: config of the model.
        export_prefix: prefix of the parameters' names in checkpoints.
    """

    def __init__(self, name: str, config: GPT2Config, export_prefix: str) -> None:
        width = config.embedding_dim
        self._name = name
        self._form = ops.Gelu.TANH if config.activation == "gelu_tanh" else ops.Gelu.EXACT
        self._dropout = config.dropout_prob
        self.expand = Linear(
            f"{name}.expand",
            width,
            4 * width,
            bias=config.bias,
            deviation=INITIAL_DEVIATION,
            export_prefix=f"{export_prefix}c_fc.",
            split="outputs",
        )
        self.projection = Linear(
            f"{name}.projection",
            4 * width,
            width,
            bias=config.bias,
            deviation=compute_residual_deviation(config.num_blocks),
            export_prefix=f"{export_prefix}c_proj.",
            split="inputs",
        )

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        yield from self.expand.parameters()
        yield from self.projection.parameters()

    def __call__(self, tape: Tape, x: Variable) -> Variable:
        """Map [1, 1, N, width] to the same shape."""
        hidden = ops.gelu(tape, self.expand(tape, x), self._form)
        return ops.dropout(tape, self.projection(tape, hidden), self._dropout, f"{self._name}.dropout")
