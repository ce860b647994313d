"""Cuts one mesh out of a descriptor of several.

ttnn's meshes are linked by ethernet, and its processes by MPI. Ours are linked by neither: a process that read the
descriptor of all meshes would look for the others. So each worker reads a descriptor of its own mesh alone.
"""

from __future__ import annotations

from mesh.descriptors.mesh_graph_pb2 import MeshDescriptor, MeshGraphDescriptor, MeshRef, NodeRef
from services.errors import Refused


def cut_mesh(descriptor: MeshGraphDescriptor, mesh_id: int, source: str) -> MeshGraphDescriptor:
    """Return a descriptor of one mesh, which has id 0 there.

    Args:
        descriptor: valid descriptor.
        mesh_id: id of the mesh in it.
        source: name of the descriptor in errors.

    Raises:
        Refused: there is no such mesh, or it lies on several hosts.
    """
    meshes = list_meshes(descriptor, source)
    mesh = meshes.get(mesh_id)
    if mesh is None:
        raise Refused(
            f"{source}: no mesh has id {mesh_id}, expected one of {_shorten(list(meshes))}; correct mesh_id, or give "
            "another descriptor"
        )
    if set(mesh.host_topology.dims) != {1}:
        raise Refused(
            f"{source}: mesh {mesh_id} has host_topology {list(mesh.host_topology.dims)}, but a worker drives chips of "
            "one host; describe each host's part as a mesh of its own"
        )
    whole = NodeRef(mesh=MeshRef(mesh_descriptor=mesh.name, mesh_id=0))
    return MeshGraphDescriptor(mesh_descriptors=[mesh], top_level_instance=whole)


def list_meshes(descriptor: MeshGraphDescriptor, source: str) -> dict[int, MeshDescriptor]:
    """Return the meshes of a valid descriptor by their ids, in the order of the ids.

    Raises:
        Refused: several meshes have one id.
    """
    by_name = {mesh.name: mesh for mesh in descriptor.mesh_descriptors}
    nodes = [descriptor.top_level_instance]
    nodes += [node for graph in descriptor.graph_descriptors for node in graph.instances]
    meshes: dict[int, MeshDescriptor] = {}
    for node in nodes:
        if not node.HasField("mesh"):
            continue
        if node.mesh.mesh_id in meshes:
            raise Refused(
                f"{source}: several meshes have mesh_id {node.mesh.mesh_id}; give each an id of its own"
            )
        meshes[node.mesh.mesh_id] = by_name[node.mesh.mesh_descriptor]
    return dict(sorted(meshes.items()))


def _shorten(ids: list[int]) -> str:
    shown = [str(each) for each in ids]
    return ", ".join(shown if len(shown) <= 8 else [*shown[:4], "...", shown[-1]])
