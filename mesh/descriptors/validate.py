"""Checks that a mesh graph descriptor has the fields that ttnn needs."""

from __future__ import annotations

import math

from mesh.descriptors.mesh_graph_pb2 import (
    INVALID_ARCHITECTURE,
    Channels,
    Connection,
    GraphDescriptor,
    MeshDescriptor,
    MeshGraphDescriptor,
)
from services.errors import Refusal


def find_problem(descriptor: MeshGraphDescriptor) -> Refusal | None:
    """Return the first missing or contradictory field and how to fix it; None for a valid descriptor."""
    if not descriptor.mesh_descriptors:
        return Refusal("has no mesh_descriptors; add one that says how the devices are arranged")
    for mesh in descriptor.mesh_descriptors:
        problem = _find_in_mesh(mesh)
        if problem is not None:
            return Refusal(f"mesh_descriptors {mesh.name!r}: {problem}")
    for graph in descriptor.graph_descriptors:
        problem = _find_in_graph(graph)
        if problem is not None:
            return Refusal(f"graph_descriptors {graph.name!r}: {problem}")
    if not descriptor.HasField("top_level_instance"):
        return Refusal("has no top_level_instance; add one that names the mesh or graph of the whole system")
    return _find_dangling_reference(descriptor)


def _find_in_mesh(mesh: MeshDescriptor) -> Refusal | None:
    dims, types = mesh.device_topology.dims, mesh.device_topology.dim_types
    hosts = mesh.host_topology.dims
    if not mesh.name:
        return Refusal("name is missing; give each mesh one")
    if mesh.arch == INVALID_ARCHITECTURE:
        return Refusal("arch is missing; expected WORMHOLE_B0 or BLACKHOLE")
    if not dims or min(dims) < 1:
        return Refusal(
            f"device_topology.dims: {list(dims)}, expected rows and columns of devices, such as [ 1, 8 ]"
        )
    if types and len(types) != len(dims):
        return Refusal(
            f"device_topology.dim_types: {len(types)} for {len(dims)} dims; give one per dimension, or none"
        )
    if not hosts or min(hosts) < 1:
        return Refusal(
            f"host_topology.dims: {list(hosts)}, expected rows and columns of hosts, such as [ 1, 1 ]"
        )
    if len(hosts) != len(dims) or any(size % part for size, part in zip(dims, hosts, strict=True)):
        return Refusal(
            f"host_topology.dims: {list(hosts)} hosts can't divide device_topology.dims {list(dims)} equally; "
            "correct one of the two"
        )
    return _find_in_channels(mesh.channels) if math.prod(dims) > 1 or mesh.HasField("channels") else None


def _find_in_channels(channels: Channels) -> Refusal | None:
    if channels.count < 1:
        return Refusal(f"channels.count: {channels.count}, expected the number of parallel links, 1 or more")
    return None


def _find_in_graph(graph: GraphDescriptor) -> Refusal | None:
    if not graph.name:
        return Refusal("name is missing; give each graph one")
    if not graph.type:
        return Refusal('type is missing; expected one such as "FABRIC"')
    if not graph.instances:
        return Refusal("has no instances; name the meshes or graphs that it consists of")
    kinds = {node.WhichOneof("node") for node in graph.instances}
    if {"mesh", "graph"} <= kinds:
        return Refusal("instances: both meshes and graphs; use only one of the two kinds")
    if graph.HasField("graph_topology"):
        if graph.connections:
            return Refusal("has both graph_topology and connections; keep one of the two")
        return _find_in_channels(graph.graph_topology.channels)
    # A graph with neither describes meshes without links; some of ttnn's own files do.
    return next(filter(None, map(_find_in_connection, graph.connections)), None)


def _find_in_connection(connection: Connection) -> Refusal | None:
    if len(connection.nodes) != 2:
        return Refusal(f"connections: one has {len(connection.nodes)} nodes, expected 2; name both ends")
    return _find_in_channels(connection.channels)


def _find_dangling_reference(descriptor: MeshGraphDescriptor) -> Refusal | None:
    meshes = {mesh.name for mesh in descriptor.mesh_descriptors}
    graphs = {graph.name for graph in descriptor.graph_descriptors}
    nodes = [descriptor.top_level_instance]
    nodes += [node for graph in descriptor.graph_descriptors for node in graph.instances]
    for node in nodes:
        if node.HasField("mesh") and node.mesh.mesh_descriptor not in meshes:
            known = ", ".join(sorted(meshes))
            return Refusal(f"mesh_descriptor: {node.mesh.mesh_descriptor!r}, expected one of {known}")
        if node.HasField("graph") and node.graph.graph_descriptor not in graphs:
            known = ", ".join(sorted(graphs)) or "graph_descriptors, of which the file has none"
            return Refusal(f"graph_descriptor: {node.graph.graph_descriptor!r}, expected one of {known}")
    return None
