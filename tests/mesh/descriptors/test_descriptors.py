"""Mesh graph descriptors are read, converted, chosen, and held against a job's mesh before anything is opened."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import mesh.backend
from mesh.descriptors.choose import FOLDER, HOME, VARIABLE, choose_descriptor, hold_given
from mesh.descriptors.mesh_graph_pb2 import RELAXED, STRICT, WORMHOLE_B0, TorusTopology
from mesh.descriptors.read import parsed, read_descriptor, written
from mesh.descriptors.shape_check import MESH_ID, hold_shape, local_shape
from services.errors import Failed, Refused

ROOT = Path(__file__).resolve().parents[3]

LINE = """
mesh_descriptors {
  name: "M0"  arch: WORMHOLE_B0
  device_topology { dims: [ 1, 8 ] }
  host_topology { dims: [ 1, 1 ] }
  channels { count: 2 policy: RELAXED }
}
top_level_instance { mesh { mesh_descriptor: "M0" mesh_id: 0 } }
"""
GRAPH = """
mesh_descriptors {
  name: "BOX"  arch: BLACKHOLE
  device_topology { dims: [ 4, 8 ] dim_types: [ LINE, RING ] }
  host_topology { dims: [ 2, 1 ] }
  channels { count: 2 }
}
mesh_descriptors {
  name: "CHIP"  arch: BLACKHOLE
  device_topology { dims: [ 1, 1 ] }
  host_topology { dims: [ 1, 1 ] }
}
graph_descriptors {
  name: "G0"  type: "FABRIC"
  instances { mesh { mesh_descriptor: "BOX" mesh_id: 0 } }
  instances { mesh { mesh_descriptor: "CHIP" mesh_id: 1 } }
  connections {
    nodes { mesh { mesh_descriptor: "BOX" mesh_id: 0 device_id: 3 } }
    nodes { mesh { mesh_descriptor: "CHIP" mesh_id: 1 } }
    channels { count: 2 policy: STRICT }
    routing_direction: [ N, E ]
  }
}
top_level_instance { graph { graph_descriptor: "G0" graph_id: 0 } }
pinnings { logical_fabric_node_id { mesh_id: 0 chip_id: 0 } }
"""
OLDER = """
ChipSpec: {arch: wormhole_b0, ethernet_ports: {N: 2, E: 2, S: 2, W: 2}}
Board: [{name: lbox, type: Mesh, topology: [1, 8]}]
Mesh:
- {id: 0, board: lbox, device_topology: [1, 8], host_topology: [1, 1]}
- {id: 2, board: lbox, device_topology: [1, 8], host_topology: [1, 1]}
RelaxedGraph: [[M0, M2, 3]]
"""


def _file(folder: Path, text: str, name: str = "mgd.textproto") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# ---- reading ----


def test_generated_module_is_up_to_date(tmp_path: Path) -> None:
    source = "mesh/descriptors/mesh_graph.proto"
    options = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I.", *options, source], cwd=ROOT, check=True)
    made = {path.name: path.read_text() for path in (tmp_path / "mesh" / "descriptors").iterdir()}
    for name, text in made.items():
        assert (ROOT / "mesh" / "descriptors" / name).read_text() == text, f"{name}: run `make protos`"


def test_a_descriptor_says_what_is_linked(tmp_path: Path) -> None:
    descriptor = read_descriptor(_file(tmp_path, GRAPH))
    box = descriptor.mesh_descriptors[0]
    assert list(box.device_topology.dims) == [4, 8]
    assert list(box.device_topology.dim_types) == [TorusTopology.LINE, TorusTopology.RING]
    (link,) = descriptor.graph_descriptors[0].connections
    assert [node.mesh.mesh_descriptor for node in link.nodes] == ["BOX", "CHIP"]
    assert (link.channels.count, link.channels.policy) == (2, STRICT)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    descriptor = read_descriptor(_file(tmp_path, GRAPH))
    assert parsed(written(descriptor), "text") == descriptor


@pytest.mark.skipif(find_spec("ttnn") is None, reason="ttnn has no wheel for this Python")
def test_all_descriptors_that_ttnn_has_are_read() -> None:
    spec = find_spec("ttnn")
    assert spec is not None and spec.submodule_search_locations is not None
    folder = Path(next(iter(spec.submodule_search_locations)), "tt_metal/fabric/mesh_graph_descriptors")
    files = sorted(folder.glob("*.textproto"))
    assert len(files) > 10
    shapes = {
        path.name: list(read_descriptor(path).mesh_descriptors[0].device_topology.dims) for path in files
    }
    assert shapes["t3k_mesh_graph_descriptor.textproto"] == [2, 4]
    assert shapes["single_galaxy_mesh_graph_descriptor.textproto"] == [8, 4]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("arch: WORMHOLE_B0", ""), "mesh_descriptors 'M0': arch is missing; expected WORMHOLE_B0"),
        (("arch: WORMHOLE_B0", "arch: GRAYSKULL"), "line 3: .*no value named GRAYSKULL"),
        (('name: "M0"', ""), "mesh_descriptors '': name is missing"),
        (("dims: [ 1, 8 ]", ""), r"device_topology.dims: \[\], expected"),
        (("dims: [ 1, 8 ]", "dims: [ 1, 8 ] dim_types: [ RING ]"), "dim_types: 1 of them for 2 dims"),
        (("host_topology { dims: [ 1, 1 ] }", ""), r"host_topology.dims: \[\], expected"),
        (("host_topology { dims: [ 1, 1 ] }", "host_topology { dims: [ 1, 3 ] }"), "can't share"),
        (("count: 2", ""), "channels.count: 0, expected"),
        (("top_level_instance", "something_else"), "has no top_level_instance"),
        (('mesh_descriptor: "M0"', 'mesh_descriptor: "M1"'), "mesh_descriptor: 'M1', expected one of M0"),
        (("mesh_descriptors", "boards"), "has no mesh_descriptors"),
        (("}", ""), "expected protobuf text"),
    ],
)
def test_what_a_descriptor_lacks_is_said(wrong: tuple[str, str], words: str, tmp_path: Path) -> None:
    path = _file(tmp_path, LINE.replace(*wrong))
    with pytest.raises(Refused, match=words) as refused:
        read_descriptor(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (('type: "FABRIC"', ""), "graph_descriptors 'G0': type is missing"),
        (("instances { mesh", "not_instances { mesh"), "has no instances"),
        (('mesh { mesh_descriptor: "CHIP" mesh_id: 1 } }\n  conn', "graph {} }\n  conn"), "two kinds"),
        (
            ("connections {", "graph_topology { layout_type: RING channels { count: 1 } } connections {"),
            "both",
        ),
        (("connections {", "connections { channels { count: 1 } } connections {"), "of 0 nodes, expected 2"),
        (('graph_descriptor: "G0"', 'graph_descriptor: "G1"'), "graph_descriptor: 'G1', expected one of G0"),
    ],
)
def test_what_a_graph_lacks_is_said(wrong: tuple[str, str], words: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=words):
        read_descriptor(_file(tmp_path, GRAPH.replace(*wrong)))


def test_files_that_cannot_be_descriptors(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="No such file"):
        read_descriptor(tmp_path / "none.textproto")
    with pytest.raises(Refused, match="larger than 1048576 bytes"):
        read_descriptor(_file(tmp_path, " " * (1 << 21)))
    (tmp_path / "bytes.textproto").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match="is not text"):
        read_descriptor(tmp_path / "bytes.textproto")


# ---- the older format ----


def test_the_older_format_is_converted(tmp_path: Path) -> None:
    descriptor = read_descriptor(_file(tmp_path, OLDER, "mgd.yaml"))
    assert [mesh.name for mesh in descriptor.mesh_descriptors] == ["M0", "M2"]
    mesh = descriptor.mesh_descriptors[0]
    assert mesh.arch == WORMHOLE_B0
    assert (mesh.channels.count, mesh.channels.policy) == (2, STRICT)
    assert (list(mesh.device_topology.dims), list(mesh.host_topology.dims)) == ([1, 8], [1, 1])
    (link,) = descriptor.graph_descriptors[0].connections
    assert [node.mesh.mesh_id for node in link.nodes] == [0, 2]
    assert (link.channels.count, link.channels.policy) == (3, RELAXED)
    assert descriptor.top_level_instance.graph.graph_descriptor == "G0"


def test_ports_of_the_older_format_are_counted_once_for_both_directions(tmp_path: Path) -> None:
    ports = "Graph: [[[0, E0], [2, W0]], [[0, E1], [2, W1]], [[2, W0], [0, E0]], [[2, W1], [0, E1]]]"
    text = OLDER.replace("RelaxedGraph: [[M0, M2, 3]]", ports)
    (link,) = read_descriptor(_file(tmp_path, text, "mgd.yaml")).graph_descriptors[0].connections
    assert (link.channels.count, link.channels.policy) == (2, STRICT)


def test_one_mesh_of_the_older_format_needs_no_graph(tmp_path: Path) -> None:
    text = OLDER.replace("- {id: 2, board: lbox, device_topology: [1, 8], host_topology: [1, 1]}", "")
    text = text.replace("RelaxedGraph: [[M0, M2, 3]]", "Graph: []").replace("type: Mesh", "type: Torus")
    descriptor = read_descriptor(_file(tmp_path, text, "mgd.yml"))
    assert descriptor.top_level_instance.mesh.mesh_descriptor == "M0"
    assert list(descriptor.mesh_descriptors[0].device_topology.dim_types) == [TorusTopology.RING] * 2


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("arch: wormhole_b0", "arch: grayskull"), "ChipSpec.arch: 'grayskull', expected one of wormhole_b0"),
        (("ChipSpec", "Chips"), "the file: ChipSpec is missing, expected a mapping"),
        (("board: lbox", "board: other"), r"Mesh\[0\].board: 'other', expected one of lbox"),
        (("device_topology: [1, 8]", "device_topology: [8]"), r"Mesh\[0\].device_topology: \[8\], expected"),
        (("id: 0", "id: zero"), r"Mesh\[0\]: id is 'zero', expected a number"),
        (("[M0, M2, 3]", "[M0, M7, 3]"), "mesh 'M7' is linked, but Mesh has only M0, M2"),
        (("[M0, M2, 3]", "[M0, M2]"), "RelaxedGraph: .*expected"),
        (("Mesh:\n", "Mesh: [\n"), "not YAML"),
    ],
)
def test_what_is_wrong_with_an_older_file_is_said(wrong: tuple[str, str], words: str, tmp_path: Path) -> None:
    path = _file(tmp_path, OLDER.replace(*wrong), "mgd.yaml")
    with pytest.raises(Refused, match=words):
        read_descriptor(path)


# ---- whether a mesh fits ----


def test_a_mesh_that_fits(tmp_path: Path) -> None:
    path = _file(tmp_path, LINE)
    hold_shape(read_descriptor(path), path, (1, 8), {})
    hold_shape(read_descriptor(path), path, (1, 1), {})


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (
            (1, 4),
            r"mesh_shape: \[1, 4\] \(4 devices\), but .* has device_topology \[1, 8\]; .*set mesh_shape: \[1, 8\]",
        ),
        ((2, 4), r"mesh_shape: \[2, 4\] .*TT_MESH_GRAPH_DESC_PATH to a descriptor of \[2, 4\]"),
        ((8, 1), r"rows and columns the other way round, device_topology \[1, 8\]; set mesh_shape: \[1, 8\]"),
    ],
)
def test_a_mesh_that_does_not_fit(shape: tuple[int, int], words: str, tmp_path: Path) -> None:
    path = _file(tmp_path, LINE)
    with pytest.raises(Refused, match=words):
        hold_given(shape, {VARIABLE: str(path)})


def test_the_mesh_of_this_host_among_several(tmp_path: Path) -> None:
    path = _file(tmp_path, GRAPH)
    descriptor = read_descriptor(path)
    assert local_shape(descriptor, path, {MESH_ID: "0"}) == [2, 8], "half of it: two hosts share the mesh"
    assert local_shape(descriptor, path, {MESH_ID: "1"}) == [1, 1]
    with pytest.raises(Refused, match=r"TT_MESH_ID: is not set, expected .*one of 0, 1"):
        local_shape(descriptor, path, {})
    with pytest.raises(Refused, match="TT_MESH_ID: is '5'"):
        local_shape(descriptor, path, {MESH_ID: "5"})
    alike = _file(tmp_path, OLDER, "mgd.yaml")
    assert local_shape(read_descriptor(alike), alike, {}) == [1, 8], "they are all of that shape"


# ---- which descriptor ----


def test_the_given_file_is_taken(tmp_path: Path) -> None:
    path = _file(tmp_path, LINE)
    assert choose_descriptor((1, 8), {VARIABLE: str(path)}, tmp_path / "cache") == path
    below_home = _file(tmp_path / "home", LINE)
    environment = {VARIABLE: "mgd.textproto", HOME: str(tmp_path / "home")}
    assert choose_descriptor((1, 8), environment, tmp_path / "cache") == below_home
    assert not (tmp_path / "cache").exists()


def test_a_file_that_is_not_there_names_the_places_tried(tmp_path: Path) -> None:
    environment = {VARIABLE: "boxes/mgd.textproto", HOME: str(tmp_path)}
    with pytest.raises(Refused, match="no such file") as refused:
        choose_descriptor((1, 8), environment, tmp_path / "cache")
    assert str(Path.cwd() / "boxes/mgd.textproto") in str(refused.value)
    assert str(tmp_path / "boxes/mgd.textproto") in str(refused.value)


def test_an_older_file_is_given_to_ttnn_in_the_new_format(tmp_path: Path) -> None:
    text = OLDER.replace("- {id: 2, board: lbox, device_topology: [1, 8], host_topology: [1, 1]}", "")
    path = _file(tmp_path, text.replace("RelaxedGraph: [[M0, M2, 3]]", ""), "box.yaml")
    chosen = choose_descriptor((1, 8), {VARIABLE: str(path)}, tmp_path / "cache")
    assert chosen == tmp_path / "cache" / "box.textproto"
    assert read_descriptor(chosen) == read_descriptor(path)


@pytest.mark.parametrize(
    ("shape", "name", "channels"),
    [((1, 8), "t3k_1x8", 2), ((8, 1), "t3k_8x1", 2), ((1, 32), "galaxy_1x32", 4)],
)
def test_eight_or_32_devices_in_a_line_have_a_default(
    shape: tuple[int, int], name: str, channels: int, tmp_path: Path
) -> None:
    chosen = choose_descriptor(shape, {}, tmp_path / "cache")
    assert chosen == tmp_path / "cache" / f"{name}_mesh_graph_descriptor.textproto"
    descriptor = read_descriptor(chosen)
    assert descriptor.mesh_descriptors[0].channels.count == channels
    hold_shape(descriptor, chosen, shape, {})
    (tmp_path / "cache" / chosen.name).write_text("half of it")
    assert read_descriptor(choose_descriptor(shape, {}, tmp_path / "cache") or chosen) == descriptor


def test_the_default_of_tt_metal_comes_first(tmp_path: Path) -> None:
    theirs = _file(tmp_path / FOLDER, LINE, "t3k_1x8_mesh_graph_descriptor.textproto")
    assert choose_descriptor((1, 8), {HOME: str(tmp_path)}, tmp_path / "cache") == theirs
    theirs.write_text(LINE.replace("[ 1, 8 ]", "[ 2, 4 ]"))
    with pytest.raises(Refused, match=r"device_topology \[2, 4\]"):
        choose_descriptor((1, 8), {HOME: str(tmp_path)}, tmp_path / "cache")


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 4), (8, 4)])
def test_other_meshes_are_left_to_ttnn(shape: tuple[int, int], tmp_path: Path) -> None:
    assert choose_descriptor(shape, {}, tmp_path / "cache") is None


def test_a_descriptor_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"can't be written .*set TT_MESH_GRAPH_DESC_PATH"):
        choose_descriptor((1, 8), {}, _file(tmp_path, "a file, no folder") / "cache")


# ---- at the door ----


@pytest.fixture
def at_the_door(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str | None]:
    """The door of a process that has not imported ttnn; what TT_MESH_GRAPH_DESC_PATH is at each import."""
    seen: list[str | None] = []
    monkeypatch.setattr(mesh.backend, "_read", None)
    monkeypatch.setattr(mesh.backend, "_set_environment", lambda: None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")
    monkeypatch.delenv(HOME, raising=False)
    monkeypatch.setattr(
        mesh.backend.importlib, "import_module", lambda name: seen.append(mesh.backend.os.environ[VARIABLE])
    )
    return seen


def test_the_environment_is_set_before_ttnn_is_imported(
    at_the_door: list[str | None], tmp_path: Path
) -> None:
    mesh.backend.device_module("ttnn", (1, 8))
    mesh.backend.device_module("ttnn", (1, 8))
    path = tmp_path / "tiermesh" / "descriptors" / "t3k_1x8_mesh_graph_descriptor.textproto"
    assert at_the_door == [str(path)] * 2


def test_a_mesh_that_does_not_fit_is_refused_before_ttnn_is_imported(
    at_the_door: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(_file(tmp_path, LINE)))
    with pytest.raises(Refused, match="would hang the devices"):
        mesh.backend.device_module("ttnn", (2, 4))
    assert at_the_door == []


def test_a_relative_path_is_made_absolute_and_kept(
    at_the_door: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _file(tmp_path, LINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "mgd.textproto")
    for _ in range(2):
        mesh.backend.device_module("ttnn", (1, 8))
    assert at_the_door == [str(tmp_path / "mgd.textproto")] * 2


def test_ttnn_reads_one_descriptor_a_process(at_the_door: list[str | None]) -> None:
    mesh.backend.device_module("ttnn", (1, 8))
    with pytest.raises(
        Failed, match=r"mesh_shape: \[2, 4\] needs .*one descriptor a process.*restart this process"
    ):
        mesh.backend.device_module("ttnn", (2, 4))
