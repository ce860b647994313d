"""The door to the device module: the real `ttnn` where a device is there, else the emulator."""

from __future__ import annotations

import importlib
import os
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from services.errors import Refused

BACKENDS = ("auto", "ttnn", "emulator")
DEVICE_FOLDER = Path("/dev/tenstorrent")


def device_present() -> bool:
    """Whether this host has a Tenstorrent device, or TT_METAL_SIMULATOR names a simulator."""
    return DEVICE_FOLDER.exists() or bool(os.environ.get("TT_METAL_SIMULATOR"))


def device_module(backend: str) -> Any:
    """The module that all ops go through.

    `auto` takes `ttnn` if it is installed and a device or simulator is there, else the emulator. Raises Refused for
    an unknown backend, and for `ttnn` where it can't be imported.
    """
    if backend not in BACKENDS:
        raise Refused(f"device_config.backend: {backend!r}, expected one of {', '.join(BACKENDS)}")
    if backend == "auto":
        backend = "ttnn" if find_spec("ttnn") is not None and device_present() else "emulator"
    if backend == "emulator":
        return importlib.import_module("mesh.emulator")
    _set_environment()
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
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiermesh" / f"ttnn-{chips}"
    os.environ.setdefault("TT_METAL_CACHE", str(cache))
    if "TT_METAL_LOGS_PATH" not in os.environ:
        os.environ["TT_METAL_LOGS_PATH"] = tempfile.mkdtemp(prefix="tiermesh-ttnn-")
