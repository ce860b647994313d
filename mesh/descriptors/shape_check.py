"""Finds the mesh of a descriptor that this process drives, and checks a job's mesh_shape against it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mesh.descriptors.mesh_graph_pb2 import MeshDescriptor, MeshGraphDescriptor, NodeRef
from services.errors import Refused
from services.printable import printable

MESH_ID_VARIABLE = "TT_MESH_ID"


def check_shape(
    descriptor: MeshGraphDescriptor, path: Path, mesh_shape: tuple[int, int], environment: Mapping[str, str]
) -> None:
    """Check a job's mesh shape against a descriptor: opening a mesh that differs hangs the hardware.

    A single device uses no links, so it fits every descriptor.

    Args:
        descriptor: valid descriptor.
        path: file of the descriptor, for errors.
        mesh_shape: rows and columns.
        environment: environment variables. TT_MESH_ID names this process's mesh if the descriptor has several.

    Raises:
        Refused: the shapes differ, or it is unknown which mesh belongs to this process.
    """
    if mesh_shape == (1, 1):
        return
    described = find_local_shape(descriptor, path, environment)
    wanted, where = list(mesh_shape), printable(str(path), 80)
    if described == wanted:
        return
    if described == wanted[::-1]:
        raise Refused(
            f"device_config.mesh_shape: {wanted}, but {where} has rows and columns swapped, "
            f"device_topology {described}; set mesh_shape: {described}, or TT_MESH_GRAPH_DESC_PATH to a descriptor "
            f"of {wanted}"
        )
    raise Refused(
        f"device_config.mesh_shape: {wanted} ({wanted[0] * wanted[1]} devices), but {where} has device_topology "
        f"{described}; opening it would hang the devices: set mesh_shape: {described}, or TT_MESH_GRAPH_DESC_PATH to a "
        f"descriptor of {wanted}"
    )


def find_local_shape(
    descriptor: MeshGraphDescriptor, path: Path, environment: Mapping[str, str]
) -> list[int]:
    """Return rows and columns of this host's devices in this process's mesh.

    Raises:
        Refused: the meshes have several shapes and TT_MESH_ID names none of them, or the mesh isn't 2-D.
    """
    by_name = {mesh.name: mesh for mesh in descriptor.mesh_descriptors}
    nodes = sorted(
        (node.mesh for node in _nodes(descriptor) if node.HasField("mesh")), key=lambda mesh: mesh.mesh_id
    )
    shapes = {str(mesh.mesh_id): _shape(by_name[mesh.mesh_descriptor], path) for mesh in nodes}
    wanted_id = environment.get(MESH_ID_VARIABLE)
    if wanted_id is None and len(set(map(tuple, shapes.values()))) == 1:
        return next(iter(shapes.values()))
    if wanted_id not in shapes:
        setting = "is not set" if wanted_id is None else f"is {wanted_id!r}"
        raise Refused(
            f"{MESH_ID_VARIABLE}: {setting}, expected the id of this host's mesh in {printable(str(path), 80)}: "
            f"one of {printable(', '.join(shapes), 80)}; set it in the worker's environment"
        )
    return shapes[wanted_id]


def _shape(mesh: MeshDescriptor, path: Path) -> list[int]:
    dims, hosts = mesh.device_topology.dims, mesh.host_topology.dims
    shape = [size // part for size, part in zip(dims, hosts, strict=True)]
    if len(shape) == 1:
        shape = [1, *shape]
    if len(shape) != 2:
        raise Refused(
            f"{path}: mesh {mesh.name!r} has {len(shape)} dimensions, expected rows and columns; "
            "correct device_topology.dims"
        )
    return shape


def _nodes(descriptor: MeshGraphDescriptor) -> list[NodeRef]:
    instances = [node for graph in descriptor.graph_descriptors for node in graph.instances]
    return [descriptor.top_level_instance, *instances]
