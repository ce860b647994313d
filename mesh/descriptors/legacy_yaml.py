"""Conversion of mesh graph descriptors of the older YAML format (`mgd.yaml`), which ttnn no longer reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from mesh.descriptors.mesh_graph_pb2 import (
    RELAXED,
    STRICT,
    Architecture,
    Channels,
    Connection,
    GraphDescriptor,
    MeshDescriptor,
    MeshGraphDescriptor,
    MeshRef,
    MeshTopology,
    NodeRef,
    Policy,
    TorusTopology,
)
from services.errors import Refused
from services.printable import printable
from services.yaml_text import parse_yaml

GRAPH_NAME = "G0"


def convert_legacy_yaml(text: str, source: str) -> MeshGraphDescriptor:
    """Convert a YAML descriptor.

    `ethernet_ports` become the channels of every link inside a mesh. Links in `RelaxedGraph` get policy RELAXED, those
    in `Graph` STRICT. There a link is `[[M0, D1], [M1, D0], channels]` between devices, or a pair of ports such as
    `[[0, E0], [1, W0]]`. Ports are counted per pair of meshes.

    Args:
        text: YAML of the older schema.
        source: name of the text in errors.

    Raises:
        Refused: the text isn't YAML, or doesn't follow the older schema.
    """
    document = parse_yaml(text, source)
    try:
        return _convert(document)
    except _SchemaError as error:
        raise Refused(
            f"{source}: {printable(str(error), 160)}; correct it, or write a .textproto descriptor"
        ) from None
    except (
        TypeError,
        ValueError,
    ) as error:  # A number outside of the field's range, or a list of another type.
        raise Refused(
            f"{source}: does not follow the older descriptor schema ({' '.join(str(error).split())}); correct it, or "
            "write a .textproto descriptor"
        ) from None


class _SchemaError(Exception):
    """Violation of the schema; the text names the field."""


def _convert(document: Any) -> MeshGraphDescriptor:
    chip = _field(document, "ChipSpec", dict, "the file")
    name = str(_field(chip, "arch", str, "ChipSpec"))
    if name.upper() not in Architecture.keys()[1:]:
        known = ", ".join(key.lower() for key in Architecture.keys()[1:])
        raise _SchemaError(f"ChipSpec.arch: {name!r}, expected one of {known}")
    arch = name.upper()
    channels = _count_channels(_field(chip, "ethernet_ports", dict, "ChipSpec"))
    boards = {
        _field(board, "name", str, "Board"): board for board in _field(document, "Board", list, "the file")
    }
    descriptor = MeshGraphDescriptor()
    shapes: dict[int, list[int]] = {}
    for number, mesh in enumerate(_field(document, "Mesh", list, "the file")):
        place = f"Mesh[{number}]"
        board = boards.get(_field(mesh, "board", str, place))
        if board is None:
            raise _SchemaError(
                f"{place}.board: {mesh['board']!r}, expected one of {', '.join(map(str, boards))}"
            )
        shape = _sizes(mesh, "device_topology", place)
        mesh_id = _field(mesh, "id", int, place)
        if mesh_id in shapes:
            raise _SchemaError(f"{place}.id: {mesh_id} is the id of another mesh, expected one of its own")
        described = MeshDescriptor(
            name=f"M{mesh_id}",
            arch=arch,
            device_topology=TorusTopology(dims=shape),
            host_topology=MeshTopology(dims=_sizes(mesh, "host_topology", place)),
            channels=Channels(count=channels, policy=STRICT),
        )
        if board.get("type") == "Torus":
            described.device_topology.dim_types.extend([TorusTopology.RING] * len(shape))
        descriptor.mesh_descriptors.append(described)
        shapes[mesh_id] = shape
    if not shapes:
        raise _SchemaError("Mesh: [], expected one mesh or more")
    links = _links(document, shapes)
    instances = [_node(mesh_id) for mesh_id in shapes]
    if len(instances) == 1:
        descriptor.top_level_instance.CopyFrom(instances[0])
        return descriptor
    descriptor.graph_descriptors.append(
        GraphDescriptor(name=GRAPH_NAME, type="FABRIC", instances=instances, connections=links)
    )
    descriptor.top_level_instance.graph.graph_descriptor = GRAPH_NAME
    return descriptor


def _count_channels(ports: dict[str, Any]) -> int:
    """Return the number of links between neighbours: the smallest positive number of ports of any direction."""
    counts = [count for count in ports.values() if isinstance(count, int) and count > 0]
    return min(counts, default=1)


def _links(document: dict[str, Any], shapes: Mapping[int, list[int]]) -> list[Connection]:
    found = []
    for link in document.get("RelaxedGraph") or []:
        if not (isinstance(link, list) and len(link) == 3 and isinstance(link[2], int)):
            raise _SchemaError(f"RelaxedGraph: {link!r}, expected [M0, M1, number of channels]")
        ends = [_node(_mesh_id(end, shapes)) for end in link[:2]]
        found.append(_connection(ends, link[2], RELAXED))
    ports: Counter[tuple[int, int]] = Counter()
    for link in document.get("Graph") or []:
        if not (
            isinstance(link, list)
            and len(link) in (2, 3)
            and all(isinstance(end, list) and len(end) == 2 for end in link[:2])
        ):
            raise _SchemaError(
                f"Graph: {link!r}, expected [[M0, D1], [M1, D0], number of channels], or two pairs [mesh id, port]"
            )
        if len(link) == 3:
            found.append(_connection([_device(end[0], end[1], shapes) for end in link[:2]], link[2], STRICT))
        else:
            ports[_mesh_id(link[0][0], shapes), _mesh_id(link[1][0], shapes)] += 1
    # The file lists each pair of ports once per direction.
    pairs = {(min(pair), max(pair)) for pair in ports}
    return found + [
        _connection([_node(one), _node(other)], max(ports[one, other], ports[other, one]), STRICT)
        for one, other in sorted(pairs)
    ]


def _connection(nodes: list[NodeRef], count: Any, policy: Policy) -> Connection:
    return Connection(nodes=nodes, channels=Channels(count=count, policy=policy))


def _device(mesh: Any, name: Any, shapes: Mapping[int, list[int]]) -> NodeRef:
    """Return the device `D3` of a mesh."""
    mesh_id = _mesh_id(mesh, shapes)
    rows, columns = shapes[mesh_id]
    digits = str(name).removeprefix("D")
    if not digits.isdecimal() or int(digits) >= rows * columns:
        raise _SchemaError(f"Graph: device {name!r} of M{mesh_id}, expected D0 to D{rows * columns - 1}")
    node = _node(mesh_id)
    node.mesh.device_id = int(digits)
    return node


def _mesh_id(value: Any, known: Collection[int]) -> int:
    """Return the mesh id in `M3` or `3`."""
    digits = str(value).removeprefix("M")
    if not digits.isdecimal() or int(digits) not in known:
        raise _SchemaError(
            f"mesh {value!r} is linked, expected one of Mesh: {', '.join(f'M{each}' for each in sorted(known))}"
        )
    return int(digits)


def _node(mesh_id: int) -> NodeRef:
    return NodeRef(mesh=MeshRef(mesh_descriptor=f"M{mesh_id}", mesh_id=mesh_id))


def _sizes(mesh: dict[str, Any], key: str, place: str) -> list[int]:
    sizes = _field(mesh, key, list, place)
    if len(sizes) != 2 or not all(isinstance(size, int) and size > 0 for size in sizes):
        raise _SchemaError(f"{place}.{key}: {sizes!r}, expected [rows, columns], both 1 or more")
    return [int(size) for size in sizes]


def _field(holder: Any, key: str, kind: type, place: str) -> Any:
    value = holder.get(key) if isinstance(holder, dict) else None
    if not isinstance(value, kind):
        names = {dict: "a mapping", list: "a list", str: "a name", int: "a number"}
        found = "missing" if value is None else repr(value)
        raise _SchemaError(f"{place}: {key} is {found}, expected {names[kind]}")
    return value
