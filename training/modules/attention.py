"""GPT-2's causal self-attention with its projections."""

from __future__ import annotations

from collections.abc import Iterator

from services.config.models import GPT2Config
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.modules.linear import INITIAL_DEVIATION, Linear, compute_residual_deviation


class CausalSelfAttention:
    """GPT-2's attention: one projection to queries, keys and values, and one back.

    Args:
        name: prefix of the names of parameters and dropout sites.
        config: config of the model.
        export_prefix: prefix of the parameters' names in checkpoints.
    """

    def __init__(self, name: str, config: GPT2Config, export_prefix: str) -> None:
        width = config.embedding_dim
        self._name = name
        self._head_width = width // config.num_heads
        self._dropout = config.dropout_prob
        self.qkv = Linear(
            f"{name}.qkv",
            width,
            3 * width,
            bias=config.bias,
            deviation=INITIAL_DEVIATION,
            export_prefix=f"{export_prefix}c_attn.",
            split="outputs",
            parts=(width, width, width),
        )
        self.projection = Linear(
            f"{name}.projection",
            width,
            width,
            bias=config.bias,
            deviation=compute_residual_deviation(config.num_blocks),
            export_prefix=f"{export_prefix}c_proj.",
            split="inputs",
        )

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        yield from self.qkv.parameters()
        yield from self.projection.parameters()

    def __call__(self, tape: Tape, x: Variable, mask: Variable, past: ops.Past | None = None) -> Variable:
        """Map [1, 1, N, width] to the same shape; see `ops.causal_attention` for mask and past."""
        qkv = self.qkv(tape, x)
        attended = ops.causal_attention(
            tape, qkv, mask, self._head_width, self._dropout, f"{self._name}.weights_dropout", past
        )
        return ops.dropout(tape, self.projection(tape, attended), self._dropout, f"{self._name}.dropout")
