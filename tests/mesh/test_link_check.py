"""The link check names devices with a wrong sum and draws the mesh."""

from __future__ import annotations

from typing import Any

import pytest

import mesh.link_check
from mesh.axes import Axes
from mesh.device import Mesh, detect_mesh_shape, open_mesh
from mesh.link_check import check_axis, draw_mesh, open_mesh_for_check, read_device_ids
from mesh.memory import read_chip_memory


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (2, 4), (8, 4), (1, 32)])
def test_working_links_pass(shape: tuple[int, int]) -> None:
    with open_mesh_for_check(shape, "emulator") as opened:
        checks = [check_axis(opened, axis) for axis, size in enumerate(shape) if size > 1]
    assert [check.wrong_sums for check in checks] == [()] * len(checks)
    assert [check.devices for check in checks] == [size for size in shape if size > 1]


def test_sums_are_exact_in_bfloat16() -> None:
    with open_mesh((1, 32), backend="emulator", dtype="bfloat16", axes=Axes(0, 1)) as opened:
        assert check_axis(opened, 1).passed


def test_a_wrong_sum_names_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_sum(opened: Mesh, tensor: Any, axis: int | None) -> Any:
        return tensor

    monkeypatch.setattr(mesh.link_check, "all_reduce", no_sum)
    with open_mesh_for_check((2, 4), "emulator") as opened:
        check = check_axis(opened, 0)
    assert not check.passed
    assert check.wrong_sums[0] == "device 0 at [0, 0] has 1, expected 6"
    assert len(check.wrong_sums) == 8


def test_the_drawing_shows_device_positions() -> None:
    assert draw_mesh([[4, 0, 2], [10, 11, 3]]) == [
        "    0    1    2",
        "0 [ 4]-[ 0]-[ 2]",
        "    |    |    |",
        "1 [10]-[11]-[ 3]",
        "axis 0: rows, down; axis 1: columns, to the right; [device id]",
    ]


def test_device_ids_are_listed_by_row() -> None:
    with open_mesh_for_check((2, 4), "emulator") as opened:
        assert read_device_ids(opened) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_memory_of_a_chip() -> None:
    with open_mesh((1, 1), backend="emulator") as opened:
        before = read_chip_memory(opened)
        tensor = opened.tt.ones(
            [64, 64], dtype=opened.tt.float32, layout=opened.tt.TILE_LAYOUT, device=opened.handle
        )
        assert read_chip_memory(opened).allocated_bytes >= before.allocated_bytes + 64 * 64 * 4
        del tensor
        assert read_chip_memory(opened) == before


def test_the_emulator_detects_one_chip() -> None:
    assert detect_mesh_shape("emulator") == (1, 1)
