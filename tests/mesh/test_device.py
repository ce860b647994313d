from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from mesh.axes import Axes
from mesh.backend import drives_chips, has_device, load_device_module
from mesh.descriptors.choose import PATH_VARIABLE, describe_line
from mesh.descriptors.read import format_textproto
from mesh.device import Mesh, is_mesh_of_host, open_mesh
from mesh.fingerprint import compute_fingerprint
from mesh.placement import over_data
from mesh.transfer import download, upload
from services.errors import Failed, Refused


@pytest.mark.parametrize(
    "wrong", [{"data": 2}, {"data": 0, "tensor": 0}, {"tensor": 0, "shard_parameters": True}]
)
def test_impossible_axes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"axis|axes"):
        Axes(**wrong)


def test_sizes_of_axes(open_emulator: Callable[..., Mesh]) -> None:
    mesh = open_emulator((2, 4), axes=Axes(data=1, tensor=0))
    assert (mesh.data_size, mesh.tensor_size) == (4, 2)
    mesh = open_emulator()
    assert (mesh.data_size, mesh.tensor_size) == (1, 1)


def test_submeshes_share_out_rows_and_close_with_their_mesh(open_emulator: Callable[..., Mesh]) -> None:
    whole = open_emulator((4, 2))
    submeshes = whole.split(2, Axes(tensor=1))
    assert [each.shape for each in submeshes] == [(2, 2), (2, 2)]
    assert [each.tensor_size for each in submeshes] == [2, 2]
    assert compute_fingerprint(submeshes[0]) == compute_fingerprint(submeshes[1])
    kept = [make_tile(each) for each in submeshes]
    with pytest.raises(RuntimeError, match="not divided yet"):
        whole.split(4, Axes())
    whole.close()
    for each, tile in zip(submeshes, kept, strict=True):
        with pytest.raises(Failed, match="is closed"):
            _ = each.handle
        with pytest.raises(RuntimeError, match="closed"):
            each.tt.add(tile, tile)


def test_which_mesh_a_host_is_known_to_have(
    ttnn_environment: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert is_mesh_of_host((16, 64), "emulator") and not is_mesh_of_host((17, 64), "emulator")
    assert not is_mesh_of_host((8, 1), "ttnn"), "nothing says so, and ttnn is not loaded to ask it"
    path = tmp_path / "board.textproto"
    path.write_text(format_textproto(describe_line((8, 1), 2)))
    monkeypatch.setenv(PATH_VARIABLE, str(path))
    assert is_mesh_of_host((8, 1), "ttnn") and not is_mesh_of_host((4, 2), "ttnn")


def test_the_fullest_submesh_is_what_its_mesh_has_allocated(open_emulator: Callable[..., Mesh]) -> None:
    whole = open_emulator((2, 1))
    first, second = whole.split(2, Axes())
    kept = [make_tile(first), make_tile(second), make_tile(second)]
    counted = [each.handle.memory.live_bytes for each in (whole, first, second)]
    assert counted[0] == counted[2] == 2 * counted[1] > 0
    del kept[2:], kept[:1]
    assert whole.handle.memory.live_bytes == counted[1]
    assert whole.handle.memory.peak_bytes == counted[2]


def make_tile(mesh: Mesh) -> Any:
    tt = mesh.tt
    return upload(mesh, np.ones((1, 1, 32, 32), np.float32), dtype=mesh.dtype, layout=tt.TILE_LAYOUT)


def test_one_mesh_at_a_time(open_emulator: Callable[..., Mesh]) -> None:
    first = open_emulator((1, 8))
    with pytest.raises(Failed, match=r"mesh of \[1, 8\] open"):
        open_mesh((1, 1), backend="emulator")
    first.close()
    first.close()
    with open_mesh((1, 1), backend="emulator") as second:
        assert second.axes.data is None
        assert second.dtype is second.tt.float32


def test_a_mesh_closes_after_an_error() -> None:
    with pytest.raises(KeyError), open_mesh((1, 1), backend="emulator"):
        raise KeyError
    open_mesh((1, 1), backend="emulator").close()


class FakeModule:
    """Device module that records its calls, and fails at one of them."""

    __name__ = "ttnn"
    bfloat16 = "bfloat16"

    class FabricConfig:
        FABRIC_1D, DISABLED = "links up", "links down"

    def __init__(self, fails: str = "") -> None:
        self.calls: list[str] = []
        self._fails = fails

    def _record(self, call: str) -> None:
        self.calls.append(call)
        if call == self._fails:
            raise RuntimeError(f"TT_FATAL @ x.cpp:1: a\ninfo:\n{call} failed\nbacktrace:\n --- x")

    def MeshShape(self, rows: int, columns: int) -> tuple[int, int]:
        return rows, columns

    def set_fabric_config(self, config: str) -> None:
        self._record(config)

    def open_mesh_device(self, shape: tuple[int, int], physical_device_ids: Sequence[int] = ()) -> FakeModule:
        self._record(" ".join(["open", *map(str, physical_device_ids)]))
        return self

    def arch(self) -> str:
        return "Arch.WORMHOLE_B0"

    def get_device_ids(self) -> list[int]:
        return [0]

    def synchronize_device(self, handle: object) -> None:
        self._record("wait")

    def close_mesh_device(self, handle: object) -> None:
        self._record("close")


def test_a_mesh_is_closed_in_order() -> None:
    module = FakeModule()
    open_mesh((1, 8), module=module).close()
    assert module.calls == ["links up", "open", "wait", "close", "links down"]


def test_a_mesh_is_opened_on_the_chips_that_are_named() -> None:
    module = FakeModule()
    open_mesh((1, 2), module=module, device_ids=(3, 1)).close()
    assert module.calls[1] == "open 3 1"


@pytest.mark.parametrize("fails", ["wait", "close"])
def test_a_failing_device_is_still_closed(fails: str) -> None:
    module = FakeModule(fails)
    mesh = open_mesh((1, 8), module=module)
    with pytest.raises(RuntimeError, match=f"{fails} failed"):
        mesh.close()
    assert module.calls[-3:] == ["wait", "close", "links down"]
    open_mesh((1, 8), module=FakeModule()).close()


@pytest.mark.parametrize("fails", ["open", "links up"])
def test_a_failed_open_says_why_and_disables_the_fabric(fails: str) -> None:
    module = FakeModule(fails)
    with pytest.raises(Failed, match=r"mesh_shape: \[1, 8\].* failed.*tt-smi -r"):
        open_mesh((1, 8), module=module)
    assert module.calls[-1] == "links down"
    open_mesh((1, 8), module=FakeModule()).close()


def test_a_closed_mesh_has_no_handle() -> None:
    mesh = open_mesh((1, 1), backend="emulator")
    mesh.close()
    with pytest.raises(Failed, match=r"mesh \[1, 1\].*closed.*open_mesh"):
        _ = mesh.handle


def test_impossible_values_are_refused() -> None:
    with pytest.raises(Refused, match=r"device_config\.backend: 'cuda'.*auto, ttnn, emulator"):
        open_mesh((1, 1), backend="cuda")
    with pytest.raises(Refused, match=r"device_config\.dtype: 'float16'"):
        open_mesh((1, 1), backend="emulator", dtype="float16")
    with pytest.raises(Refused, match="can't be emulated"):
        open_mesh((1, 100_000), backend="emulator")
    with pytest.raises(Refused, match=r"mesh_shape: \[0, 8\]"):
        open_mesh((0, 8), backend="emulator")
    open_mesh((1, 1), backend="emulator").close()


def test_without_a_device_auto_is_the_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TT_METAL_SIMULATOR", raising=False)
    assert not has_device(tmp_path / "none")
    assert load_device_module("auto", device_folder=tmp_path / "none").__name__ == "mesh.emulator"


@pytest.mark.skipif(find_spec("ttnn") is None, reason="ttnn has no wheel for this Python")
@pytest.mark.usefixtures("ttnn_environment")
def test_with_a_device_auto_is_ttnn(tmp_path: Path) -> None:
    imported: list[str] = []
    load_device_module("auto", import_module=imported.append, device_folder=tmp_path)
    assert imported == ["ttnn"]


@pytest.mark.usefixtures("ttnn_environment")
def test_ttnn_that_cannot_be_imported_is_refused() -> None:
    def fail(name: str) -> None:
        raise ImportError(f"no module {name}")

    with pytest.raises(Refused, match=r"device_config\.backend.*no module ttnn.*emulator"):
        load_device_module("ttnn", import_module=fail)


def test_the_emulator_needs_nothing_of_ttnn() -> None:
    code = "import sys, mesh.emulator; assert not {'ttnn', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_blas_has_one_thread(one_chip: Mesh) -> None:
    assert {one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas"} == {1}


def test_fingerprint(open_emulator: Callable[..., Mesh]) -> None:
    facts = compute_fingerprint(open_emulator())
    assert facts["backend"] == "emulator"
    assert facts["numpy"] == np.__version__
    assert facts["threads"] == "1"
    assert all(isinstance(value, str) and value for value in facts.values())
    other = compute_fingerprint(open_emulator((1, 8), "bfloat16"))
    assert {name for name in facts if facts[name] != other[name]} == {"mesh_shape", "dtype"}


def test_transfer_round_trips(loudbox: Mesh, numbers: np.random.Generator) -> None:
    tt = loudbox.tt
    x = numbers.standard_normal((16, 3)).astype(np.float32)
    x.setflags(write=False)
    sharded = upload(loudbox, x, dtype=tt.float32, layout=tt.TILE_LAYOUT, placements=over_data(0))
    assert sharded.shape == (2, 3)
    assert np.array_equal(download(loudbox, sharded, over_data(0)), x)
    strided = upload(loudbox, x.T, dtype=tt.float32, layout=tt.TILE_LAYOUT, placements=over_data(1))
    assert np.array_equal(download(loudbox, strided, over_data(1)), x.T)
    replicated = upload(loudbox, x, dtype=tt.float32, layout=tt.TILE_LAYOUT)
    read = download(loudbox, replicated)
    assert np.array_equal(read, x)
    assert read.flags.writeable
    ids = upload(loudbox, np.arange(16, dtype=np.uint32), dtype=tt.uint32, layout=tt.ROW_MAJOR_LAYOUT)
    assert download(loudbox, ids).dtype == np.uint32


def test_transfer_without_a_data_axis(one_chip: Mesh) -> None:
    tt = one_chip.tt
    x = np.ones((3, 2), np.float32)
    made = upload(one_chip, x, dtype=tt.bfloat16, layout=tt.TILE_LAYOUT, placements=over_data(0))
    assert made.shape == (3, 2)
    assert download(one_chip, made, over_data(0)).dtype == np.float32


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (np.ones(8), "float32", "float64"),
        (np.ones(8, np.int64), "uint32", "int64"),
        (np.ones(8, np.uint16), "bfloat16", "uint16"),
        (np.ones(8, np.uint32), "bfloat16", "convert it"),
        (np.ones(8, np.float32), "int32", "convert it"),
        (np.ones(12, np.float32), "float32", r"\[12\] can't be split over 8 devices"),
    ],
)
def test_arrays_that_are_refused(loudbox: Mesh, array: np.ndarray, dtype: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        upload(
            loudbox,
            array,
            dtype=getattr(loudbox.tt, dtype),
            layout=loudbox.tt.TILE_LAYOUT,
            placements=over_data(0),
        )


@pytest.mark.parametrize(
    ("backend", "has_chips", "expected"),
    [
        ("auto", True, True),
        ("auto", False, False),
        ("ttnn", True, True),
        ("ttnn", False, True),
        ("emulator", True, False),
        ("emulator", False, False),
    ],
)
def test_whether_a_job_drives_chips_follows_from_backend_and_host(
    backend: str, has_chips: bool, expected: bool
) -> None:
    assert drives_chips(backend, has_chips=has_chips) is expected
