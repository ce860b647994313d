"""Ops that take float32 here though ttnn 0.81.1 has them in bfloat16 only: the one way the emulator is wider."""

from __future__ import annotations

from mesh.emulator.types import DataType

WIDENED: dict[str, str] = {
    "embedding": "the table and the result",
    "embedding_bw": "the gradient and the result",
    "moreh_layer_norm": "all operands",
    "moreh_layer_norm_backward": "all operands",
    "moreh_softmax_backward": "all operands",
    "moreh_logsoftmax_backward": "all operands",
    "experimental.dropout": "the operand and the result",
}
"""Op name (as an attribute path of the module) to what may be float32 of it."""


def require_dtype(op: str, dtype: DataType) -> None:
    """Raise RuntimeError unless `op` takes `dtype`: bfloat16 always, float32 if the op is in the table."""
    if dtype is not DataType.BFLOAT16 and not (dtype is DataType.FLOAT32 and op in WIDENED):
        raise RuntimeError(f"{op}: {dtype} is not supported, only DataType.BFLOAT16 is")
