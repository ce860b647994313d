"""What a mesh graph descriptor must have."""

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


def why_incomplete(descriptor: MeshGraphDescriptor) -> str:
    """What the first thing is that a descriptor lacks, and how to mend it; empty if it has all."""
    if not descriptor.mesh_descriptors:
        return "has no mesh_descriptors; add one that says how the devices are arranged"
    for mesh in descriptor.mesh_descriptors:
        reason = _mesh(mesh)
        if reason:
            return f"mesh_descriptors {mesh.name!r}: {reason}"
    for graph in descriptor.graph_descriptors:
        reason = _graph(graph)
        if reason:
            return f"graph_descriptors {graph.name!r}: {reason}"
    if not descriptor.HasField("top_level_instance"):
        return "has no top_level_instance; add one that names the mesh or the graph that is the whole system"
    return _dangling(descriptor)


def _mesh(mesh: MeshDescriptor) -> str:
    dims, types = mesh.device_topology.dims, mesh.device_topology.dim_types
    hosts = mesh.host_topology.dims
    if not mesh.name:
        return "name is missing; give each mesh one"
    if mesh.arch == INVALID_ARCHITECTURE:
        return "arch is missing; expected WORMHOLE_B0 or BLACKHOLE"
    if not dims or min(dims) < 1:
        return f"device_topology.dims: {list(dims)}, expected rows and columns of devices, such as [ 1, 8 ]"
    if types and len(types) != len(dims):
        return f"device_topology.dim_types: {len(types)} of them for {len(dims)} dims; give one for each, or none"
    if not hosts or min(hosts) < 1:
        return f"host_topology.dims: {list(hosts)}, expected rows and columns of hosts, such as [ 1, 1 ]"
    if len(hosts) != len(dims) or any(size % part for size, part in zip(dims, hosts, strict=True)):
        return (
            f"host_topology.dims: {list(hosts)} hosts can't share device_topology.dims {list(dims)} equally; "
            "correct one of the two"
        )
    return _channels(mesh.channels) if math.prod(dims) > 1 or mesh.HasField("channels") else ""


def _channels(channels: Channels) -> str:
    if channels.count < 1:
        return f"channels.count: {channels.count}, expected the number of links side by side, 1 or more"
    return ""


def _graph(graph: GraphDescriptor) -> str:
    if not graph.name:
        return "name is missing; give each graph one"
    if not graph.type:
        return 'type is missing; expected one such as "FABRIC"'
    if not graph.instances:
        return "has no instances; name the meshes or graphs that it is made of"
    kinds = {node.WhichOneof("node") for node in graph.instances}
    if {"mesh", "graph"} <= kinds:
        return "instances of two kinds, meshes and graphs; use one kind"
    if graph.HasField("graph_topology"):
        if graph.connections:
            return "has both graph_topology and connections; keep one of the two"
        return _channels(graph.graph_topology.channels)
    # Neither of the two is a system of meshes that aren't linked, as some of ttnn's own files describe.
    return next(filter(None, map(_connection, graph.connections)), "")


def _connection(connection: Connection) -> str:
    if len(connection.nodes) != 2:
        return f"a connection of {len(connection.nodes)} nodes, expected 2"
    return _channels(connection.channels)


def _dangling(descriptor: MeshGraphDescriptor) -> str:
    """A reference to a descriptor that isn't there."""
    meshes = {mesh.name for mesh in descriptor.mesh_descriptors}
    graphs = {graph.name for graph in descriptor.graph_descriptors}
    nodes = [descriptor.top_level_instance]
    nodes += [node for graph in descriptor.graph_descriptors for node in graph.instances]
    for node in nodes:
        if node.HasField("mesh") and node.mesh.mesh_descriptor not in meshes:
            return (
                f"mesh_descriptor: {node.mesh.mesh_descriptor!r}, expected one of {', '.join(sorted(meshes))}"
            )
        if node.HasField("graph") and node.graph.graph_descriptor not in graphs:
            known = ", ".join(sorted(graphs)) or "none: there is no graph_descriptors"
            return f"graph_descriptor: {node.graph.graph_descriptor!r}, expected one of {known}"
    return ""
