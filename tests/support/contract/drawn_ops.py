"""The ops of which calls are drawn, and the parts of the device module that are checked in other ways."""

from __future__ import annotations

import os
import textwrap

from tests.support.contract import draw_arithmetic, draw_rows, draw_shapes
from tests.support.contract.call_strategies import OPS

__all__ = ["EXAMPLES", "NOT_DRAWN", "OPS", "format_not_drawn"]

EXAMPLES = int(os.environ.get("TIERMESH_DRAWN_CALLS", "50"))
"""Number of calls drawn per op."""

FILES = (draw_arithmetic, draw_rows, draw_shapes)
"""Modules with the strategies; importing them registers their ops."""

_OPERANDS = "used by every drawn operand"
_SINGLE = "single calls in ops_on_loudbox.py"
_OPENING = "used by every cell to open and close the mesh"
_READING = "used by every cell to read results"
_TRACE = "the mock can't capture traces: the first op in one ends the process"

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
    "deallocate": "frees views too, and ops on freed tensors end the process",
    "copy_host_to_device_tensor": "used by every cell to load weights a second time",
    "get_memory_view": "compared in test_memory.py",
}
"""Names without drawn calls, and where they are compared with ttnn instead."""

OPERANDS_NOT_DRAWN: dict[str, str] = {
    "sum, mean": "row-major operands, except over one of the last two dimensions: the result's layout depends on sizes",
    "embedding, embedding_bw": "bfloat16 ids, which ttnn silently accepts",
    "moreh_layer_norm, moreh_layer_norm_backward": "several normalized dimensions: the emulator has the last one only",
    "every op": "arguments that training never uses, such as memory_config: the emulator lacks them",
    "all ops": "tensors on the host, of a closed mesh, or freed: some end the process",
}
"""Kinds of operands that are never drawn, by op, with the reason."""


def format_not_drawn() -> list[str]:
    """Return what isn't drawn as lines of a Markdown list, as wide as pages are."""
    reasons: dict[str, list[str]] = {}
    for name, reason in NOT_DRAWN.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    items = [f"* {', '.join(names)}: {reason}." for reason, names in reasons.items()]
    items += [f"* {ops}: {reason}." for ops, reason in OPERANDS_NOT_DRAWN.items()]
    return [
        line
        for item in items
        for line in textwrap.wrap(
            item, 100, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
        )
    ]
