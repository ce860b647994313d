"""Conversion of mesh graph descriptors of the older YAML format (`mgd.yaml`), which ttnn no longer reads."""

from __future__ import annotations

from collections import Counter
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
    TorusTopology,
)
from services.errors import Refused
from services.yaml_text import parse_yaml

GRAPH_NAME = "G0"


def convert_legacy_yaml(text: str, source: str) -> MeshGraphDescriptor:
    """Convert a YAML descriptor.

    `ethernet_ports` become the channels of every link inside a mesh. Links in `RelaxedGraph` get policy RELAXED.
    Ports in `Graph` are counted per pair of meshes and get policy STRICT.

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
        raise Refused(f"{source}: {error}") from None
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
    instances = []
    for number, mesh in enumerate(_field(document, "Mesh", list, "the file")):
        place = f"Mesh[{number}]"
        board = boards.get(_field(mesh, "board", str, place))
        if board is None:
            raise _SchemaError(
                f"{place}.board: {mesh['board']!r}, expected one of {', '.join(map(str, boards))}"
            )
        shape = _sizes(mesh, "device_topology", place)
        mesh_id = _field(mesh, "id", int, place)
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
        instances.append(_node(mesh_id))
    if not instances:
        raise _SchemaError("Mesh: [], expected one mesh or more")
    links = _links(document, {node.mesh.mesh_id for node in instances})
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


def _links(document: dict[str, Any], known: set[int]) -> list[Connection]:
    found: list[tuple[int, int, int, Any]] = []
    for link in document.get("RelaxedGraph") or []:
        if not (isinstance(link, list) and len(link) == 3 and isinstance(link[2], int)):
            raise _SchemaError(f"RelaxedGraph: {link!r}, expected [M0, M1, number of channels]")
        found.append((_mesh_id(link[0], known), _mesh_id(link[1], known), link[2], RELAXED))
    ports: Counter[tuple[int, int]] = Counter()
    for link in document.get("Graph") or []:
        if not (
            isinstance(link, list) and len(link) == 2 and all(isinstance(end, list) and end for end in link)
        ):
            raise _SchemaError(f"Graph: {link!r}, expected [[mesh id, port], [mesh id, port]]")
        ports[_mesh_id(link[0][0], known), _mesh_id(link[1][0], known)] += 1
    # The file lists each link once per direction.
    pairs = {(min(pair), max(pair)) for pair in ports}
    found += [(one, other, max(ports[one, other], ports[other, one]), STRICT) for one, other in sorted(pairs)]
    return [
        Connection(nodes=[_node(one), _node(other)], channels=Channels(count=count, policy=policy))
        for one, other, count, policy in found
    ]


def _mesh_id(value: Any, known: set[int]) -> int:
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
