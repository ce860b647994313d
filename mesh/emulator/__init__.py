"""What `import ttnn` would give, in numpy: the subset of its API that training uses, with its names and rules.

Tensors lie over a mesh of rows by cols chips. What is the same along a mesh axis is stored and computed once; what is
sharded has one slice for each chip. Where ttnn refuses a call, so does this (RuntimeError, TypeError); where ttnn is
silently wrong, this raises. It is wider than ttnn in one way only: see `mesh.emulator.float32_extensions`.
"""

from __future__ import annotations

from mesh.emulator import experimental
from mesh.emulator.collectives import all_gather, all_reduce, mesh_partition, reduce_scatter
from mesh.emulator.comparison import eq, ge, lt, where
from mesh.emulator.copying import copy_host_to_device_tensor
from mesh.emulator.creation import arange, empty, full, full_like, ones, ones_like, zeros, zeros_like
from mesh.emulator.data_movement import concat, permute, reshape, slice, to_layout, transpose
from mesh.emulator.device import (
    MeshDevice,
    close_mesh_device,
    get_device_tensors,
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
from mesh.emulator.memory import BufferType, get_memory_view
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
from mesh.emulator.tensor import Tensor, deallocate, to_dtype
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
"""Raised whenever an op's last bits change, so that workers with different ones don't share a job."""

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
