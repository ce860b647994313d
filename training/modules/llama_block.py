"""One transformer block of Llama."""

from __future__ import annotations

from collections.abc import Iterator

from services.config.models import LlamaConfig
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.modules.gated_feed_forward import GatedFeedForward
from training.modules.grouped_attention import GroupedAttention
from training.modules.rms_norm import RMSNorm


class LlamaBlock:
    """Transformer block of Llama: x + attention(norm(x)), then x + feed_forward(norm(x)).

    Args:
        name: prefix of the names of parameters and dropout sites.
        config: config of the model.
        export_prefix: prefix of the parameters' names in checkpoints.
    """

    def __init__(self, name: str, config: LlamaConfig, export_prefix: str) -> None:
        width = config.embedding_dim
        self.attention_norm = RMSNorm(
            f"{name}.attention_norm", width, export_prefix=f"{export_prefix}input_layernorm."
        )
        self.attention = GroupedAttention(f"{name}.attention", config, f"{export_prefix}self_attn.")
        self.feed_forward_norm = RMSNorm(
            f"{name}.feed_forward_norm", width, export_prefix=f"{export_prefix}post_attention_layernorm."
        )
        self.feed_forward = GatedFeedForward(f"{name}.feed_forward", config, f"{export_prefix}mlp.")

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        yield from self.attention_norm.parameters()
        yield from self.attention.parameters()
        yield from self.feed_forward_norm.parameters()
        yield from self.feed_forward.parameters()

    def __call__(
        self,
        tape: Tape,
        x: Variable,
        mask: Variable,
        rotation: ops.Rotation,
        past: ops.Past | None = None,
    ) -> Variable:
        """Map [1, 1, N, width] to the same shape; see `ops.grouped_attention` for mask, rotation and past."""
        attended = self.attention(tape, self.attention_norm(tape, x), mask, rotation, past)
        x = ops.add(tape, x, attended)
        return ops.add(tape, x, self.feed_forward(tape, self.feed_forward_norm(tape, x)))
