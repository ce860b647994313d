"""Calls that both modules must accept alike, and calls that both must refuse. Started by test_on_loudbox.py."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import ttnn

import mesh.emulator as emulator
from mesh.axes import Axes
from mesh.device import Mesh, open_mesh
from mesh.dropout import drop
from mesh.placement import WHOLE, over_data
from mesh.transfer import download, upload
from tests.support.contract.lock_step import LockStep


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with open_mesh((1, 8), module=LockStep(emulator, ttnn), axes=Axes(data=1)) as opened:
        yield opened


class Make:
    """Functions that make operands on a mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh = mesh
        self.tt = mesh.tt
        self.device = mesh.handle

    def floats(
        self, *shape: int, dtype: str = "bfloat16", layout: str = "TILE_LAYOUT", shard: int | None = None
    ) -> Any:
        values = np.linspace(-1, 1, int(np.prod(shape)), dtype=np.float32).reshape(shape)
        return self._upload(values, dtype, layout, shard)

    def ids(
        self, *shape: int, below: int = 64, layout: str = "ROW_MAJOR_LAYOUT", shard: int | None = None
    ) -> Any:
        values = (np.arange(int(np.prod(shape))) % below).astype(np.uint32).reshape(shape)
        return self._upload(values, "uint32", layout, shard)

    def integers(self, *shape: int, layout: str = "TILE_LAYOUT") -> Any:
        return self._upload(np.zeros(shape, np.int32), "int32", layout, None)

    def empty(self, *shape: int) -> Any:
        return self.tt.empty(
            list(shape), dtype=self.tt.bfloat16, layout=self.tt.TILE_LAYOUT, device=self.device
        )

    def _upload(self, values: np.ndarray[Any, Any], dtype: str, layout: str, shard: int | None) -> Any:
        tt = self.tt
        kind = getattr(tt, dtype)
        return upload(
            self.mesh,
            values,
            dtype=kind,
            layout=getattr(tt, layout),
            placements=WHOLE if shard is None else over_data(shard),
        )


Case = Callable[[Any, Make], Any]

F = "float32"
RM = "ROW_MAJOR_LAYOUT"

ACCEPTED: dict[str, Case] = {
    "matmul weights": lambda tt, m: tt.matmul(m.floats(16, 1, 64, 128, shard=0), m.floats(1, 1, 128, 96)),
    "matmul 2-D weights": lambda tt, m: tt.matmul(m.floats(2, 1, 64, 128), m.floats(128, 96)),
    "matmul 3-D": lambda tt, m: tt.matmul(m.floats(2, 64, 128), m.floats(128, 96)),
    "matmul 2-D": lambda tt, m: tt.matmul(m.floats(64, 128), m.floats(128, 100)),
    "matmul 2-D by 4-D": lambda tt, m: tt.matmul(m.floats(64, 128), m.floats(1, 1, 128, 100)),
    "matmul heads": lambda tt, m: tt.matmul(m.floats(2, 4, 64, 32), m.floats(2, 4, 32, 64)),
    "matmul transpose b": lambda tt, m: tt.matmul(
        m.floats(2, 4, 64, 32), m.floats(2, 4, 64, 32), transpose_b=True
    ),
    "matmul transpose a": lambda tt, m: tt.matmul(
        m.floats(2, 4, 64, 32), m.floats(2, 4, 64, 32), transpose_a=True
    ),
    "matmul weight gradient": lambda tt, m: tt.matmul(
        m.floats(1, 1, 1024, 96, shard=2), m.floats(1, 1, 1024, 64, shard=2), transpose_a=True
    ),
    "matmul broadcast b": lambda tt, m: tt.matmul(m.floats(2, 4, 64, 32), m.floats(1, 1, 32, 64)),
    "matmul broadcast a": lambda tt, m: tt.matmul(m.floats(1, 1, 64, 32), m.floats(2, 4, 32, 64)),
    "matmul uneven": lambda tt, m: tt.matmul(m.floats(1, 1, 100, 70), m.floats(1, 1, 70, 33)),
    "matmul float32": lambda tt, m: tt.matmul(m.floats(64, 64, dtype=F), m.floats(64, 64, dtype=F)),
    "matmul mixed": lambda tt, m: tt.matmul(m.floats(64, 64), m.floats(64, 64, dtype=F)),
    "matmul to float32": lambda tt, m: tt.matmul(m.floats(64, 64), m.floats(64, 64), dtype=tt.float32),
    "matmul config": lambda tt, m: tt.matmul(
        m.floats(64, 64),
        m.floats(64, 64),
        compute_kernel_config=tt.WormholeComputeKernelConfig(
            math_fidelity=tt.MathFidelity.HiFi4,
            math_approx_mode=False,
            fp32_dest_acc_en=True,
            packer_l1_acc=True,
        ),
    ),
    "linear": lambda tt, m: tt.linear(
        m.floats(16, 1, 64, 128, shard=0), m.floats(1, 1, 128, 96), bias=m.floats(1, 96)
    ),
    "linear 1-D bias": lambda tt, m: tt.linear(
        m.floats(2, 1, 64, 128), m.floats(1, 1, 128, 96), bias=m.floats(96)
    ),
    "linear 4-D bias": lambda tt, m: tt.linear(
        m.floats(2, 1, 64, 128), m.floats(1, 1, 128, 96), bias=m.floats(1, 1, 1, 96)
    ),
    "linear no bias": lambda tt, m: tt.linear(m.floats(2, 1, 64, 128), m.floats(1, 1, 128, 96), bias=None),
    "linear transposed": lambda tt, m: tt.linear(
        m.floats(2, 1, 64, 128), m.floats(1, 1, 96, 128), bias=m.floats(1, 96), transpose_b=True
    ),
    "add": lambda tt, m: tt.add(m.floats(2, 1, 64, 128), m.floats(2, 1, 64, 128)),
    "add rows": lambda tt, m: tt.add(m.floats(16, 1, 64, 128, shard=0), m.floats(1, 1, 64, 128)),
    "add columns": lambda tt, m: tt.subtract(m.floats(2, 1, 64, 128), m.floats(2, 1, 64, 1)),
    "add lower rank": lambda tt, m: tt.multiply(m.floats(2, 1, 64, 128), m.floats(128)),
    "add higher rank": lambda tt, m: tt.add(m.floats(64, 128), m.floats(2, 1, 64, 128)),
    "add replicated to sharded": lambda tt, m: tt.add(
        m.floats(1, 1, 64, 128), m.floats(16, 1, 64, 128, shard=0)
    ),
    "add mask": lambda tt, m: tt.add(m.floats(2, 4, 64, 64), m.floats(1, 1, 64, 64)),
    "add scalar": lambda tt, m: tt.add(m.floats(2, 64), 1.5),
    "add integer scalar": lambda tt, m: tt.add(m.floats(2, 64), 2),
    "add bfloat16 float32": lambda tt, m: tt.add(m.floats(2, 64), m.floats(2, 64, dtype=F)),
    "multiply float32 bfloat16": lambda tt, m: tt.multiply(m.floats(2, 64, dtype=F), m.floats(2, 64)),
    "add tile to rows": lambda tt, m: tt.add(m.floats(32, 64), m.floats(32, 64, layout=RM)),
    "add both row major": lambda tt, m: tt.add(m.floats(32, 64, layout=RM), m.floats(32, 64, layout=RM)),
    "add scalar row major": lambda tt, m: tt.add(m.floats(32, 64, layout=RM), 1.0),
    "add dtype": lambda tt, m: tt.add(m.floats(2, 64), m.floats(2, 64), dtype=tt.float32),
    "add ids": lambda tt, m: tt.add(m.ids(32, 64, layout="TILE_LAYOUT"), m.ids(32, 64, layout="TILE_LAYOUT")),
    "neg": lambda tt, m: tt.neg(m.floats(2, 1, 64, 128)),
    "neg row major": lambda tt, m: tt.neg(m.floats(32, 64, layout=RM)),
    "exp float32": lambda tt, m: tt.exp(m.floats(2, 1, 64, 128, dtype=F)),
    "square": lambda tt, m: tt.square(m.floats(2, 1, 64, 128)),
    "typecast up": lambda tt, m: tt.typecast(m.floats(2, 64), tt.float32),
    "typecast same": lambda tt, m: tt.typecast(m.floats(2, 64), tt.bfloat16),
    "typecast ids": lambda tt, m: tt.typecast(m.ids(2, 64, layout="TILE_LAYOUT"), tt.bfloat16),
    "typecast row major": lambda tt, m: tt.typecast(m.floats(32, 64, layout=RM), tt.float32),
    "eq ids": lambda tt, m: tt.eq(m.ids(64, 1, layout="TILE_LAYOUT"), m.ids(1, 68, layout="TILE_LAYOUT")),
    "eq integers": lambda tt, m: tt.eq(m.integers(64, 1), m.integers(1, 68)),
    "eq row major": lambda tt, m: tt.eq(m.ids(64, 1), m.ids(1, 68)),
    "eq to float": lambda tt, m: tt.eq(
        m.ids(64, 1, layout="TILE_LAYOUT"), m.ids(1, 68, layout="TILE_LAYOUT"), dtype=tt.float32
    ),
    "eq bfloat16": lambda tt, m: tt.eq(m.floats(64, 1), m.floats(1, 68)),
    "gather float32": lambda tt, m: tt.gather(
        m.floats(1, 1, 64, 68, dtype=F), 3, m.ids(1, 1, 64, 1, layout="TILE_LAYOUT")
    ),
    "gather bfloat16": lambda tt, m: tt.gather(m.floats(64, 68), 1, m.ids(64, 1, layout="TILE_LAYOUT")),
    "sum all": lambda tt, m: tt.sum(m.floats(2, 1, 64, 128)),
    "sum rows kept": lambda tt, m: tt.sum(m.floats(2, 1, 64, 128), dim=[0, 1, 2], keepdim=True),
    "sum rows": lambda tt, m: tt.sum(m.floats(2, 1, 64, 128), dim=2),
    "sum first": lambda tt, m: tt.sum(m.floats(2, 1, 64, 128), dim=0, keepdim=True),
    "sum last": lambda tt, m: tt.sum(m.floats(2, 1, 64, 128), dim=-1),
    "sum five": lambda tt, m: tt.sum(m.floats(2, 2, 2, 64, 32), dim=2),
    "sum float32": lambda tt, m: tt.sum(m.floats(2, 1, 64, 128, dtype=F), dim=3, keepdim=True),
    "mean all": lambda tt, m: tt.mean(m.floats(2, 1, 64, 128, dtype=F)),
    "mean last kept": lambda tt, m: tt.mean(m.floats(2, 1, 64, 128), dim=-1, keepdim=True),
    "sum row major": lambda tt, m: tt.sum(m.floats(32, 64, layout=RM), dim=1),
    "embedding": lambda tt, m: tt.embedding(m.ids(16, 64, shard=0), m.floats(68, 128), layout=tt.TILE_LAYOUT),
    "embedding tiled ids": lambda tt, m: tt.embedding(
        m.ids(2, 64, layout="TILE_LAYOUT"), m.floats(68, 128), layout=tt.TILE_LAYOUT
    ),
    "embedding default layout": lambda tt, m: tt.embedding(m.ids(2, 64), m.floats(68, 128)),
    "embedding row major table": lambda tt, m: tt.embedding(m.ids(2, 64), m.floats(68, 128, layout=RM)),
    "embedding 4-D table": lambda tt, m: tt.embedding(
        m.ids(2, 64), m.floats(1, 1, 68, 128), layout=tt.TILE_LAYOUT
    ),
    "embedding_bw": lambda tt, m: tt.embedding_bw(
        m.ids(16, 64, shard=0), m.floats(68, 128), m.floats(1, 1, 1024, 128, shard=2)
    ),
    "embedding_bw 4-D table": lambda tt, m: tt.embedding_bw(
        m.ids(2, 64), m.floats(1, 1, 68, 128), m.floats(1, 1, 128, 128)
    ),
    "layer norm": lambda tt, m: tt.moreh_layer_norm(
        m.floats(2, 1, 64, 128),
        1,
        1e-5,
        m.floats(1, 128),
        m.floats(1, 128),
        mean=m.empty(2, 1, 64),
        rstd=m.empty(2, 1, 64),
    ),
    "layer norm without statistics": lambda tt, m: tt.moreh_layer_norm(
        m.floats(2, 1, 64, 128), 1, 1e-5, m.floats(128), m.floats(128)
    ),
    "layer norm without offset": lambda tt, m: tt.moreh_layer_norm(
        m.floats(2, 1, 64, 128),
        1,
        1e-5,
        m.floats(1, 128),
        None,
        mean=m.empty(2, 1, 64),
        rstd=m.empty(2, 1, 64),
    ),
    "layer norm bare": lambda tt, m: tt.moreh_layer_norm(m.floats(1, 1, 64, 128), 1, 1e-5),
    "layer norm backward": lambda tt, m: tt.moreh_layer_norm_backward(
        m.floats(2, 1, 64, 128),
        m.floats(2, 1, 64, 128),
        m.floats(2, 1, 64),
        m.floats(2, 1, 64),
        1,
        gamma=m.floats(1, 128),
        input_grad=m.empty(2, 1, 64, 128),
        gamma_grad=m.empty(1, 128),
        beta_grad=m.empty(128),
    ),
    "layer norm backward without beta": lambda tt, m: tt.moreh_layer_norm_backward(
        m.floats(2, 1, 64, 128),
        m.floats(2, 1, 64, 128),
        m.floats(2, 1, 64),
        m.floats(2, 1, 64),
        1,
        gamma=m.floats(1, 128),
        input_grad=m.empty(2, 1, 64, 128),
        gamma_grad=m.empty(1, 128),
    ),
    "gelu": lambda tt, m: tt.gelu(m.floats(2, 1, 64, 128)),
    "gelu tanh float32": lambda tt, m: tt.gelu(m.floats(2, 1, 64, 128, dtype=F), variant=tt.GeluVariant.Tanh),
    "gelu_bw": lambda tt, m: tt.gelu_bw(
        m.floats(2, 1, 64, 128), m.floats(2, 1, 64, 128), variant=tt.GeluVariant.Accurate
    ),
    "gelu_bw tanh": lambda tt, m: tt.gelu_bw(m.floats(32, 64), m.floats(32, 64), variant=tt.GeluVariant.Tanh),
    "softmax": lambda tt, m: tt.softmax(m.floats(2, 4, 64, 64), dim=-1, numeric_stable=True),
    "softmax float32": lambda tt, m: tt.softmax(m.floats(2, 4, 64, 65, dtype=F), dim=3),
    "softmax 2-D": lambda tt, m: tt.softmax(m.floats(64, 68), dim=-1),
    "softmax backward": lambda tt, m: tt.moreh_softmax_backward(
        m.floats(2, 4, 64, 64), m.floats(2, 4, 64, 64), 3
    ),
    "logsoftmax": lambda tt, m: tt.moreh_logsoftmax(m.floats(64, 68, dtype=F), 1),
    "logsoftmax 4-D": lambda tt, m: tt.moreh_logsoftmax(m.floats(1, 1, 64, 68, dtype=F), 3),
    "logsoftmax backward": lambda tt, m: tt.moreh_logsoftmax_backward(m.floats(64, 68), m.floats(64, 68), 1),
    "dropout": lambda tt, m: tt.experimental.dropout(
        m.floats(2, 1, 64, 128), probability=0.1, scale=1 / 0.9, seed=5
    ),
    "dropout one mask": lambda tt, m: tt.experimental.dropout(
        m.floats(2, 1, 64, 128), probability=0.1, scale=1 / 0.9, seed=2**32 - 1, use_per_device_seed=False
    ),
    "dropout chip by chip": lambda tt, m: tt.add(_drop_chip_by_chip(m), m.floats(8, 1, 64, 128, shard=0)),
    "dropout into a tensor": lambda tt, m: _drop_into(m, m.empty(2, 1, 64, 128)),
    "split heads": lambda tt, m: tt.experimental.nlp_create_qkv_heads(
        m.floats(2, 1, 64, 384), num_heads=4, num_kv_heads=4, transpose_k_heads=False
    ),
    "split heads, keys transposed": lambda tt, m: tt.experimental.nlp_create_qkv_heads(
        m.floats(2, 1, 64, 384), num_heads=4
    ),
    "split heads, fewer keys": lambda tt, m: tt.experimental.nlp_create_qkv_heads(
        m.floats(2, 1, 64, 256), num_heads=4, num_kv_heads=2, transpose_k_heads=False
    ),
    "concat heads": lambda tt, m: tt.experimental.nlp_concat_heads(m.floats(2, 4, 64, 32)),
    "reshape": lambda tt, m: tt.reshape(m.floats(2, 1, 64, 128), [2, 64, 4, 32]),
    "reshape rest": lambda tt, m: tt.reshape(m.floats(2, 1, 64, 128), (1, 1, -1, 128)),
    "reshape to a shape": lambda tt, m: tt.reshape(m.floats(2, 1, 64, 128), tt.Shape([128, 128])),
    "reshape ids": lambda tt, m: tt.reshape(m.ids(2, 64), [128, 1]),
    "transpose": lambda tt, m: tt.transpose(m.floats(2, 64, 4, 32), 1, 2),
    "transpose last": lambda tt, m: tt.transpose(m.floats(2, 64, 4, 32), -2, -1),
    "permute": lambda tt, m: tt.permute(m.floats(2, 64, 4, 32), (0, 2, 3, 1)),
    "concat": lambda tt, m: tt.concat([m.floats(2, 1, 64, 128), m.floats(2, 1, 64, 32)], dim=-1),
    "concat one": lambda tt, m: tt.concat([m.floats(2, 1, 64, 128)], 3),
    "concat heads' gradients": lambda tt, m: tt.concat([m.floats(2, 4, 64, 32)] * 3, dim=1),
    "slice": lambda tt, m: tt.slice(m.floats(2, 1, 64, 128), [0, 0, 0, 32], [2, 1, 64, 64]),
    "slice one row": lambda tt, m: tt.slice(m.floats(1, 1, 68, 128), [0, 0, 5, 0], [1, 1, 6, 128]),
    "slice steps": lambda tt, m: tt.slice(
        m.floats(2, 1, 64, 128), [0, 0, 0, 0], [2, 1, 64, 128], [1, 1, 2, 1]
    ),
    "to row major": lambda tt, m: tt.to_layout(m.floats(2, 1, 64, 128), tt.ROW_MAJOR_LAYOUT),
    "to tile": lambda tt, m: tt.to_layout(m.ids(2, 64), tt.TILE_LAYOUT),
    "full": lambda tt, m: tt.full([1, 64], 1.5, dtype=tt.float32, layout=tt.TILE_LAYOUT, device=m.device),
    "zeros": lambda tt, m: tt.zeros([1, 64], dtype=tt.bfloat16, layout=tt.TILE_LAYOUT, device=m.device),
    "ones": lambda tt, m: tt.ones([1, 64], dtype=tt.bfloat16, layout=tt.TILE_LAYOUT, device=m.device),
    "empty": lambda tt, m: tt.empty([1, 64], device=m.device),
    "arange": lambda tt, m: tt.arange(0, 68, dtype=tt.uint32, layout=tt.TILE_LAYOUT, device=m.device),
    "arange end only": lambda tt, m: tt.arange(68, dtype=tt.int32, device=m.device),
    "arange bfloat16": lambda tt, m: tt.arange(0, 68, 2, layout=tt.TILE_LAYOUT, device=m.device),
    "all_reduce": lambda tt, m: tt.all_reduce(m.floats(1, 1, 128, 128), cluster_axis=1),
    "all_reduce row": lambda tt, m: tt.all_reduce(m.floats(1, 100), cluster_axis=1),
    "all_reduce sharded": lambda tt, m: tt.all_reduce(m.floats(16, 1, 64, 128, shard=0), cluster_axis=1),
    "all_reduce any axis": lambda tt, m: tt.all_reduce(m.floats(68, 128)),
    "all_reduce scalar": lambda tt, m: tt.all_reduce(tt.mean(m.floats(2, 64, dtype=F)), cluster_axis=1),
    "all_gather": lambda tt, m: tt.all_gather(m.floats(16, 1, 64, 128, shard=0), 0, cluster_axis=1),
    "reduce_scatter": lambda tt, m: tt.reduce_scatter(m.floats(1, 1, 64, 256), 3, cluster_axis=1),
    "host": lambda tt, m: tt.Tensor(np.zeros((2, 3), np.float32), tt.bfloat16),
    "host rank 0": lambda tt, m: tt.Tensor(np.array(1.0, np.float32), tt.bfloat16),
    "host float32": lambda tt, m: tt.Tensor(np.zeros((2, 3), np.float32)),
    "device row major": lambda tt, m: tt.Tensor(np.zeros((2, 3), np.float32), tt.bfloat16, device=m.device),
    "cpu": lambda tt, m: m.floats(2, 64).cpu(),
    "shard flat": lambda tt, m: tt.Tensor(
        np.zeros((16, 3), np.float32), tt.float32, mesh_mapper=tt.shard_tensor_to_mesh_mapper(m.device, 0)
    ),
    "mapper by dimensions": lambda tt, m: tt.Tensor(
        np.zeros((16, 32), np.float32),
        tt.bfloat16,
        device=m.device,
        layout=tt.TILE_LAYOUT,
        mesh_mapper=tt.create_mesh_mapper(m.device, tt.MeshMapperConfig(None, 0)),
    ),
    "compose": lambda tt, m: (
        m.floats(16, 4, dtype=F, shard=0)
        .cpu()
        .to_numpy(tt.create_mesh_composer(m.device, tt.MeshComposerConfig([1, 0])))
    ),
    "download shards": lambda tt, m: download(m.mesh, m.floats(16, 4, shard=0), over_data(0)),
    "download": lambda tt, m: download(m.mesh, m.floats(16, 4)),
    "synchronize": lambda tt, m: tt.synchronize_device(m.device),
}

REFUSED: dict[str, Case] = {
    "matmul inner": lambda tt, m: tt.matmul(m.floats(64, 128), m.floats(64, 128)),
    "matmul row major": lambda tt, m: tt.matmul(m.floats(64, 64, layout=RM), m.floats(64, 64)),
    "matmul grouped heads": lambda tt, m: tt.matmul(m.floats(2, 4, 64, 32), m.floats(2, 1, 32, 64)),
    "matmul unknown option": lambda tt, m: tt.matmul(m.floats(64, 64), m.floats(64, 64), transpose=True),
    "matmul number": lambda tt, m: tt.matmul(m.floats(64, 64), 2.0),
    "linear bias width": lambda tt, m: tt.linear(m.floats(64, 128), m.floats(128, 96), bias=m.floats(1, 64)),
    "add shapes": lambda tt, m: tt.add(m.floats(2, 1, 64, 128), m.floats(2, 1, 64, 64)),
    "add text": lambda tt, m: tt.add(m.floats(64, 64), "1"),
    "add array": lambda tt, m: tt.add(m.floats(64, 64), np.zeros((64, 64), np.float32)),
    "eq mixed integers": lambda tt, m: tt.eq(m.ids(64, 1, layout="TILE_LAYOUT"), m.integers(1, 68)),
    "embedding integers": lambda tt, m: tt.embedding(m.integers(2, 64, layout=RM), m.floats(68, 128)),
    "embedding_bw width": lambda tt, m: tt.embedding_bw(
        m.ids(2, 48), m.floats(68, 128), m.floats(1, 1, 96, 128)
    ),
    "embedding_bw rank": lambda tt, m: tt.embedding_bw(
        m.ids(2, 64), m.floats(68, 128), m.floats(2, 1, 64, 128)
    ),
    "layer norm mean": lambda tt, m: tt.moreh_layer_norm(
        m.floats(2, 1, 64, 128),
        1,
        1e-5,
        m.floats(1, 128),
        m.floats(1, 128),
        mean=m.empty(2, 1, 64, 1),
        rstd=m.empty(2, 1, 64, 1),
    ),
    "layer norm backward scale": lambda tt, m: tt.moreh_layer_norm_backward(
        m.floats(2, 1, 64, 128),
        m.floats(2, 1, 64, 128),
        m.floats(2, 1, 64),
        m.floats(2, 1, 64),
        1,
        gamma=m.floats(1, 1, 1, 128),
        input_grad=m.empty(2, 1, 64, 128),
        gamma_grad=m.empty(1, 128),
        beta_grad=m.empty(1, 128),
    ),
    "gelu old option": lambda tt, m: tt.gelu(m.floats(64, 64), approximate="tanh"),
    "gelu_bw shapes": lambda tt, m: tt.gelu_bw(m.floats(64, 64), m.floats(64, 32)),
    "softmax backward negative": lambda tt, m: tt.moreh_softmax_backward(
        m.floats(64, 64), m.floats(64, 64), -1
    ),
    "logsoftmax negative": lambda tt, m: tt.moreh_logsoftmax(m.floats(64, 64), -1),
    "dropout seed": lambda tt, m: tt.experimental.dropout(
        m.floats(64, 64), probability=0.1, scale=1.0, seed=-1
    ),
    "dropout output shape": lambda tt, m: _drop_into(m, m.empty(2, 1, 128, 64)),
    "dropout output dtype": lambda tt, m: _drop_into(m, m.floats(2, 1, 64, 128, dtype=F)),
    "dropout output layout": lambda tt, m: _drop_into(m, m.floats(2, 1, 64, 128, layout=RM)),
    "split heads 3-D": lambda tt, m: tt.experimental.nlp_create_qkv_heads(m.floats(2, 64, 384), num_heads=4),
    "split heads positional": lambda tt, m: tt.experimental.nlp_create_qkv_heads(
        m.floats(2, 1, 64, 384), None, 4
    ),
    "reshape volume": lambda tt, m: tt.reshape(m.floats(2, 1, 64, 128), [2, 64, 100]),
    "transpose dimension": lambda tt, m: tt.transpose(m.floats(2, 64), 0, 2),
    "permute order": lambda tt, m: tt.permute(m.floats(2, 64, 32), (0, 1)),
    "concat shapes": lambda tt, m: tt.concat([m.floats(64, 128), m.floats(32, 128)], dim=1),
    "concat dtypes": lambda tt, m: tt.concat([m.floats(64, 64), m.floats(64, 64, dtype=F)], dim=1),
    "slice rank": lambda tt, m: tt.slice(m.floats(2, 1, 64, 128), [0, 0], [2, 1]),
    "slice beyond": lambda tt, m: tt.slice(m.floats(64, 128), [0, 0], [64, 160]),
    "sum dimension": lambda tt, m: tt.sum(m.floats(64, 128), dim=2),
    "all_reduce single chip axis": lambda tt, m: tt.all_reduce(m.floats(64, 128), cluster_axis=0),
    "tensor float16": lambda tt, m: tt.Tensor(np.zeros((2, 3), np.float16), tt.bfloat16),
    "tensor read-only": lambda tt, m: tt.Tensor(np.frombuffer(bytes(24), np.float32), tt.bfloat16),
    "tensor list": lambda tt, m: tt.Tensor([[1.0]], tt.bfloat16),
    "shard dimension": lambda tt, m: tt.Tensor(
        np.zeros((16, 3), np.float32), tt.float32, mesh_mapper=tt.shard_tensor_to_mesh_mapper(m.device, 5)
    ),
    "to_dtype on device": lambda tt, m: tt.to_dtype(m.floats(64, 64), tt.float32),
    "to_numpy without composer": lambda tt, m: m.floats(64, 64, dtype=F).cpu().to_numpy(),
    "shape slice": lambda tt, m: _sliced(m),
    "full without shape": lambda tt, m: tt.full(),
    "set fabric while open": lambda tt, m: tt.set_fabric_config(tt.FabricConfig.FABRIC_2D),
}


def _drop_chip_by_chip(make: Make) -> Any:
    ids = make.mesh.handle.sides[1].get_device_ids()
    assert list(ids) != sorted(ids), "the real ids of a LoudBox follow its wiring"
    make.mesh.chip_ids = tuple(ids)
    return drop(make.mesh, make.floats(8, 1, 64, 128, shard=0), 0.1, 2**32 - 3, own=True)


def _drop_into(make: Make, output: Any) -> Any:
    return make.tt.experimental.dropout(
        make.floats(2, 1, 64, 128), probability=0.1, scale=1 / 0.9, seed=5, output_tensor=output
    )


def _sliced(make: Make) -> Any:
    tensor = make.floats(64, 64)
    kinds = {type(_refusal(lambda side=side: side.shape[:-1])) for side in tensor.sides}
    assert kinds == {TypeError}
    raise TypeError("both refuse")


def _refusal(call: Callable[[], Any]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("name", ACCEPTED)
def test_both_accept_alike(mesh: Mesh, name: str) -> None:
    ACCEPTED[name](mesh.tt, Make(mesh))


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse(mesh: Mesh, name: str) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        REFUSED[name](mesh.tt, Make(mesh))
