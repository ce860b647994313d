"""Llama's feed-forward half of a block."""

from __future__ import annotations

from collections.abc import Iterator

from services.config.models import LlamaConfig
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.modules.linear import INITIAL_DEVIATION, Linear


class GatedFeedForward:
    """Gated feed-forward layer: down(silu(gate(x)) * up(x)) without biases, then dropout.

    Args:
        name: prefix of the names of parameters and dropout sites.
        config: config of the model.
        export_prefix: prefix of the parameters' names in checkpoints.
    """

    def __init__(self, name: str, config: LlamaConfig, export_prefix: str) -> None:
        width, hidden = config.embedding_dim, config.feed_forward_width
        self._name = name
        self._dropout = config.dropout_prob
        self.gate, self.up = (
            Linear(
                f"{name}.{part}",
                width,
                hidden,
                bias=False,
                deviation=INITIAL_DEVIATION,
                export_prefix=f"{export_prefix}{part}_proj.",
                split="outputs",
                padded=True,
                transposed=True,
            )
            for part in ("gate", "up")
        )
        self.down = Linear(
            f"{name}.down",
            hidden,
            width,
            bias=False,
            deviation=INITIAL_DEVIATION,
            export_prefix=f"{export_prefix}down_proj.",
            split="inputs",
            padded=True,
            transposed=True,
        )

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        for layer in (self.gate, self.up, self.down):
            yield from layer.parameters()

    def __call__(self, tape: Tape, x: Variable) -> Variable:
        """Map [1, 1, N, width] to the same shape."""
        hidden = ops.swiglu(tape, self.gate(tape, x), self.up(tape, x))
        return ops.dropout(tape, self.down(tape, hidden), self._dropout, f"{self._name}.dropout")
