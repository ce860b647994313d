"""What `import ttnn` would give, in numpy: the subset of its API that training uses, with its names and rules.

Tensors lie over a mesh of rows by cols chips. What is the same along a mesh axis is stored and computed once; what is
sharded has one slice for each chip. Where ttnn refuses a call, so does this (RuntimeError, TypeError); where ttnn is
silently wrong, this raises. It is wider than ttnn in one way only: see `mesh.emulator.widened`.
"""

from __future__ import annotations

from mesh.emulator import experimental
from mesh.emulator.activations import gelu, gelu_bw
from mesh.emulator.collectives import all_gather, all_reduce, reduce_scatter
from mesh.emulator.creation import arange, empty, full, ones, zeros
from mesh.emulator.device import (
    MeshDevice,
    close_mesh_device,
    get_device_tensors,
    open_mesh_device,
    set_fabric_config,
    synchronize_device,
)
from mesh.emulator.elementwise import add, eq, exp, gather, multiply, neg, square, subtract, typecast
from mesh.emulator.embedding import embedding, embedding_bw
from mesh.emulator.mapping import (
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
from mesh.emulator.matmul import linear, matmul
from mesh.emulator.normalisation import moreh_layer_norm, moreh_layer_norm_backward
from mesh.emulator.reductions import mean, sum
from mesh.emulator.shapes import concat, permute, reshape, slice, to_layout, transpose
from mesh.emulator.softmax import (
    moreh_logsoftmax,
    moreh_logsoftmax_backward,
    moreh_softmax_backward,
    softmax,
)
from mesh.emulator.tensor import Tensor, deallocate, to_dtype
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

__version__ = "1"
"""Raised whenever an op's last bits change, so that workers with different ones don't share a job."""

__all__ = [
    "ROW_MAJOR_LAYOUT",
    "TILE_LAYOUT",
    "Arch",
    "DataType",
    "FabricConfig",
    "GeluVariant",
    "Layout",
    "MathFidelity",
    "MeshComposerConfig",
    "MeshDevice",
    "MeshMapperConfig",
    "MeshShape",
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
    "bfloat16",
    "close_mesh_device",
    "concat",
    "concat_mesh_to_tensor_composer",
    "create_mesh_composer",
    "create_mesh_mapper",
    "deallocate",
    "embedding",
    "embedding_bw",
    "empty",
    "eq",
    "exp",
    "experimental",
    "float32",
    "full",
    "gather",
    "gelu",
    "gelu_bw",
    "get_device_tensors",
    "int32",
    "linear",
    "matmul",
    "mean",
    "moreh_layer_norm",
    "moreh_layer_norm_backward",
    "moreh_logsoftmax",
    "moreh_logsoftmax_backward",
    "moreh_softmax_backward",
    "multiply",
    "neg",
    "ones",
    "open_mesh_device",
    "permute",
    "reduce_scatter",
    "replicate_tensor_to_mesh_mapper",
    "reshape",
    "set_fabric_config",
    "shard_tensor_to_mesh_mapper",
    "slice",
    "softmax",
    "square",
    "subtract",
    "sum",
    "synchronize_device",
    "to_dtype",
    "to_layout",
    "transpose",
    "typecast",
    "uint32",
    "zeros",
]
