"""Selects the device module: the real `ttnn` where a device is present, else the emulator."""

from __future__ import annotations

import importlib
import os
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from mesh.descriptors.choose import PATH_VARIABLE, check_configured_descriptor, choose_descriptor
from services.errors import Failed, Refused

BACKENDS = ("auto", "ttnn", "emulator")
Dtype = Literal["bfloat16", "float32"]
"""Type of weights and activations."""
DEVICE_FOLDER = Path("/dev/tenstorrent")

_loaded_descriptor: tuple[str, str] | None = None
"""TT_MESH_GRAPH_DESC_PATH as the user set it, and the file that ttnn read. ttnn reads one file per process."""


def has_device(folder: Path = DEVICE_FOLDER) -> bool:
    """Return whether this host has a Tenstorrent device, or TT_METAL_SIMULATOR names a simulator."""
    return folder.exists() or bool(os.environ.get("TT_METAL_SIMULATOR"))


def may_drive_chips(backend: str) -> bool:
    """Return whether a job with this `device_config.backend` may run on chips, on some host."""
    return backend != "emulator"


def drives_chips(backend: str, *, has_chips: bool) -> bool:
    """Return whether a job with this `device_config.backend` runs on chips on a host that has some, or has none."""
    return may_drive_chips(backend) and (has_chips or backend != "auto")


def choose_dtype(backend: str, dtype: Dtype | None) -> Dtype:
    """Return the type of weights and activations: the one that a job gives, else that of chips, if it may use some."""
    return dtype or ("bfloat16" if may_drive_chips(backend) else "float32")


def check_mesh_shape(mesh_shape: tuple[int, int], backend: str) -> Path | None:
    """Check a mesh of (rows, columns) against the descriptor in TT_MESH_GRAPH_DESC_PATH.

    The emulator needs no descriptor, so the check is skipped for it.

    Returns:
        The descriptor's file; None if there was nothing to check.

    Raises:
        Refused: the descriptor can't be read, or the mesh doesn't fit it.
    """
    return check_configured_descriptor(mesh_shape, os.environ) if may_drive_chips(backend) else None


def load_device_module(
    backend: str,
    mesh_shape: tuple[int, int] = (1, 1),
    *,
    import_module: Callable[[str], Any] = importlib.import_module,
    device_folder: Path = DEVICE_FOLDER,
) -> Any:
    """Return the module that all ops go through, ready to open a mesh of (rows, columns).

    ttnn reads its environment at import, including the path of the mesh graph descriptor. The variables are
    therefore set first.

    Args:
        backend: `auto`, `ttnn` or `emulator`. `auto` takes `ttnn` if it is installed and a device or simulator is
            present, else the emulator.
        mesh_shape: rows and columns of the mesh to open.
        import_module: function that imports a module by name.
        device_folder: folder that exists where a device is present.

    Raises:
        Refused: the backend is unknown, `ttnn` can't be imported, or the mesh doesn't fit the descriptor.
        Failed: ttnn already read another descriptor in this process.
    """
    if backend not in BACKENDS:
        raise Refused(f"device_config.backend: {backend!r}, expected one of {', '.join(BACKENDS)}")
    if backend == "auto":
        backend = "ttnn" if find_spec("ttnn") is not None and has_device(device_folder) else "emulator"
    if backend == "emulator":
        return import_module("mesh.emulator")
    _set_environment()
    _set_descriptor(mesh_shape)
    try:
        return import_module("ttnn")
    except ImportError as error:
        raise Refused(
            f"device_config.backend: 'ttnn' can't be imported here ({error}); install its wheel (CPython 3.10 or 3.12, "
            "x86-64 Linux), or set device_config.backend to emulator"
        ) from error


def _set_environment() -> None:
    """Set what ttnn reads at import, unless the user set it.

    The defaults of ttnn log to standard output and create a folder in the working directory. They also share one
    kernel cache between processes that drive different chips of a host.
    """
    os.environ.setdefault("TT_METAL_LOGGER_LEVEL", "off")
    os.environ.setdefault("LOGURU_LEVEL", "INFO")
    chips = os.environ.get("TT_VISIBLE_DEVICES", "all").replace(",", "-")
    os.environ.setdefault("TT_METAL_CACHE", str(_cache_folder() / f"ttnn-{chips}"))
    if "TT_METAL_LOGS_PATH" not in os.environ:
        os.environ["TT_METAL_LOGS_PATH"] = tempfile.mkdtemp(prefix="tiermesh-ttnn-")


def _set_descriptor(mesh_shape: tuple[int, int]) -> None:
    global _loaded_descriptor
    configured = os.environ.get(PATH_VARIABLE, "")
    if _loaded_descriptor is not None and configured == _loaded_descriptor[1]:
        configured = _loaded_descriptor[0]  # The variable holds the value that an earlier call set.
    environment = {**os.environ, PATH_VARIABLE: configured}
    chosen = str(choose_descriptor(mesh_shape, environment, _cache_folder() / "descriptors") or "")
    if _loaded_descriptor is not None and chosen != _loaded_descriptor[1]:
        raise Failed(
            f"device_config.mesh_shape: {list(mesh_shape)} needs {chosen or 'the mesh graph descriptor of the board'}, "
            f"but ttnn reads one descriptor per process and has read {_loaded_descriptor[1] or 'that of the board'}; "
            "restart this process"
        )
    _loaded_descriptor = configured, chosen
    if chosen:
        os.environ[PATH_VARIABLE] = chosen


def _cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiermesh"
