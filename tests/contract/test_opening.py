"""Real ttnn opens meshes by our descriptors, and its refusals become one line that says what to do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mesh.descriptors.choose import PATH_VARIABLE, describe_line
from mesh.descriptors.cut import cut_mesh
from mesh.descriptors.read import format_textproto, read_descriptor
from mesh.descriptors.shape_check import MESH_ID_VARIABLE
from services.config.paths import REPOSITORY_ROOT
from services.sizing.flops import find_peak_flops
from tests.support.contract.mocked_board import missing_requirement, run_on_board
from tests.support.descriptors import describe_meshes

pytestmark = pytest.mark.skipif(missing_requirement() is not None, reason=missing_requirement() or "")

_UPSTREAM = [
    descriptor
    for above in REPOSITORY_ROOT.parents
    for descriptor in (above / "shared" / "upstream").glob(
        "*/**/hierarchical_parallel/**/5loudboxes/mgd.textproto"
    )
]


def _open(
    board: str,
    *meshes: str,
    folder: Path,
    descriptor: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[dict[str, Any]]:
    variables = {"XDG_CACHE_HOME": str(folder), **(environment or {})}
    if descriptor is not None:
        variables[PATH_VARIABLE] = str(descriptor)
    done = run_on_board(board, "-m", "tests.support.contract.open_on_board", *meshes, environment=variables)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _file(folder: Path, rows: int, columns: int, channels: int = 2) -> Path:
    path = folder / "configured.textproto"
    path.write_text(format_textproto(describe_line((rows, columns), channels)))
    return path


@pytest.mark.parametrize(("shape", "name"), [("1x8", "t3k_1x8"), ("8x1", "t3k_8x1")])
def test_a_line_of_8_opens_by_our_descriptor(shape: str, name: str, tmp_path: Path) -> None:
    (first, again) = _open("loudbox", shape, shape, folder=tmp_path)
    assert sorted(first["devices"]) == list(range(8))
    assert first["board"] == "t3k"
    assert find_peak_flops(first["arch"], first["cores"]) == 8 * 64 * 1.0e12
    assert Path(first["descriptor"]).name == f"{name}_mesh_graph_descriptor.textproto"
    assert read_descriptor(Path(first["descriptor"])).mesh_descriptors[0].name == "M0"
    assert again == first, "it opens again after closing"


@pytest.mark.long
def test_a_line_of_32_opens_by_our_descriptor(tmp_path: Path) -> None:
    (opened,) = _open("galaxy", "1x32", folder=tmp_path)
    assert sorted(opened["devices"]) == list(range(32))
    assert Path(opened["descriptor"]).name == "galaxy_1x32_mesh_graph_descriptor.textproto"


def test_a_line_of_8_blackhole_chips_opens_by_our_descriptor(tmp_path: Path) -> None:
    (opened,) = _open("p150_loudbox", "1x8", folder=tmp_path)
    assert sorted(opened["devices"]) == list(range(8))
    assert opened["board"] == "p150_x8"
    assert find_peak_flops(opened["arch"], opened["cores"]) == 8 * 120 * 1.35e12
    assert Path(opened["descriptor"]).name == "bh_lb_1x8_line_graph_descriptor.textproto"


def test_submeshes_share_out_the_rows_and_close_with_their_mesh(tmp_path: Path) -> None:
    divided, again = _open("loudbox", "8x1/4", "8x1", folder=tmp_path)
    assert [shape for shape, _ in divided["submeshes"]] == [[2, 1]] * 4
    assert [each for _, devices in divided["submeshes"] for each in devices] == divided["devices"]
    assert again["submeshes"] == []


def test_a_mesh_opens_on_the_chips_that_are_named(tmp_path: Path) -> None:
    one, mesh, unknown = _open("loudbox", "1x1@5", "2x4@7,6,5,4,3,2,1,0", "1x1@9", folder=tmp_path)
    assert one["devices"] == [5]
    assert mesh["devices"] == [7, 6, 5, 4, 3, 2, 1, 0]
    assert "device_ids names chip 9, but this host has 8" in unknown["error"]


@pytest.mark.long
def test_two_rows_open_by_the_descriptor_of_ttnn(tmp_path: Path) -> None:
    opened, other = _open("loudbox", "2x4", "1x8", folder=tmp_path)
    assert sorted(opened["devices"]) == list(range(8))
    assert opened["descriptor"] is None
    assert "one descriptor per process" in other["error"]


def _five_loudboxes(folder: Path) -> Path:
    path = folder / "five.textproto"
    path.write_text(format_textproto(describe_meshes(5)))
    return path


def _five_loudboxes_of_tt_train(_: Path) -> Path:
    if not _UPSTREAM:
        pytest.skip("tt-train's configuration folders are not beside the repository")
    return _UPSTREAM[-1]


@pytest.mark.long
@pytest.mark.parametrize("find", [_five_loudboxes, _five_loudboxes_of_tt_train])
def test_a_descriptor_of_five_hosts_is_refused_and_one_mesh_of_it_opens(
    tmp_path: Path, find: Callable[[Path], Path]
) -> None:
    whole, cut = find(tmp_path), tmp_path / "cut.textproto"
    cut.write_text(format_textproto(cut_mesh(read_descriptor(whole), 3, "five.textproto")))
    for mesh_id in ("0", "3"):
        ids = {MESH_ID_VARIABLE: mesh_id, "TT_MESH_HOST_RANK": "0"}
        (refused,) = _open("loudbox", "1x8", folder=tmp_path, descriptor=whole, environment=ids)
        assert "could not fit in the discovered physical topology" in refused["error"]
    (refused,) = _open("loudbox", "1x8", folder=tmp_path, descriptor=whole)
    assert "Multi-mesh-per-host systems are not supported" in refused["error"]
    ids = {MESH_ID_VARIABLE: "0", "TT_MESH_HOST_RANK": "0"}
    (opened,) = _open("loudbox", "1x8", folder=tmp_path, descriptor=cut, environment=ids)
    assert sorted(opened["devices"]) == list(range(8))


@pytest.mark.long
@pytest.mark.parametrize(
    ("boards", "shape", "devices"), [("0,1", "1x4", 4), ("3", "1x2", 2), ("4,5,6,7", "1x8", 8)]
)
def test_visible_devices_of_a_loudbox_are_its_boards_of_two_chips(
    tmp_path: Path, boards: str, shape: str, devices: int
) -> None:
    visible = {"TT_VISIBLE_DEVICES": boards}
    (opened,) = _open("loudbox", shape, folder=tmp_path, environment=visible)
    assert sorted(opened["devices"]) == list(range(devices))


def test_too_few_devices(tmp_path: Path) -> None:
    (refused,) = _open("loudbox", "4x4", folder=tmp_path)
    assert all(fact in refused["error"] for fact in ("16 devices", "this host has 8", "mesh_shape to [2, 4]"))
    assert "\n" not in refused["error"]


def test_a_descriptor_of_other_hardware(tmp_path: Path) -> None:
    (refused,) = _open("loudbox", "4x8", folder=tmp_path, descriptor=_file(tmp_path, 4, 8))
    assert "devices or links" in refused["error"]
    assert "`tt-topology -l mesh`" in refused["error"]


def test_only_some_of_the_devices(tmp_path: Path) -> None:
    refused, again = _open("loudbox", "1x4", "1x4", folder=tmp_path, descriptor=_file(tmp_path, 1, 4))
    assert "all devices of a host" in refused["error"]
    assert "restart this process" in again["error"]


def test_a_mesh_that_does_not_fit_never_reaches_ttnn(tmp_path: Path) -> None:
    refused, opened = _open("loudbox", "2x4", "1x8", folder=tmp_path, descriptor=_file(tmp_path, 1, 8))
    assert "device_topology [1, 8]" in refused["error"]
    assert sorted(opened["devices"]) == list(range(8))


@pytest.mark.long
def test_the_link_check_fails_on_mocked_chips(tmp_path: Path) -> None:
    arguments = ("-m", "cli.main", "check", "--mesh", "--backend", "ttnn", "--json")
    done = run_on_board("loudbox", *arguments, environment={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.returncode == 1, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["mesh_shape"], result["arch"], result["board"]) == ([2, 4], "wormhole_b0", "t3k")
    assert sorted(each for row in result["devices"] for each in row) == list(range(8))
    assert result["memory_bytes"] == 12 * 1_072_693_184
    assert [axis["passed"] for axis in result["axes"]] == [False, False]
    assert "at [0, 0] has 0, expected 6" in result["axes"][0]["wrong"][0]
    assert "mocked" in done.stderr.splitlines()[-1]
