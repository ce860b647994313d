from __future__ import annotations

import numpy as np
import pytest

import mesh.emulator as tt
from mesh.device import Mesh
from mesh.emulator.memory import count_bank_bytes
from mesh.transfer import download
from tests.support.emulated import tensor


def read_allocated_bytes(mesh: Mesh) -> int:
    view = tt.get_memory_view(mesh.handle, tt.BufferType.DRAM)
    assert view.total_bytes_allocated_per_bank + view.total_bytes_free_per_bank == view.total_bytes_per_bank
    return view.total_bytes_allocated_per_bank


@pytest.mark.parametrize(
    ("shape", "element_bytes", "tiled", "expected"),
    [
        ((1024, 1024), 4, True, 86 * 4096),  # As the real allocator.
        ((1,), 2, True, 2048),
        ((), 4, True, 4096),
        ((2, 1, 33, 65), 2, True, 2048),  # 12 tiles
        ((2, 1, 33, 97), 2, True, 2 * 2048),  # 16 tiles
        ((13, 3), 4, False, 2 * 32),
    ],
)
def test_bytes_are_those_of_a_wormhole_chip(
    shape: tuple[int, ...], element_bytes: int, tiled: bool, expected: int
) -> None:
    assert count_bank_bytes(shape, element_bytes, tiled) == expected


def test_live_tensors_are_counted(loudbox: Mesh) -> None:
    assert read_allocated_bytes(loudbox) == 0
    x = tensor(loudbox, np.ones((1, 1, 8 * 32, 64)), shard=2)  # two tiles on each chip
    assert read_allocated_bytes(loudbox) == 4096
    view, moved = tt.reshape(x, [32, 64]), tt.transpose(x, 2, 3)
    assert read_allocated_bytes(loudbox) == 2 * 4096  # a view has no memory of its own
    host = moved.cpu()
    download(loudbox, x)
    assert read_allocated_bytes(loudbox) == 2 * 4096
    del moved, host, x
    assert read_allocated_bytes(loudbox) == 4096
    tt.deallocate(view)
    assert read_allocated_bytes(loudbox) == 0
    del view
    assert read_allocated_bytes(loudbox) == 0


def test_the_peak_counts_tensors_alive_at_once(one_chip: Mesh) -> None:
    memory = one_chip.handle.memory
    x = tensor(one_chip, np.ones((32, 32)))
    for _ in range(5):
        tt.add(x, 1.0)
    assert memory.peak_bank_bytes == 2 * 4096
    kept = [tt.add(x, 1.0) for _ in range(5)]
    assert memory.peak_bank_bytes == memory.bank_bytes == 6 * 4096
    kept.clear()
    memory.reset_peak()
    assert memory.peak_bytes == memory.live_bytes == 12 * 4096


def test_refuses_other_memories(one_chip: Mesh) -> None:
    with pytest.raises(RuntimeError, match="DRAM only"):
        tt.get_memory_view(one_chip.handle, tt.BufferType.L1)


def test_a_reshape_that_moves_elements_in_tiles_has_its_own_memory(one_chip: Mesh) -> None:
    memory = one_chip.handle.memory
    x = tensor(one_chip, np.ones((1, 1, 32, 64)))
    view = tt.reshape(x, [1, 1, 1, 32, 64])
    assert memory.bank_bytes == 4096
    heads = tt.reshape(x, [1, 32, 4, 16])  # 32 tiles with 4 x 16 elements each
    assert memory.bank_bytes == 4096 + 3 * 4096
    del heads, view


def test_memory_that_an_op_needs_in_between_is_in_the_peak(one_chip: Mesh) -> None:
    memory = one_chip.handle.memory
    x = tensor(one_chip, np.ones((32, 32)))
    (result,) = tt.silu_bw(x, x)
    assert memory.peak_bank_bytes == 7 * 4096, "operand, result, and five more"
    assert memory.bank_bytes == 2 * 4096
    del result


def test_chips_need_memory_to_add_up(loudbox: Mesh) -> None:
    memory = loudbox.handle.memory
    x = tensor(loudbox, np.ones((1, 1, 96, 32 * 32)))  # 96 tiles, 8 in each bank
    total = tt.all_reduce(x, cluster_axis=loudbox.axes.data)
    assert memory.bank_bytes == 2 * 8 * 4096
    assert memory.peak_bank_bytes == (3 * 8 + 1) * 4096, "the operand twice more, and the shard of the sum"
    del total
