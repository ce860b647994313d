"""Mesh graph descriptors are read, converted, chosen and checked against a job's mesh shape."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest

from mesh.backend import load_device_module
from mesh.descriptors.architecture import MOCK_VARIABLE
from mesh.descriptors.choose import (
    PATH_VARIABLE,
    TT_METAL_FOLDER,
    TT_METAL_VARIABLE,
    check_configured_descriptor,
    choose_descriptor,
)
from mesh.descriptors.mesh_graph_pb2 import BLACKHOLE, RELAXED, STRICT, WORMHOLE_B0, TorusTopology
from mesh.descriptors.read import format_textproto, parse_textproto, read_descriptor
from mesh.descriptors.shape_check import MESH_ID_VARIABLE, check_shape, find_local_shape
from services.errors import Failed, Refused

ROOT = Path(__file__).resolve().parents[3]

NO_CHIPS = Path("/nonexistent")
"""Folder of a driver that lists no chips, whatever this host has."""

UPSTREAM = [
    path for above in ROOT.parents for path in sorted((above / "shared" / "upstream").glob("**/mgd.*"))
]
"""Descriptors of tt-train's examples, of several dates, where they lie beside this tree."""

LoadTtnn = Callable[[tuple[int, int]], "list[str | None]"]

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
LEGACY = """
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


def test_links_between_meshes_are_read(tmp_path: Path) -> None:
    descriptor = read_descriptor(_file(tmp_path, GRAPH))
    box = descriptor.mesh_descriptors[0]
    assert list(box.device_topology.dims) == [4, 8]
    assert list(box.device_topology.dim_types) == [TorusTopology.LINE, TorusTopology.RING]
    (link,) = descriptor.graph_descriptors[0].connections
    assert [node.mesh.mesh_descriptor for node in link.nodes] == ["BOX", "CHIP"]
    assert (link.channels.count, link.channels.policy) == (2, STRICT)


def test_text_round_trips(tmp_path: Path) -> None:
    descriptor = read_descriptor(_file(tmp_path, GRAPH))
    assert parse_textproto(format_textproto(descriptor), "text") == descriptor


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


@pytest.mark.skipif(not UPSTREAM, reason="tt-train's own descriptors do not lie beside this tree")
def test_all_descriptors_that_tt_train_has_are_read(tmp_path: Path) -> None:
    assert len(UPSTREAM) == 17
    for path in UPSTREAM:
        descriptor = read_descriptor(path)
        hosts = len((path.parent / "rank_bindings.yaml").read_text().split("- rank:")) - 1
        (graph,) = descriptor.graph_descriptors
        assert 2 <= len(graph.instances) <= hosts, path
        environment = {PATH_VARIABLE: str(path), MESH_ID_VARIABLE: "1"}
        rows, columns = find_local_shape(descriptor, path, environment)
        chosen = choose_descriptor((rows, columns), environment, tmp_path, NO_CHIPS)
        assert chosen is not None and read_descriptor(chosen) == descriptor
        with pytest.raises(Refused, match="would hang"):
            choose_descriptor((rows, columns // 2), environment, tmp_path, NO_CHIPS)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("arch: WORMHOLE_B0", ""), "mesh_descriptors 'M0': arch is missing; expected WORMHOLE_B0"),
        (("arch: WORMHOLE_B0", "arch: GRAYSKULL"), "line 3: .*no value named GRAYSKULL"),
        (('name: "M0"', ""), "mesh_descriptors '': name is missing"),
        (("dims: [ 1, 8 ]", ""), r"device_topology.dims: \[\], expected"),
        (("dims: [ 1, 8 ]", "dims: [ 1, 8 ] dim_types: [ RING ]"), "dim_types: 1 for 2 dims"),
        (("host_topology { dims: [ 1, 1 ] }", ""), r"host_topology.dims: \[\], expected"),
        (("host_topology { dims: [ 1, 1 ] }", "host_topology { dims: [ 1, 3 ] }"), "can't divide"),
        (("count: 2", ""), "channels.count: 0, expected"),
        (("top_level_instance", "something_else"), "has no top_level_instance"),
        (('mesh_descriptor: "M0"', 'mesh_descriptor: "M1"'), "mesh_descriptor: 'M1', expected one of M0"),
        (("mesh_descriptors", "boards"), "has no mesh_descriptors"),
        (("}", ""), "expected protobuf text"),
    ],
)
def test_problems_of_a_mesh_are_refused(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = _file(tmp_path, LINE.replace(*change))
    with pytest.raises(Refused, match=message) as refused:
        read_descriptor(path)
    assert str(path) in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('type: "FABRIC"', ""), "graph_descriptors 'G0': type is missing"),
        (("instances { mesh", "not_instances { mesh"), "has no instances"),
        (
            ('mesh { mesh_descriptor: "CHIP" mesh_id: 1 } }\n  conn', "graph {} }\n  conn"),
            "meshes and graphs",
        ),
        (
            ("connections {", "graph_topology { layout_type: RING channels { count: 1 } } connections {"),
            "both",
        ),
        (("connections {", "connections { channels { count: 1 } } connections {"), "0 nodes, expected 2"),
        (('graph_descriptor: "G0"', 'graph_descriptor: "G1"'), "graph_descriptor: 'G1', expected one of G0"),
    ],
)
def test_problems_of_a_graph_are_refused(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=message):
        read_descriptor(_file(tmp_path, GRAPH.replace(*change)))


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no such file"):
        read_descriptor(tmp_path / "none.textproto")
    with pytest.raises(Refused, match="at most 262144 bytes"):
        read_descriptor(_file(tmp_path, " " * (1 << 21)))
    (tmp_path / "bytes.textproto").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(Refused, match="is not text"):
        read_descriptor(tmp_path / "bytes.textproto")


# ---- the legacy format ----


def test_the_legacy_format_is_converted(tmp_path: Path) -> None:
    descriptor = read_descriptor(_file(tmp_path, LEGACY, "mgd.yaml"))
    assert [mesh.name for mesh in descriptor.mesh_descriptors] == ["M0", "M2"]
    mesh = descriptor.mesh_descriptors[0]
    assert mesh.arch == WORMHOLE_B0
    assert (mesh.channels.count, mesh.channels.policy) == (2, STRICT)
    assert (list(mesh.device_topology.dims), list(mesh.host_topology.dims)) == ([1, 8], [1, 1])
    (link,) = descriptor.graph_descriptors[0].connections
    assert [node.mesh.mesh_id for node in link.nodes] == [0, 2]
    assert (link.channels.count, link.channels.policy) == (3, RELAXED)
    assert descriptor.top_level_instance.graph.graph_descriptor == "G0"


def test_legacy_ports_are_counted_once_for_both_directions(tmp_path: Path) -> None:
    ports = "Graph: [[[0, E0], [2, W0]], [[0, E1], [2, W1]], [[2, W0], [0, E0]], [[2, W1], [0, E1]]]"
    text = LEGACY.replace("RelaxedGraph: [[M0, M2, 3]]", ports)
    (link,) = read_descriptor(_file(tmp_path, text, "mgd.yaml")).graph_descriptors[0].connections
    assert (link.channels.count, link.channels.policy) == (2, STRICT)


def test_legacy_links_between_devices_are_kept(tmp_path: Path) -> None:
    links = "Graph: [[[M0, D1], [M2, D0], 1], [[M0, D3], [M2, D2], 2]]"
    text = LEGACY.replace("RelaxedGraph: [[M0, M2, 3]]", links)
    first, second = read_descriptor(_file(tmp_path, text, "mgd.yaml")).graph_descriptors[0].connections
    assert [(node.mesh.mesh_id, node.mesh.device_id) for node in first.nodes] == [(0, 1), (2, 0)]
    assert [(node.mesh.mesh_id, node.mesh.device_id) for node in second.nodes] == [(0, 3), (2, 2)]
    assert (second.channels.count, second.channels.policy) == (2, STRICT)


def test_a_legacy_file_with_one_mesh_needs_no_graph(tmp_path: Path) -> None:
    text = LEGACY.replace("- {id: 2, board: lbox, device_topology: [1, 8], host_topology: [1, 1]}", "")
    text = text.replace("RelaxedGraph: [[M0, M2, 3]]", "Graph: []").replace("type: Mesh", "type: Torus")
    descriptor = read_descriptor(_file(tmp_path, text, "mgd.yml"))
    assert descriptor.top_level_instance.mesh.mesh_descriptor == "M0"
    assert list(descriptor.mesh_descriptors[0].device_topology.dim_types) == [TorusTopology.RING] * 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("arch: wormhole_b0", "arch: grayskull"), "ChipSpec.arch: 'grayskull', expected one of wormhole_b0"),
        (("ChipSpec", "Chips"), "the file: ChipSpec is missing, expected a mapping"),
        (("board: lbox", "board: other"), r"Mesh\[0\].board: 'other', expected one of lbox"),
        (("device_topology: [1, 8]", "device_topology: [8]"), r"Mesh\[0\].device_topology: \[8\], expected"),
        (("id: 0", "id: zero"), r"Mesh\[0\]: id is 'zero', expected a number"),
        (("[M0, M2, 3]", "[M0, M7, 3]"), "mesh 'M7' is linked, expected one of Mesh: M0, M2"),
        (("[M0, M2, 3]", "[M0, M2]"), "RelaxedGraph: .*expected"),
        (
            ("RelaxedGraph: [[M0, M2, 3]]", "Graph: [[[M0, D1], [M2, D8], 1]]"),
            "device 'D8' of M2, expected D0 to D7",
        ),
        (("RelaxedGraph: [[M0, M2, 3]]", "Graph: [[[M0, D1], [M7, D0], 1]]"), "mesh 'M7' is linked"),
        (("RelaxedGraph: [[M0, M2, 3]]", "Graph: [[M0, M2, 3]]"), r"Graph: .*expected \[\[M0, D1\]"),
        (("id: 2", "id: 0"), r"Mesh\[1\].id: 0 is the id of another mesh"),
        (("Mesh:\n", "Mesh: [\n"), "line 5, column 1: "),
    ],
)
def test_problems_of_a_legacy_file_are_refused(change: tuple[str, str], message: str, tmp_path: Path) -> None:
    path = _file(tmp_path, LEGACY.replace(*change), "mgd.yaml")
    with pytest.raises(Refused, match=message) as caught:
        read_descriptor(path)
    assert "correct" in str(caught.value), "how to fix it"


# ---- checks of the mesh shape ----


def test_a_mesh_that_fits(tmp_path: Path) -> None:
    path = _file(tmp_path, LINE)
    check_shape(read_descriptor(path), path, (1, 8), {})
    check_shape(read_descriptor(path), path, (1, 1), {})


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            (1, 4),
            r"mesh_shape: \[1, 4\] \(4 devices\), but .* has device_topology \[1, 8\]; .*set mesh_shape: \[1, 8\]",
        ),
        ((2, 4), r"mesh_shape: \[2, 4\] .*TT_MESH_GRAPH_DESC_PATH to a descriptor of \[2, 4\]"),
        ((8, 1), r"rows and columns swapped, device_topology \[1, 8\]; set mesh_shape: \[1, 8\]"),
    ],
)
def test_a_mesh_that_does_not_fit(shape: tuple[int, int], message: str, tmp_path: Path) -> None:
    path = _file(tmp_path, LINE)
    with pytest.raises(Refused, match=message):
        check_configured_descriptor(shape, {PATH_VARIABLE: str(path)})


def test_the_mesh_of_this_host_among_several(tmp_path: Path) -> None:
    path = _file(tmp_path, GRAPH)
    descriptor = read_descriptor(path)
    assert find_local_shape(descriptor, path, {MESH_ID_VARIABLE: "0"}) == [2, 8], "two hosts share the mesh"
    assert find_local_shape(descriptor, path, {MESH_ID_VARIABLE: "1"}) == [1, 1]
    with pytest.raises(Refused, match=r"TT_MESH_ID.*not set.*0, 1"):
        find_local_shape(descriptor, path, {})
    with pytest.raises(Refused, match=r"TT_MESH_ID.*'5'"):
        find_local_shape(descriptor, path, {MESH_ID_VARIABLE: "5"})
    alike = _file(tmp_path, LEGACY, "mgd.yaml")
    assert find_local_shape(read_descriptor(alike), alike, {}) == [1, 8], "all meshes have this shape"


def test_ids_of_many_meshes_are_listed_by_number(tmp_path: Path) -> None:
    mesh = "  {{id: {}, board: box, device_topology: [1, 8], host_topology: [1, 1]}},\n"
    meshes = "".join(mesh.format(each) for each in range(12))
    text = f"ChipSpec: {{arch: wormhole_b0, ethernet_ports: {{N: 2}}}}\nBoard: [{{name: box}}]\nMesh: [\n{meshes}]\n"
    path = _file(tmp_path, text, "mgd.yaml")
    with pytest.raises(Refused, match=r"9, 10, 11; set it in the worker's environment"):
        find_local_shape(read_descriptor(path), path, {MESH_ID_VARIABLE: "99"})


# ---- choosing a descriptor ----


def test_the_configured_file_has_priority(tmp_path: Path) -> None:
    path = _file(tmp_path, LINE)
    assert choose_descriptor((1, 8), {PATH_VARIABLE: str(path)}, tmp_path / "cache", NO_CHIPS) == path
    in_tt_metal = _file(tmp_path / "home", LINE)
    environment = {PATH_VARIABLE: "mgd.textproto", TT_METAL_VARIABLE: str(tmp_path / "home")}
    assert choose_descriptor((1, 8), environment, tmp_path / "cache", NO_CHIPS) == in_tt_metal
    assert not (tmp_path / "cache").exists()


def test_a_missing_file_lists_the_paths_tried(tmp_path: Path) -> None:
    environment = {PATH_VARIABLE: "boxes/mgd.textproto", TT_METAL_VARIABLE: str(tmp_path)}
    with pytest.raises(Refused, match="no such file") as refused:
        choose_descriptor((1, 8), environment, tmp_path / "cache", NO_CHIPS)
    (whole,) = refused.value.args  # as text, a refusal with long paths is cut
    assert str(Path.cwd() / "boxes/mgd.textproto") in whole
    assert str(tmp_path / "boxes/mgd.textproto") in whole


def test_a_legacy_file_is_converted_for_ttnn(tmp_path: Path) -> None:
    text = LEGACY.replace("- {id: 2, board: lbox, device_topology: [1, 8], host_topology: [1, 1]}", "")
    path = _file(tmp_path, text.replace("RelaxedGraph: [[M0, M2, 3]]", ""), "box.yaml")
    chosen = choose_descriptor((1, 8), {PATH_VARIABLE: str(path)}, tmp_path / "cache", NO_CHIPS)
    assert chosen == tmp_path / "cache" / "box.textproto"
    assert read_descriptor(chosen) == read_descriptor(path)


@pytest.mark.parametrize(
    ("shape", "name", "channels"),
    [((1, 8), "t3k_1x8", 2), ((8, 1), "t3k_8x1", 2), ((1, 32), "galaxy_1x32", 4)],
)
def test_eight_or_32_devices_in_a_line_have_a_default(
    shape: tuple[int, int], name: str, channels: int, tmp_path: Path
) -> None:
    chosen = choose_descriptor(shape, {}, tmp_path / "cache", NO_CHIPS)
    assert chosen == tmp_path / "cache" / f"{name}_mesh_graph_descriptor.textproto"
    descriptor = read_descriptor(chosen)
    assert descriptor.mesh_descriptors[0].channels.count == channels
    check_shape(descriptor, chosen, shape, {})
    (tmp_path / "cache" / chosen.name).write_text("half of it")
    assert read_descriptor(choose_descriptor(shape, {}, tmp_path / "cache", NO_CHIPS) or chosen) == descriptor


def _chips(folder: Path, *pci_devices: str) -> Path:
    """Write what the driver says of chips with these PCI device ids; return its folder."""
    for number, pci_device in enumerate(pci_devices):
        device = folder / "driver" / f"tenstorrent!{number}" / "device"
        device.mkdir(parents=True)
        (device / "device").write_text(f"{pci_device}\n")
    return folder / "driver"


@pytest.mark.parametrize(
    ("pci_device", "shape", "name", "arch", "channels"),
    [
        ("0x401e", (1, 8), "t3k_1x8_mesh", WORMHOLE_B0, 2),
        ("0xb140", (1, 8), "bh_lb_1x8_line", BLACKHOLE, 2),
        ("0xb140", (32, 1), "bh_galaxy_32x1_line", BLACKHOLE, 2),
        ("0xffff", (1, 8), "t3k_1x8_mesh", WORMHOLE_B0, 2),
    ],
)
def test_the_architecture_of_a_line_is_that_of_the_chips(
    pci_device: str, shape: tuple[int, int], name: str, arch: int, channels: int, tmp_path: Path
) -> None:
    chosen = choose_descriptor(shape, {}, tmp_path / "cache", _chips(tmp_path, *[pci_device] * max(shape)))
    assert chosen == tmp_path / "cache" / f"{name}_graph_descriptor.textproto"
    (mesh,) = read_descriptor(chosen).mesh_descriptors
    assert (mesh.arch, mesh.channels.count) == (arch, channels)


def test_a_descriptor_of_another_architecture_is_refused(tmp_path: Path) -> None:
    path = _file(tmp_path, LINE)
    chips = _chips(tmp_path, "0xb140")
    message = r"mgd.textproto: arch WORMHOLE_B0, .* this host are BLACKHOLE; .*TT_MESH_GRAPH_DESC_PATH"
    with pytest.raises(Refused, match=message):
        choose_descriptor((1, 8), {PATH_VARIABLE: str(path)}, tmp_path / "cache", chips)
    path.write_text(LINE.replace("WORMHOLE_B0", "BLACKHOLE"))
    assert choose_descriptor((1, 8), {PATH_VARIABLE: str(path)}, tmp_path / "cache", chips) == path


def test_chips_of_two_architectures_form_no_line(tmp_path: Path) -> None:
    chips = _chips(tmp_path, "0xb140", "0x401e")
    with pytest.raises(
        Refused, match=r"mesh_shape: \[1, 8\].*several architectures.*TT_MESH_GRAPH_DESC_PATH"
    ):
        choose_descriptor((1, 8), {}, tmp_path / "cache", chips)
    path = _file(tmp_path, LINE)
    assert choose_descriptor((1, 8), {PATH_VARIABLE: str(path)}, tmp_path / "cache", chips) == path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("arch: {0: blackhole, 1: blackhole}", "bh_lb_1x8_line"),
        ("arch: {0: wormhole_b0}", "t3k_1x8_mesh"),
        ("arch: [[]]", "t3k_1x8_mesh"),
        ("arch: {0: [], 1: quasar}", "t3k_1x8_mesh"),
    ],
)
def test_the_architecture_of_a_mocked_cluster(text: str, name: str, tmp_path: Path) -> None:
    environment = {MOCK_VARIABLE: str(_file(tmp_path, text, "cluster.yaml"))}
    chosen = choose_descriptor((1, 8), environment, tmp_path / "cache", NO_CHIPS)
    assert chosen == tmp_path / "cache" / f"{name}_graph_descriptor.textproto"


def test_a_file_of_tt_metal_precedes_our_default(tmp_path: Path) -> None:
    theirs = _file(tmp_path / TT_METAL_FOLDER, LINE, "t3k_1x8_mesh_graph_descriptor.textproto")
    assert (
        choose_descriptor((1, 8), {TT_METAL_VARIABLE: str(tmp_path)}, tmp_path / "cache", NO_CHIPS) == theirs
    )
    theirs.write_text(LINE.replace("[ 1, 8 ]", "[ 2, 4 ]"))
    with pytest.raises(Refused, match=r"device_topology \[2, 4\]"):
        choose_descriptor((1, 8), {TT_METAL_VARIABLE: str(tmp_path)}, tmp_path / "cache", NO_CHIPS)


@pytest.mark.parametrize("shape", [(1, 1), (1, 2), (2, 4), (8, 4)])
def test_ttnn_chooses_for_other_meshes(shape: tuple[int, int], tmp_path: Path) -> None:
    assert choose_descriptor(shape, {}, tmp_path / "cache", NO_CHIPS) is None


def test_a_descriptor_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(Failed, match=r"written.*TT_MESH_GRAPH_DESC_PATH"):
        choose_descriptor((1, 8), {}, _file(tmp_path, "a file, no folder") / "cache")


# ---- the environment when ttnn is imported ----


@pytest.fixture
def load_ttnn(ttnn_environment: None) -> LoadTtnn:
    """Return a function that loads ttnn for a mesh shape and returns the configured descriptor at each import."""
    imports: list[str | None] = []

    def load(shape: tuple[int, int]) -> list[str | None]:
        load_device_module(
            "ttnn", shape, import_module=lambda name: imports.append(os.environ.get(PATH_VARIABLE))
        )
        return imports

    return load


def test_the_environment_is_set_before_ttnn_is_imported(load_ttnn: LoadTtnn, tmp_path: Path) -> None:
    load_ttnn((1, 8))
    path = tmp_path / "tiermesh" / "descriptors" / "t3k_1x8_mesh_graph_descriptor.textproto"
    assert load_ttnn((1, 8)) == [str(path)] * 2


def test_a_mesh_that_does_not_fit_is_refused_before_ttnn_is_imported(
    load_ttnn: LoadTtnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATH_VARIABLE, str(_file(tmp_path, LINE)))
    with pytest.raises(Refused, match=r"mesh_shape: \[2, 4\].*hang"):
        load_ttnn((2, 4))
    assert len(load_ttnn((1, 8))) == 1


def test_a_relative_path_is_made_absolute_and_kept(
    load_ttnn: LoadTtnn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _file(tmp_path, LINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(PATH_VARIABLE, "mgd.textproto")
    load_ttnn((1, 8))
    assert load_ttnn((1, 8)) == [str(tmp_path / "mgd.textproto")] * 2


def test_ttnn_reads_one_descriptor_per_process(load_ttnn: LoadTtnn) -> None:
    load_ttnn((1, 8))
    with pytest.raises(Failed, match=r"mesh_shape: \[2, 4\].*descriptor.*restart"):
        load_ttnn((2, 4))
