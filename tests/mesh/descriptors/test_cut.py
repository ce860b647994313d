"""One mesh cut out of a descriptor of several: the same mesh, without the others and their links."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mesh.descriptors.cut import cut_mesh, list_meshes
from mesh.descriptors.legacy_yaml import convert_legacy_yaml
from mesh.descriptors.mesh_graph_pb2 import MeshGraphDescriptor
from mesh.descriptors.read import format_textproto, parse_textproto, read_descriptor
from mesh.descriptors.shape_check import find_local_shape
from mesh.descriptors.validate import find_problem
from services.errors import Refused

_TWO_KINDS = """
mesh_descriptors {
  name: "LINE" arch: WORMHOLE_B0
  device_topology { dims: [ 1, 8 ] dim_types: [ LINE, RING ] } host_topology { dims: [ 1, 1 ] }
  channels { count: 2 policy: STRICT }
}
mesh_descriptors {
  name: "GRID" arch: BLACKHOLE
  device_topology { dims: [ 4, 8 ] } host_topology { dims: [ 1, 1 ] } channels { count: 4 policy: RELAXED }
}
mesh_descriptors {
  name: "WIDE" arch: WORMHOLE_B0
  device_topology { dims: [ 2, 8 ] } host_topology { dims: [ 2, 1 ] } channels { count: 1 }
}
graph_descriptors {
  name: "ALL" type: "FABRIC"
  instances { mesh { mesh_descriptor: "GRID" mesh_id: 7 } }
  instances { mesh { mesh_descriptor: "LINE" mesh_id: 3 } }
  instances { mesh { mesh_descriptor: "WIDE" mesh_id: 4 } }
}
top_level_instance { graph { graph_descriptor: "ALL" graph_id: 0 } }
"""


def _two_kinds() -> MeshGraphDescriptor:
    return parse_textproto(_TWO_KINDS, "two.textproto")


@pytest.mark.parametrize(("mesh_id", "number", "shape"), [(3, 0, [1, 8]), (7, 1, [4, 8])])
def test_a_cut_mesh_is_as_it_was_and_alone(mesh_id: int, number: int, shape: list[int]) -> None:
    whole = _two_kinds()
    cut = cut_mesh(whole, mesh_id, "two.textproto")
    assert list(cut.mesh_descriptors) == [whole.mesh_descriptors[number]]
    assert not cut.graph_descriptors
    assert cut.top_level_instance.mesh.mesh_id == 0
    read = parse_textproto(format_textproto(cut), "cut")
    assert read == cut
    assert find_problem(read) is None
    assert find_local_shape(read, Path("cut"), {"TT_MESH_ID": "0"}) == shape


def test_meshes_are_listed_in_the_order_of_their_ids() -> None:
    assert [(number, mesh.name) for number, mesh in list_meshes(_two_kinds(), "x").items()] == [
        (3, "LINE"),
        (4, "WIDE"),
        (7, "GRID"),
    ]


def test_a_descriptor_of_one_mesh_is_cut_too() -> None:
    one = cut_mesh(_two_kinds(), 3, "x")
    assert cut_mesh(one, 0, "x") == one


def test_meshes_that_cannot_be_cut() -> None:
    doubled = _two_kinds()
    doubled.graph_descriptors[0].instances[0].mesh.mesh_id = 3
    for descriptor, mesh_id, fact in (
        (_two_kinds(), 0, "two: no mesh has id 0, expected one of 3, 4, 7"),
        (_two_kinds(), 4, "mesh 4 has host_topology .2, 1., but a worker drives chips of one host"),
        (doubled, 3, "several meshes have mesh_id 3"),
    ):
        with pytest.raises(Refused, match=fact):
            cut_mesh(descriptor, mesh_id, "two")


@given(st.integers(1, 40))
def test_every_mesh_of_the_older_format_is_cut(count: int) -> None:
    meshes = ", ".join(
        f"{{id: {number}, board: b, device_topology: [1, 8], host_topology: [1, 1]}}"
        for number in range(count)
    )
    text = f"""
ChipSpec: {{arch: wormhole_b0, ethernet_ports: {{N: 2, E: 2, S: 2, W: 2}}}}
Board: [{{name: b, type: Mesh, topology: [1, 8]}}]
Mesh: [{meshes}]
"""
    descriptor = convert_legacy_yaml(text, "mgd.yaml")
    for mesh_id in list_meshes(descriptor, "mgd.yaml"):
        cut = cut_mesh(descriptor, mesh_id, "mgd.yaml")
        assert (cut.mesh_descriptors[0].name, list(cut.mesh_descriptors[0].device_topology.dims)) == (
            f"M{mesh_id}",
            [1, 8],
        )


def test_a_cut_mesh_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "cut.textproto"
    file.write_text(format_textproto(cut_mesh(_two_kinds(), 7, "x")))
    assert read_descriptor(file).mesh_descriptors[0].name == "GRID"
