"""Which mesh of a descriptor this process drives, and whether a job's mesh_shape is that mesh."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mesh.descriptors.mesh_graph_pb2 import MeshDescriptor, MeshGraphDescriptor, NodeRef
from services.errors import Refused

MESH_ID = "TT_MESH_ID"


def hold_shape(
    descriptor: MeshGraphDescriptor, path: Path, mesh_shape: tuple[int, int], environment: Mapping[str, str]
) -> None:
    """Hold a job's mesh against a descriptor, as opening one that differs hangs the hardware.

    One device alone uses no links, so it fits any.

    Args:
        descriptor: complete.
        path: of its file, for errors.
        mesh_shape: rows and columns.
        environment: TT_MESH_ID names this process's mesh if the descriptor has several.

    Raises:
        Refused: the two differ, or it can't be told which mesh is this process's.
    """
    if mesh_shape == (1, 1):
        return
    described = local_shape(descriptor, path, environment)
    given = list(mesh_shape)
    if described == given:
        return
    if described == given[::-1]:
        raise Refused(
            f"device_config.mesh_shape: {given}, but {path} has rows and columns the other way round, "
            f"device_topology {described}; set mesh_shape: {described}, or TT_MESH_GRAPH_DESC_PATH to a descriptor "
            f"of {given}"
        )
    raise Refused(
        f"device_config.mesh_shape: {given} ({given[0] * given[1]} devices), but {path} has device_topology "
        f"{described}; opening it would hang the devices: set mesh_shape: {described}, or TT_MESH_GRAPH_DESC_PATH to "
        f"a descriptor of {given}"
    )


def local_shape(descriptor: MeshGraphDescriptor, path: Path, environment: Mapping[str, str]) -> list[int]:
    """Rows and columns of the devices that one host has of this process's mesh.

    Raises:
        Refused: there are meshes of several shapes and TT_MESH_ID names none of them, or the mesh isn't one of two
            dimensions.
    """
    by_name = {mesh.name: mesh for mesh in descriptor.mesh_descriptors}
    shapes = {
        str(node.mesh.mesh_id): _shape(by_name[node.mesh.mesh_descriptor], path)
        for node in _nodes(descriptor)
        if node.HasField("mesh")
    }
    asked = environment.get(MESH_ID)
    if asked is None and len(set(map(tuple, shapes.values()))) == 1:
        return next(iter(shapes.values()))
    if asked not in shapes:
        given = "is not set" if asked is None else f"is {asked!r}"
        raise Refused(
            f"{MESH_ID}: {given}, expected the id of this host's mesh in {path}: one of {', '.join(sorted(shapes))}"
        )
    return shapes[asked]


def _shape(mesh: MeshDescriptor, path: Path) -> list[int]:
    dims, hosts = mesh.device_topology.dims, mesh.host_topology.dims
    shape = [size // part for size, part in zip(dims, hosts, strict=True)]
    if len(shape) == 1:
        shape = [1, *shape]
    if len(shape) != 2:
        raise Refused(f"{path}: mesh {mesh.name!r} has {len(shape)} dimensions; expected rows and columns")
    return shape


def _nodes(descriptor: MeshGraphDescriptor) -> list[NodeRef]:
    instances = [node for graph in descriptor.graph_descriptors for node in graph.instances]
    return [descriptor.top_level_instance, *instances]
