"""The subset of ttnn 0.81.1 that training uses, in numpy, with ttnn's names, arguments and rules.

This module is used in place of `import ttnn` where there is no device. Its public names are those of ttnn.

Tensors are placed over a mesh of rows by columns of chips. What is replicated along a mesh axis is stored and computed
once; what is sharded has one slice per chip. bfloat16 is stored as float32 and rounded to nearest even once per op,
after float32 arithmetic. A call that ttnn refuses is refused here (RuntimeError, TypeError). Where ttnn silently
computes something wrong, the emulator raises RuntimeError. It accepts more than ttnn in one way only, see
`float32_extensions`. tests/contract compares it with real ttnn, tests/mesh with independent references.

Reading order:

1. `types`, `memory`, `device`: dtypes and shapes, what a tensor costs, opening and closing a mesh.
2. `mesh_mappers`, `tensor`, `creation`, `rounding`: placing arrays over the mesh, and the tensor.
3. `parallel`, `broadcast`: how ops are split into blocks for threads, and how operands of chips meet.
4. The ops: `elementwise`, `unary`, `comparison`, `matmul`, `reductions`, `softmax`, `layer_norm`, `collectives` etc.
"""

from __future__ import annotations

from mesh.emulator import experimental
from mesh.emulator.collectives import all_gather, all_reduce, mesh_partition, reduce_scatter
from mesh.emulator.comparison import eq, ge, lt, where
from mesh.emulator.creation import (
    arange,
    empty,
    empty_like,
    full,
    full_like,
    ones,
    ones_like,
    zeros,
    zeros_like,
)
from mesh.emulator.data_movement import concat, permute, reshape, slice, to_layout, transpose
from mesh.emulator.device import (
    MeshDevice,
    close_mesh_device,
    get_memory_view,
    open_mesh_device,
    set_fabric_config,
    synchronize_device,
)
from mesh.emulator.elementwise import add, exp, gather, multiply, neg, square, subtract, typecast
from mesh.emulator.embedding import embedding, embedding_bw
from mesh.emulator.gelu import gelu, gelu_bw
from mesh.emulator.kv_cache import fill_cache, update_cache
from mesh.emulator.layer_norm import moreh_layer_norm, moreh_layer_norm_backward
from mesh.emulator.matmul import linear, matmul
from mesh.emulator.memory import BufferType
from mesh.emulator.mesh_mappers import (
    MeshComposerConfig,
    MeshMapperConfig,
    PlacementReplicate,
    PlacementShard,
    concat_mesh_to_tensor_composer,
    create_mesh_composer,
    create_mesh_mapper,
    replicate_tensor_to_mesh_mapper,
    shard_tensor_to_mesh_mapper,
)
from mesh.emulator.min_max import argmax, max, min
from mesh.emulator.reductions import mean, sum
from mesh.emulator.repeat_pad_split import chunk, pad, repeat, repeat_interleave, split
from mesh.emulator.rms_norm import rms_norm
from mesh.emulator.softmax import (
    moreh_logsoftmax,
    moreh_logsoftmax_backward,
    moreh_softmax_backward,
    softmax,
)
from mesh.emulator.tensor import Tensor, copy_host_to_device_tensor, deallocate, get_device_tensors, to_dtype
from mesh.emulator.trace import (
    MeshTraceId,
    begin_trace_capture,
    end_trace_capture,
    execute_trace,
    release_trace,
)
from mesh.emulator.types import (
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    Arch,
    DataType,
    FabricConfig,
    GeluVariant,
    Layout,
    MathFidelity,
    MeshShape,
    Shape,
    StorageType,
    WormholeComputeKernelConfig,
    bfloat16,
    float32,
    int32,
    uint32,
)
from mesh.emulator.unary import (
    log,
    reciprocal,
    relu,
    relu_bw,
    rsqrt,
    sigmoid,
    sigmoid_bw,
    silu,
    silu_bw,
    sqrt,
    tanh,
    tanh_bw,
)

__version__ = "2"
"""Version of the emulator's bits. It rises when the last bits of any op change.

It is part of the fingerprint, so workers with different bits don't share a job.
"""

__all__ = [
    "ROW_MAJOR_LAYOUT",
    "TILE_LAYOUT",
    "Arch",
    "BufferType",
    "DataType",
    "FabricConfig",
    "GeluVariant",
    "Layout",
    "MathFidelity",
    "MeshComposerConfig",
    "MeshDevice",
    "MeshMapperConfig",
    "MeshShape",
    "MeshTraceId",
    "PlacementReplicate",
    "PlacementShard",
    "Shape",
    "StorageType",
    "Tensor",
    "WormholeComputeKernelConfig",
    "add",
    "all_gather",
    "all_reduce",
    "arange",
    "argmax",
    "begin_trace_capture",
    "bfloat16",
    "chunk",
    "close_mesh_device",
    "concat",
    "concat_mesh_to_tensor_composer",
    "copy_host_to_device_tensor",
    "create_mesh_composer",
    "create_mesh_mapper",
    "deallocate",
    "embedding",
    "embedding_bw",
    "empty",
    "empty_like",
    "end_trace_capture",
    "eq",
    "execute_trace",
    "exp",
    "experimental",
    "fill_cache",
    "float32",
    "full",
    "full_like",
    "gather",
    "ge",
    "gelu",
    "gelu_bw",
    "get_device_tensors",
    "get_memory_view",
    "int32",
    "linear",
    "log",
    "lt",
    "matmul",
    "max",
    "mean",
    "mesh_partition",
    "min",
    "moreh_layer_norm",
    "moreh_layer_norm_backward",
    "moreh_logsoftmax",
    "moreh_logsoftmax_backward",
    "moreh_softmax_backward",
    "multiply",
    "neg",
    "ones",
    "ones_like",
    "open_mesh_device",
    "pad",
    "permute",
    "reciprocal",
    "reduce_scatter",
    "release_trace",
    "relu",
    "relu_bw",
    "repeat",
    "repeat_interleave",
    "replicate_tensor_to_mesh_mapper",
    "reshape",
    "rms_norm",
    "rsqrt",
    "set_fabric_config",
    "shard_tensor_to_mesh_mapper",
    "sigmoid",
    "sigmoid_bw",
    "silu",
    "silu_bw",
    "slice",
    "softmax",
    "split",
    "sqrt",
    "square",
    "subtract",
    "sum",
    "synchronize_device",
    "tanh",
    "tanh_bw",
    "to_dtype",
    "to_layout",
    "transpose",
    "typecast",
    "uint32",
    "update_cache",
    "where",
    "zeros",
    "zeros_like",
]
