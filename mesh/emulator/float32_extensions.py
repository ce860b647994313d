"""Ops that accept float32 in the emulator although ttnn 0.81.1 accepts bfloat16 only.

This is the only way in which the emulator accepts more than ttnn. tests/contract checks that real ttnn refuses
float32 for each of these ops.
"""

from __future__ import annotations

from mesh.emulator.types import DataType

FLOAT32_OPS: dict[str, str] = {
    "embedding": "the table and the result",
    "embedding_bw": "the gradient and the result",
    "moreh_layer_norm": "all operands",
    "moreh_layer_norm_backward": "all operands",
    "moreh_softmax_backward": "all operands",
    "moreh_logsoftmax_backward": "all operands",
    "experimental.dropout": "the operand and the result",
}
"""Operands that may be float32, by op. Ops are attribute paths of the module."""


def require_dtype(op: str, dtype: DataType) -> None:
    """Raise RuntimeError unless `op` accepts `dtype`: bfloat16 always, float32 if `FLOAT32_OPS` has the op."""
    if dtype is not DataType.BFLOAT16 and not (dtype is DataType.FLOAT32 and op in FLOAT32_OPS):
        raise RuntimeError(f"{op}: {dtype} is not supported, expected DataType.BFLOAT16")
