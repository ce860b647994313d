"""All ops of which calls are drawn, and what the device modules have that none are drawn of."""

from __future__ import annotations

import os

from tests.support.contract import draw_arithmetic, draw_rows, draw_shapes
from tests.support.contract.call_strategies import OPS

__all__ = ["EXAMPLES", "NOT_DRAWN", "OPS", "not_drawn_table"]

EXAMPLES = int(os.environ.get("TIERMESH_DRAWN_CALLS", "50"))
"""Calls drawn of each op."""

FILES = (draw_arithmetic, draw_rows, draw_shapes)
"""Where they are drawn: importing these registers them."""

_OPERANDS = "every drawn operand is made by it"
_SINGLE = "single calls in ops_on_loudbox.py"
_OPENING = "opens and closes the mesh of every cell"
_READING = "reads what every cell computes"
_TRACE = "the mock captures no traces: the first op in one ends the process"

NOT_DRAWN: dict[str, str] = {
    **dict.fromkeys(("Tensor", "PlacementReplicate", "PlacementShard", "MeshMapperConfig"), _OPERANDS),
    **dict.fromkeys(("create_mesh_mapper", "WormholeComputeKernelConfig", "MeshShape"), _OPERANDS),
    **dict.fromkeys(("replicate_tensor_to_mesh_mapper", "shard_tensor_to_mesh_mapper"), _SINGLE),
    **dict.fromkeys(
        ("create_mesh_composer", "MeshComposerConfig", "concat_mesh_to_tensor_composer"), _SINGLE
    ),
    **dict.fromkeys(("Shape", "synchronize_device"), _SINGLE),
    **dict.fromkeys(("set_fabric_config", "open_mesh_device", "close_mesh_device", "MeshDevice"), _OPENING),
    **dict.fromkeys(("get_device_tensors", "to_dtype", "Tensor.cpu", "Tensor.to_numpy"), _READING),
    **dict.fromkeys(("begin_trace_capture", "end_trace_capture", "execute_trace", "release_trace"), _TRACE),
    "deallocate": "frees views too; ops on what was freed end the process",
    "copy_host_to_device_tensor": "every cell loads its weights a second time by it",
    "get_memory_view": "what it tells is the emulator's own memory",
}
"""What no calls are drawn of, and where it is held to ttnn instead."""

OPERANDS_NOT_DRAWN: dict[str, str] = {
    "sum, mean": "row-major ones over other than one of the last two dimensions: the result's layout hangs on sizes",
    "embedding, embedding_bw": "bfloat16 ids, which ttnn takes without a word",
    "moreh_layer_norm, moreh_layer_norm_backward": "normalized dimensions before the last: the emulator has none",
    "every op": "arguments that training has no use for (memory_config and others): the emulator has none of them",
    "all ops": "tensors on the host, of a closed mesh or freed: some end the process",
}
"""What isn't drawn of ops that are, with the reason."""


def not_drawn_table() -> list[str]:
    """What isn't drawn, as lines of a Markdown list."""
    reasons: dict[str, list[str]] = {}
    for name, reason in NOT_DRAWN.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    lines = [f"* {', '.join(names)}: {reason}." for reason, names in reasons.items()]
    return lines + [f"* Of {ops}: {reason}." for ops, reason in OPERANDS_NOT_DRAWN.items()]
