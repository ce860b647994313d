"""Mesh graph descriptors of several meshes, like those of tt-train's multi-host examples."""

from __future__ import annotations

from mesh.descriptors.mesh_graph_pb2 import (
    RELAXED,
    STRICT,
    WORMHOLE_B0,
    Channels,
    GraphDescriptor,
    GraphRef,
    GraphTopology,
    MeshDescriptor,
    MeshGraphDescriptor,
    MeshRef,
    MeshTopology,
    NodeRef,
    TorusTopology,
)


def describe_meshes(
    count: int, shape: tuple[int, int] = (1, 8), hosts: tuple[int, int] = (1, 1)
) -> MeshGraphDescriptor:
    """Return a descriptor of equal meshes, all linked to all, with ids from 0."""
    mesh = MeshDescriptor(
        name="BOX",
        arch=WORMHOLE_B0,
        device_topology=TorusTopology(dims=shape),
        host_topology=MeshTopology(dims=hosts),
        channels=Channels(count=2, policy=STRICT),
    )
    graph = GraphDescriptor(
        name="ALL",
        type="FABRIC",
        instances=[NodeRef(mesh=MeshRef(mesh_descriptor="BOX", mesh_id=number)) for number in range(count)],
        graph_topology=GraphTopology(
            layout_type=GraphTopology.ALL_TO_ALL, channels=Channels(count=2, policy=RELAXED)
        ),
    )
    top = NodeRef(graph=GraphRef(graph_descriptor="ALL", graph_id=0))
    return MeshGraphDescriptor(mesh_descriptors=[mesh], graph_descriptors=[graph], top_level_instance=top)
