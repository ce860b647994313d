"""Compiler of the kernels: decides whether this process uses compiled ones, and compiles them with numba.

Numba compiles a module's kernels on import, for explicit types and without fast-math. So they do single IEEE 754
operations in the order written, and the numpy paths give the same bits. The machine code is cached by source and CPU in
the user's folder `tiermesh/kernels`, under `XDG_CACHE_HOME` or `~/.cache`. With `TIERMESH_KERNELS=numpy`, or without
numba, numpy computes everything.
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
"""Environment variable that chooses the path: `auto` (the default), `numba` or `numpy`."""

F = TypeVar("F", bound=Callable[..., Any])

_lock = threading.Lock()
_loaded: dict[str, ModuleType | None] = {}
_cached = True  # whether numba has a cache folder that it can write to


def load(module: str) -> ModuleType | None:
    """Return a module of compiled kernels, compiled or read from the cache; None if numpy is to compute.

    The choice is logged once per module. Compiling takes seconds the first time on a host, so daemons load at start.

    Args:
        module: full name of the module.

    Raises:
        Refused: the environment variable has an unknown value, or asks for numba, which can't be imported.
    """
    if module not in _loaded:
        with _lock:
            if module not in _loaded:
                _loaded[module] = _load(module)
    return _loaded[module]


def jit(signature: object) -> Callable[[F], F]:
    """Return a decorator that compiles a function for one signature, without GIL and fast-math, and caches it."""
    numba: Any = importlib.import_module("numba")
    decorator: Callable[[F], F] = numba.njit(signature, nogil=True, error_model="numpy", cache=_cached)
    return decorator


def _load(module: str) -> ModuleType | None:
    wanted = os.environ.get(VARIABLE) or "auto"
    if wanted not in ("auto", "numba", "numpy"):
        raise Refused(f"{VARIABLE} {wanted}: expected auto, numba or numpy; auto is the default")
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
                f"{VARIABLE} numba: numba can't be imported ({error}); install it, or set auto"
            ) from None
        log.info(
            "%s: numpy computes, with the same bits but slower; numba can't be imported: %s", module, error
        )
        return None
    seconds = time.perf_counter() - started
    log.info("%s: compiled kernels, ready after %.1f s, cached in %s", module, seconds, place)
    return compiled


def _set_up() -> str:
    """Import numba and set its cache folder; return text for people that names the folder."""
    global _cached
    numba: Any = importlib.import_module("numba")
    if numba.config.CACHE_DIR:  # set by the user's NUMBA_CACHE_DIR, or by an earlier call
        return str(numba.config.CACHE_DIR)
    folder = _cache_folder()
    if folder is None:
        _cached = False
        return "no folder, as this user has no home; set XDG_CACHE_HOME to name one"
    try:
        # Cached machine code is run unchecked, so no other user may write to the folder.
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
    except RuntimeError:  # no HOME, and no entry in the password database
        return None
    return caches / "tiermesh" / "kernels"
