from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.transfer import download
from tests.support.emulated import tensor


def test_the_array_is_copied(one_chip: Mesh) -> None:
    values = np.ones((2, 2), np.float32)
    made = tt.Tensor(values, tt.float32, device=one_chip.handle, layout=tt.TILE_LAYOUT)
    values[0, 0] = 7
    read = download(one_chip, made)
    assert read[0, 0] == 1
    read[0, 0] = 9
    assert download(one_chip, made)[0, 0] == 1


@pytest.mark.parametrize(
    "array",
    [
        np.ones(2),
        np.ones(2, np.float16),
        np.ones(2, np.int64),
        np.frombuffer(bytes(8), np.float32),
        [[1.0]],
        1.0,
    ],
)
def test_arrays_that_ttnn_refuses_or_misreads_are_refused(array: object) -> None:
    with pytest.raises(TypeError):
        tt.Tensor(array, tt.float32)


def test_bfloat16_needs_a_cast_before_to_numpy(open_emulator: Callable[..., Mesh]) -> None:
    mesh = open_emulator(dtype="bfloat16")
    host = tensor(mesh, np.ones((2, 2))).cpu()
    with pytest.raises(RuntimeError, match="to_dtype"):
        host.to_numpy()
    assert tt.to_dtype(host, tt.float32).to_numpy().tolist() == [[1, 1], [1, 1]]


def test_freeing_frees_every_view(one_chip: Mesh) -> None:
    x = tensor(one_chip, np.ones((2, 32)))
    view = tt.reshape(x, [1, 2, 32])
    tt.deallocate(view)
    assert not x.is_allocated()
    assert x.shape == (2, 32)
    for freed in (x, view):
        with pytest.raises(RuntimeError, match="deallocated"):
            tt.neg(freed)


def test_freeing_without_force_keeps_views(one_chip: Mesh) -> None:
    x = tensor(one_chip, np.ones((2, 32)))
    view = tt.reshape(x, [1, 2, 32])
    tt.deallocate(x, force=False)
    assert view.is_allocated()
    del view
    tt.deallocate(x, force=False)
    assert not x.is_allocated()


def test_host_tensors_are_refused_by_ops(one_chip: Mesh) -> None:
    host = tensor(one_chip, np.ones((2, 32))).cpu()
    assert host.storage_type() is tt.StorageType.HOST
    for op in (tt.neg, tt.gelu, tt.exp, lambda x: tt.add(x, x)):
        with pytest.raises(RuntimeError, match="on the host"):
            op(host)


def test_tensors_of_a_closed_mesh_are_refused(open_emulator: Callable[..., Mesh]) -> None:
    mesh = open_emulator()
    x = tensor(mesh, np.ones((2, 32)))
    mesh.close()
    with pytest.raises(RuntimeError, match="closed"):
        tt.neg(x)


def test_a_distributed_tensor_needs_a_composer(loudbox: Mesh) -> None:
    x = np.arange(32, dtype=np.float32).reshape(16, 2)
    sharded = tensor(loudbox, x, shard=0)
    with pytest.raises(RuntimeError, match="composer"):
        sharded.cpu().to_numpy()
    composer = tt.concat_mesh_to_tensor_composer(loudbox.handle, 0)
    assert np.array_equal(sharded.cpu().to_numpy(composer), x)
    chips = tt.get_device_tensors(sharded)
    assert len(chips) == 8
    assert np.array_equal(chips[3].to_numpy(), x[6:8])
    replicated = tensor(loudbox, x).cpu().to_numpy(composer)
    assert replicated.shape == (128, 2)


def test_two_axes_shard_two_dimensions() -> None:
    device = tt.open_mesh_device(tt.MeshShape(2, 4))
    try:
        x = np.arange(4 * 8, dtype=np.float32).reshape(4, 8)
        config = tt.MeshMapperConfig([tt.PlacementShard(1), tt.PlacementShard(0)])
        made = tt.Tensor(x, tt.float32, device=device, mesh_mapper=tt.create_mesh_mapper(device, config))
        assert made.shape == (1, 4)
        composer = tt.create_mesh_composer(device, tt.MeshComposerConfig([1, 0]))
        assert np.array_equal(made.to_numpy(composer), x)
        assert np.array_equal(tt.get_device_tensors(made)[4 + 2].to_numpy(), x[2:3, 4:])
        flat = tt.Tensor(x, tt.float32, device=device, mesh_mapper=tt.shard_tensor_to_mesh_mapper(device, 1))
        assert np.array_equal(tt.get_device_tensors(flat)[6].to_numpy(), x[:, 6:7])
        twice = tt.MeshMapperConfig([tt.PlacementShard(0), tt.PlacementShard(-2)])
        with pytest.raises(RuntimeError, match="unique"):
            tt.Tensor(x, tt.float32, device=device, mesh_mapper=tt.create_mesh_mapper(device, twice))
        with pytest.raises(RuntimeError, match="1 placements"):
            tt.create_mesh_mapper(device, tt.MeshMapperConfig([tt.PlacementShard(0)]))
    finally:
        tt.close_mesh_device(device)


@pytest.mark.parametrize("rows", [4, 12])
def test_dimensions_that_the_chips_do_not_divide_are_refused(loudbox: Mesh, rows: int) -> None:
    mapper = tt.shard_tensor_to_mesh_mapper(loudbox.handle, 0)
    with pytest.raises(RuntimeError, match="not divisible"):
        tt.Tensor(np.ones((rows, 2), np.float32), tt.float32, mesh_mapper=mapper)
