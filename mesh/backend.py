"""The door to the device module: the real `ttnn` where a device is there, else the emulator."""

from __future__ import annotations

import importlib
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mesh.descriptors.choose import VARIABLE, choose_descriptor, hold_given
from services.errors import Failed, Refused

BACKENDS = ("auto", "ttnn", "emulator")
DEVICE_FOLDER = Path("/dev/tenstorrent")

_read: tuple[str, str] | None = None
"""TT_MESH_GRAPH_DESC_PATH as it was given, and the file that ttnn has read, which it does once a process."""


def device_present() -> bool:
    """Whether this host has a Tenstorrent device, or TT_METAL_SIMULATOR names a simulator."""
    return DEVICE_FOLDER.exists() or bool(os.environ.get("TT_METAL_SIMULATOR"))


def hold_mesh(mesh_shape: tuple[int, int], backend: str) -> Path | None:
    """Hold a mesh of (rows, columns) against TT_MESH_GRAPH_DESC_PATH, if that is set and the backend heeds it.

    Returns:
        The descriptor's file.

    Raises:
        Refused: it can't be read, or the mesh does not fit it.
    """
    return None if backend == "emulator" else hold_given(mesh_shape, os.environ)


def device_module(backend: str, mesh_shape: tuple[int, int] = (1, 1)) -> Any:
    """The module that all ops go through, ready to open a mesh of (rows, columns).

    `auto` takes `ttnn` if it is installed and a device or simulator is there, else the emulator. What ttnn reads from
    the environment is set before it is imported, the mesh graph descriptor among it.

    Raises:
        Refused: an unknown backend, `ttnn` where it can't be imported, a descriptor that the mesh does not fit.
        Failed: ttnn has read another descriptor already.
    """
    if backend not in BACKENDS:
        raise Refused(f"device_config.backend: {backend!r}, expected one of {', '.join(BACKENDS)}")
    if backend == "auto":
        backend = "ttnn" if find_spec("ttnn") is not None and device_present() else "emulator"
    if backend == "emulator":
        return importlib.import_module("mesh.emulator")
    _set_environment()
    _set_descriptor(mesh_shape)
    try:
        return importlib.import_module("ttnn")
    except ImportError as error:
        raise Refused(
            f"device_config.backend: 'ttnn' can't be imported here ({error}); install its wheel (CPython 3.10 or 3.12, "
            "x86-64 Linux), or set device_config.backend to emulator"
        ) from error


def _set_environment() -> None:
    """What ttnn reads at import, where the person who started us hasn't said otherwise.

    Without these it logs to standard output, leaves a folder in the working directory, and processes that drive
    different chips of one host would share a kernel cache.
    """
    os.environ.setdefault("TT_METAL_LOGGER_LEVEL", "off")
    os.environ.setdefault("LOGURU_LEVEL", "INFO")
    chips = os.environ.get("TT_VISIBLE_DEVICES", "all").replace(",", "-")
    os.environ.setdefault("TT_METAL_CACHE", str(_cache() / f"ttnn-{chips}"))
    if "TT_METAL_LOGS_PATH" not in os.environ:
        os.environ["TT_METAL_LOGS_PATH"] = tempfile.mkdtemp(prefix="tiermesh-ttnn-")


def _set_descriptor(mesh_shape: tuple[int, int]) -> None:
    global _read
    given = os.environ.get(VARIABLE, "")
    if _read is not None and given == _read[1]:  # set here, for an earlier mesh
        given = _read[0]
    environment = {**os.environ, VARIABLE: given}
    chosen = str(choose_descriptor(mesh_shape, environment, _cache() / "descriptors") or "")
    if _read is not None and chosen != _read[1]:
        raise Failed(
            f"device_config.mesh_shape: {list(mesh_shape)} needs {chosen or 'the mesh graph descriptor of the board'}, "
            f"but ttnn reads one descriptor a process and has {_read[1] or 'that of the board'}; restart this process"
        )
    _read = given, chosen
    if chosen:
        os.environ[VARIABLE] = chosen


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiermesh"
