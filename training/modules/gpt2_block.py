"""One transformer block of GPT-2."""

from __future__ import annotations

from collections.abc import Iterator

from services.config.models import GPT2Config
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.modules.attention import CausalSelfAttention
from training.modules.feed_forward import FeedForward
from training.modules.layer_norm import LayerNorm


class GPT2Block:
    """Transformer block of GPT-2: x + attention(norm(x)), then x + feed_forward(norm(x)).

    Args:
        name: prefix of the names of parameters and dropout sites.
        config: config of the model.
        export_prefix: prefix of the parameters' names in checkpoints.
    """

    def __init__(self, name: str, config: GPT2Config, export_prefix: str) -> None:
        width, bias = config.embedding_dim, config.bias
        self.attention_norm = LayerNorm(
            f"{name}.attention_norm", width, bias=bias, export_prefix=f"{export_prefix}ln_1."
        )
        self.attention = CausalSelfAttention(f"{name}.attention", config, f"{export_prefix}attn.")
        self.feed_forward_norm = LayerNorm(
            f"{name}.feed_forward_norm", width, bias=bias, export_prefix=f"{export_prefix}ln_2."
        )
        self.feed_forward = FeedForward(f"{name}.feed_forward", config, f"{export_prefix}mlp.")

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        yield from self.attention_norm.parameters()
        yield from self.attention.parameters()
        yield from self.feed_forward_norm.parameters()
        yield from self.feed_forward.parameters()

    def __call__(self, tape: Tape, x: Variable, mask: Variable, past: ops.Past | None = None) -> Variable:
        """Map [1, 1, N, width] to the same shape; see `ops.causal_attention` for mask and past."""
        x = ops.add(tape, x, self.attention(tape, self.attention_norm(tape, x), mask, past))
        return ops.add(tape, x, self.feed_forward(tape, self.feed_forward_norm(tape, x)))
