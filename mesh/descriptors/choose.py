"""Chooses the mesh graph descriptor that ttnn reads, and checks it before a device is opened."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mesh.descriptors.architecture import DRIVER_FOLDER, check_architecture, find_architectures
from mesh.descriptors.mesh_graph_pb2 import (
    BLACKHOLE,
    RELAXED,
    WORMHOLE_B0,
    Architecture,
    Channels,
    MeshDescriptor,
    MeshGraphDescriptor,
    MeshRef,
    MeshTopology,
    NodeRef,
    TorusTopology,
)
from mesh.descriptors.read import LEGACY_SUFFIXES, format_textproto, read_descriptor
from mesh.descriptors.shape_check import check_shape, find_local_shape
from services.errors import Failed, Refused

PATH_VARIABLE = "TT_MESH_GRAPH_DESC_PATH"
TT_METAL_VARIABLE = "TT_METAL_HOME"
TT_METAL_FOLDER = "tests/tt_metal/tt_fabric/custom_mesh_descriptors"
"""Folder in tt-metal's source tree with descriptors of all devices of a board in one line."""

_LINES = {
    (WORMHOLE_B0, 8): ("t3k_{}x{}_mesh", 2),
    (WORMHOLE_B0, 32): ("galaxy_{}x{}_mesh", 4),
    (BLACKHOLE, 8): ("bh_lb_{}x{}_line", 2),
    (BLACKHOLE, 32): ("bh_galaxy_{}x{}_line", 2),
}
"""Systems whose devices can form a line, by architecture and number of devices.

Each has the beginning of its descriptor's name, as in tt-metal, and the channels between neighbours.
"""
_LINE_LENGTHS = {devices for _, devices in _LINES}


def find_configured_descriptor(environment: Mapping[str, str]) -> Path | None:
    """Return the file that TT_MESH_GRAPH_DESC_PATH names; None if the variable isn't set.

    Raises:
        Refused: there is no such file. The error lists every path that was tried.
    """
    configured = environment.get(PATH_VARIABLE)
    if not configured:
        return None
    tried = [Path(configured).expanduser().absolute()]
    if not Path(configured).is_absolute() and environment.get(TT_METAL_VARIABLE):
        tried.append(Path(environment[TT_METAL_VARIABLE]) / configured)
    for path in tried:
        if path.is_file():
            return path
    raise Refused(
        f"{PATH_VARIABLE}: {configured!r}, but there is no such file (tried {', '.join(map(str, tried))}); name an "
        "existing file, or unset it to choose the descriptor by the number of devices"
    )


def read_configured_shape(environment: Mapping[str, str]) -> tuple[int, int] | None:
    """Return rows and columns of this host's part of the mesh in TT_MESH_GRAPH_DESC_PATH; None if it isn't set.

    Raises:
        Refused: the file can't be read, or it is unknown which mesh belongs to this host.
    """
    path = find_configured_descriptor(environment)
    if path is None:
        return None
    rows, columns = find_local_shape(read_descriptor(path), path, environment)
    return rows, columns


def check_configured_descriptor(mesh_shape: tuple[int, int], environment: Mapping[str, str]) -> Path | None:
    """Check a job's mesh shape against the descriptor in TT_MESH_GRAPH_DESC_PATH.

    Returns:
        The descriptor's file; None if the variable isn't set.

    Raises:
        Refused: the file can't be read, or the mesh doesn't fit it.
    """
    path = find_configured_descriptor(environment)
    if path is not None:
        check_shape(read_descriptor(path), path, mesh_shape, environment)
    return path


def choose_descriptor(
    mesh_shape: tuple[int, int],
    environment: Mapping[str, str],
    folder: Path,
    driver_folder: Path = DRIVER_FOLDER,
) -> Path | None:
    """Choose a descriptor that fits a mesh.

    TT_MESH_GRAPH_DESC_PATH has priority. Otherwise 8 or 32 devices in a line are a LoudBox or a Galaxy. Their
    descriptor comes from tt-metal's source tree under TT_METAL_HOME if it has one, else it is written to `folder`.

    Args:
        mesh_shape: rows and columns.
        environment: environment variables of this process.
        folder: folder for descriptors that have to be written or converted for ttnn.
        driver_folder: folder in which the driver lists this host's chips. Unknown chips count as Wormhole.

    Returns:
        A file in the format that ttnn reads; None to let ttnn choose by the board that it finds.

    Raises:
        Refused: the descriptor can't be read or doesn't fit.
        Failed: a descriptor can't be written.
    """
    architectures = find_architectures(environment, driver_folder)
    path = check_configured_descriptor(mesh_shape, environment)
    if path is not None:
        descriptor = read_descriptor(path)
        check_architecture(descriptor, path, architectures)
        return (
            path
            if path.suffix not in LEGACY_SUFFIXES
            else _write(folder / f"{path.stem}.textproto", descriptor)
        )
    rows, columns = mesh_shape
    if min(mesh_shape) > 1 or rows * columns not in _LINE_LENGTHS:
        return None
    if len(architectures) > 1:
        raise Refused(
            f"device_config.mesh_shape: {list(mesh_shape)}, but this host has chips of several architectures, which "
            f"can't form one mesh; set {PATH_VARIABLE} to a descriptor of those that TT_VISIBLE_DEVICES names"
        )
    (architecture,) = architectures or (WORMHOLE_B0,)
    begin, channels = _LINES[architecture, rows * columns]
    name = f"{begin.format(rows, columns)}_graph_descriptor.textproto"
    if environment.get(TT_METAL_VARIABLE):
        found = Path(environment[TT_METAL_VARIABLE]) / TT_METAL_FOLDER / name
        if found.is_file():
            descriptor = read_descriptor(found)
            check_shape(descriptor, found, mesh_shape, environment)
            check_architecture(descriptor, found, architectures)
            return found
    return _write(folder / name, describe_line(mesh_shape, channels, architecture))


def describe_line(
    mesh_shape: tuple[int, int], channels: int, architecture: Architecture = WORMHOLE_B0
) -> MeshGraphDescriptor:
    """Return a descriptor of one mesh on one host, whose neighbours share up to `channels` ethernet channels."""
    mesh = MeshDescriptor(
        name="M0",
        arch=architecture,
        device_topology=TorusTopology(dims=mesh_shape),
        host_topology=MeshTopology(dims=[1, 1]),
        channels=Channels(count=channels, policy=RELAXED),
    )
    whole = NodeRef(mesh=MeshRef(mesh_descriptor=mesh.name, mesh_id=0))
    return MeshGraphDescriptor(mesh_descriptors=[mesh], top_level_instance=whole)


def _write(path: Path, descriptor: MeshGraphDescriptor) -> Path:
    # Renaming a complete file is atomic: other processes of this host may read it meanwhile.
    text = format_textproto(descriptor)
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
            f"{path}: can't be written ({error.strerror}); make the folder writable, or set {PATH_VARIABLE} to an "
            "existing descriptor"
        ) from None
    return path
