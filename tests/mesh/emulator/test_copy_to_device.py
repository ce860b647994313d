from __future__ import annotations

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.placement import over_data
from mesh.transfer import download
from tests.support.emulated import tensor


def make_host_tensor(shape: tuple[int, ...], dtype: tt.DataType = tt.float32, **options: object) -> tt.Tensor:
    return tt.Tensor(np.ones(shape, np.float32), dtype, layout=tt.TILE_LAYOUT, **options)


def test_values_are_replaced_in_the_same_buffer(loudbox: Mesh) -> None:
    x = tensor(loudbox, np.zeros((16, 3)), shard=0)
    buffer, bank_bytes = id(x.buffer), loudbox.handle.memory.bank_bytes
    values = np.arange(48, dtype=np.float32).reshape(16, 3)
    mapper = tt.shard_tensor_to_mesh_mapper(loudbox.handle, 0)
    source = tt.Tensor(values, tt.float32, layout=tt.TILE_LAYOUT, mesh_mapper=mapper)
    tt.copy_host_to_device_tensor(source, x)
    assert np.array_equal(download(loudbox, x, over_data(0)), values)
    assert id(x.buffer) == buffer
    assert loudbox.handle.memory.bank_bytes == bank_bytes
    tt.copy_host_to_device_tensor(make_host_tensor((2, 3)), x)  # The same values on each chip.
    assert np.array_equal(download(loudbox, x), np.ones((2, 3)))


def test_refusals(one_chip: Mesh) -> None:
    x = tensor(one_chip, np.zeros((2, 3)))
    for source, message in [
        (x, "Expected Tensor with HostStorage"),
        (make_host_tensor((2, 3), tt.bfloat16), "different dtype"),
        (make_host_tensor((3, 3)), "output of shape"),
        (tt.to_layout(make_host_tensor((2, 3)), tt.ROW_MAJOR_LAYOUT), "different page config"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            tt.copy_host_to_device_tensor(source, x)
    with pytest.raises(RuntimeError, match="on the host"):
        tt.copy_host_to_device_tensor(make_host_tensor((2, 3)), x.cpu())
