"""Which mesh graph descriptor ttnn is to read, settled and checked before a device is opened."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mesh.descriptors.mesh_graph_pb2 import (
    RELAXED,
    WORMHOLE_B0,
    Channels,
    MeshDescriptor,
    MeshGraphDescriptor,
    MeshRef,
    MeshTopology,
    NodeRef,
    TorusTopology,
)
from mesh.descriptors.read import OLDER, read_descriptor, written
from mesh.descriptors.shape_check import hold_shape, local_shape
from services.errors import Failed, Refused

VARIABLE = "TT_MESH_GRAPH_DESC_PATH"
HOME = "TT_METAL_HOME"
FOLDER = "tests/tt_metal/tt_fabric/custom_mesh_descriptors"
"""Where tt-metal's source tree has descriptors of meshes that are one row of a board's devices."""

_LINES = {8: ("t3k", 2), 32: ("galaxy", 4)}
"""Devices that form a line by default: name of the board, and how many channels link its neighbours."""


def given_descriptor(environment: Mapping[str, str]) -> Path | None:
    """The file that TT_MESH_GRAPH_DESC_PATH names, None if it isn't set.

    Raises:
        Refused: there is no such file; the line says every place that was tried.
    """
    given = environment.get(VARIABLE)
    if not given:
        return None
    tried = [Path(given).expanduser().absolute()]
    if not Path(given).is_absolute() and environment.get(HOME):
        tried.append(Path(environment[HOME]) / given)
    for path in tried:
        if path.is_file():
            return path
    raise Refused(
        f"{VARIABLE}: {given!r}, but there is no such file (tried {', '.join(map(str, tried))}); name one, or unset it "
        "so that the descriptor is chosen by the number of devices"
    )


def given_shape(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Rows and columns of this host's part of the mesh that TT_MESH_GRAPH_DESC_PATH describes, None if it isn't set.

    Raises:
        Refused: it can't be read, or doesn't say which mesh is this host's.
    """
    path = given_descriptor(environment)
    if path is None:
        return None
    rows, columns = local_shape(read_descriptor(path), path, environment)
    return rows, columns


def hold_given(mesh_shape: tuple[int, int], environment: Mapping[str, str]) -> Path | None:
    """Hold a job's mesh against the descriptor that TT_MESH_GRAPH_DESC_PATH names, if it names one.

    Returns:
        The file.

    Raises:
        Refused: it can't be read, or the mesh doesn't fit it.
    """
    path = given_descriptor(environment)
    if path is not None:
        hold_shape(read_descriptor(path), path, mesh_shape, environment)
    return path


def choose_descriptor(
    mesh_shape: tuple[int, int], environment: Mapping[str, str], folder: Path
) -> Path | None:
    """The descriptor for a mesh; it fits.

    TT_MESH_GRAPH_DESC_PATH if it is set; else 8 or 32 devices in a line are a T3K or a Galaxy: [1, 8] and [1, 32] take
    the file of tt-metal's source tree under TT_METAL_HOME, where there is one, or that which is written here.

    Args:
        mesh_shape: rows and columns.
        environment: of this process.
        folder: where descriptors are written that ttnn has to read but aren't anywhere yet.

    Returns:
        Its file, in the format that ttnn reads; None to let ttnn choose by the kind of board that it finds.

    Raises:
        Refused: the descriptor can't be read or doesn't fit.
        Failed: one can't be written.
    """
    path = hold_given(mesh_shape, environment)
    if path is not None:
        if path.suffix not in OLDER:
            return path
        return _write(folder / f"{path.stem}.textproto", read_descriptor(path))
    rows, columns = mesh_shape
    line = _LINES.get(rows * columns)
    if line is None or min(mesh_shape) > 1:
        return None
    board, channels = line
    name = f"{board}_{rows}x{columns}_mesh_graph_descriptor.textproto"
    if environment.get(HOME):
        found = Path(environment[HOME]) / FOLDER / name
        if found.is_file():
            hold_shape(read_descriptor(found), found, mesh_shape, environment)
            return found
    return _write(folder / name, line_of_devices(mesh_shape, channels))


def line_of_devices(mesh_shape: tuple[int, int], channels: int) -> MeshGraphDescriptor:
    """A descriptor of one mesh on one host, neighbours linked by up to `channels` ethernet channels."""
    mesh = MeshDescriptor(
        name="M0",
        arch=WORMHOLE_B0,
        device_topology=TorusTopology(dims=mesh_shape),
        host_topology=MeshTopology(dims=[1, 1]),
        channels=Channels(count=channels, policy=RELAXED),
    )
    whole = NodeRef(mesh=MeshRef(mesh_descriptor=mesh.name, mesh_id=0))
    return MeshGraphDescriptor(mesh_descriptors=[mesh], top_level_instance=whole)


def _write(path: Path, descriptor: MeshGraphDescriptor) -> Path:
    """Complete or absent: other processes of this host may read it meanwhile."""
    text = written(descriptor)
    try:
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).replace(path)
    except OSError as error:
        raise Failed(
            f"{path}: can't be written ({error.strerror}); make the folder writable, or set {VARIABLE} to a descriptor "
            "that is there"
        ) from None
    return path
