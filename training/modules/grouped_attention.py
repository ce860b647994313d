"""Llama's causal self-attention: rotated queries and keys, and groups of heads that share keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from services.config.models import LlamaConfig
from training import ops
from training.autograd.tape import Tape
from training.autograd.variable import Parameter, Variable
from training.modules.linear import INITIAL_DEVIATION, Linear


class GroupedAttention:
    """Llama's attention: projections to queries, keys and values, and one back, without biases.

    Tensor-parallel devices share out the heads of queries, and those of keys and values.

    Args:
        name: prefix of the names of parameters and dropout sites.
        config: config of the model.
        export_prefix: prefix of the parameters' names in checkpoints.
    """

    def __init__(self, name: str, config: LlamaConfig, export_prefix: str) -> None:
        width, shared_width = config.embedding_dim, config.num_groups * config.head_width
        self._name = name
        self._head_width = config.head_width
        self._dropout = config.dropout_prob

        def split(part: str, outputs: int, export_name: str) -> Linear:
            return Linear(
                f"{name}.{part}",
                width,
                outputs,
                bias=False,
                deviation=INITIAL_DEVIATION,
                export_prefix=f"{export_prefix}{export_name}.",
                split="outputs",
                transposed=True,
            )

        self.query = split("query", width, "q_proj")
        self.key = split("key", shared_width, "k_proj")
        self.value = split("value", shared_width, "v_proj")
        self.output = Linear(
            f"{name}.output",
            width,
            width,
            bias=False,
            deviation=INITIAL_DEVIATION,
            export_prefix=f"{export_prefix}o_proj.",
            split="inputs",
            transposed=True,
        )

    def parameters(self) -> Iterator[Parameter]:
        """Yield the parameters in order of first use."""
        for layer in (self.query, self.key, self.value, self.output):
            yield from layer.parameters()

    def __call__(
        self,
        tape: Tape,
        x: Variable,
        mask: Variable,
        rotation: ops.Rotation,
        past: ops.Past | None = None,
    ) -> Variable:
        """Map [1, 1, N, width] to the same shape; see `ops.grouped_attention` for mask, rotation and past."""
        q, k, v = self.query(tape, x), self.key(tape, x), self.value(tape, x)
        attended = ops.grouped_attention(tape, q, k, v, rotation, mask, self._head_width, past)
        return ops.dropout(tape, self.output(tape, attended), self._dropout, f"{self._name}.dropout")
