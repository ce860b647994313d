"""Compiled kernels: whether there are any in this process, and how they are made.

Numba compiles them when their module is imported, for explicit types, without fast-math: single IEEE operations in
the order written, so that the numpy path beside each has the same bits. The machine code is cached in a folder of the
user's (`tiermesh/kernels` under `XDG_CACHE_HOME`, else under `~/.cache`), keyed by source and CPU.
`TIERMESH_KERNELS=numpy`, or numba's absence, leaves all to numpy.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from services.errors import Refused

log = logging.getLogger("tiermesh.kernels")

VARIABLE = "TIERMESH_KERNELS"
"""The environment variable that chooses: `auto` (the default), `numba` or `numpy`."""

F = TypeVar("F", bound=Callable[..., Any])

_lock = threading.Lock()
_loaded: dict[str, ModuleType | None] = {}
_cached = True  # whether numba has a folder that it may write to


def load(module: str) -> ModuleType | None:
    """The module of compiled kernels of this name, compiled or read from the cache; None: numpy is to compute.

    What it came to is logged once for each module. May take seconds the first time on a host: daemons load at start.

    Raises:
        Refused: the environment variable is none of its values, or asks for numba where it can't be imported.
    """
    if module not in _loaded:
        with _lock:
            if module not in _loaded:
                _loaded[module] = _load(module)
    return _loaded[module]


def jit(signature: object) -> Callable[[F], F]:
    """A decorator that compiles a function for one signature: no GIL, no fast-math, cached."""
    numba: Any = importlib.import_module("numba")
    decorator: Callable[[F], F] = numba.njit(signature, nogil=True, error_model="numpy", cache=_cached)
    return decorator


def _load(module: str) -> ModuleType | None:
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in ("auto", "numba", "numpy"):
        raise Refused(f"{VARIABLE} {wanted}: expected auto, numba or numpy; auto is usual")
    if wanted == "numpy":
        log.info("%s: numpy computes, as %s says", module, VARIABLE)
        return None
    started = time.perf_counter()
    try:
        place = _set_up()
        compiled = importlib.import_module(module)
    except ImportError as error:
        if wanted == "numba":
            raise Refused(
                f"{VARIABLE} numba: it can't be imported ({error}); install it, or set auto"
            ) from None
        log.info(
            "%s: numpy computes, with the same bits but slower; numba can't be imported: %s", module, error
        )
        return None
    seconds = time.perf_counter() - started
    log.info("%s: compiled kernels, ready after %.1f s, cached in %s", module, seconds, place)
    return compiled


def _set_up() -> str:
    """Import numba and choose its cache folder; returns the folder for people."""
    global _cached
    numba: Any = importlib.import_module("numba")
    if numba.config.CACHE_DIR:  # the user's NUMBA_CACHE_DIR, or chosen before
        return str(numba.config.CACHE_DIR)
    folder = _cache_folder()
    if folder is None:
        _cached = False
        return "no folder, as this user has no home; XDG_CACHE_HOME names one"
    try:
        # Machine code is run as it is found: the folder must be nobody else's to write.
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK) and folder.stat().st_uid == os.getuid()
    except OSError:
        writable = False
    if not writable:
        _cached = False
        return f"no folder, as {folder} can't be written to"
    numba.config.CACHE_DIR = str(folder)
    return str(folder)


def _cache_folder() -> Path | None:
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        caches = given if given.is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # neither HOME nor an entry of the user
        return None
    return caches / "tiermesh" / "kernels"
