"""Configuration folders like those of tt-train's multi-host examples."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

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
from mesh.descriptors.read import format_textproto

MakeFolder = Callable[..., Path]


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


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Return a function that writes `configurations/NAME` with the files that are given, and returns the folder."""

    def make(
        name: str = "boxes",
        *,
        hosts: str | None = None,
        bindings: str | None = None,
        meshes: int | None = None,
        shape: tuple[int, int] = (1, 8),
        mesh_hosts: tuple[int, int] = (1, 1),
    ) -> Path:
        folder = tmp_path / "configurations" / name
        folder.mkdir(parents=True)
        if hosts is not None:
            (folder / "hosts.txt").write_text(hosts)
        if bindings is not None:
            (folder / "rank_bindings.yaml").write_text(bindings)
        if meshes is not None:
            (folder / "mgd.textproto").write_text(
                format_textproto(describe_meshes(meshes, shape, mesh_hosts))
            )
        return folder

    return make
