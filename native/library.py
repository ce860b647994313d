"""The C library, loaded when this module is imported, and its kernels as functions.

Kernels take addresses and counts and check nothing: services/tensors/kernels/arithmetic.py and plane/update_rules.py
check arrays before they call. A call releases the GIL.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from native import Unusable
from native.sources import LIBRARY, hash_sources

Kernel = Callable[..., None]

_ADDRESS, _COUNT, _FLOAT, _FLAG = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float, ctypes.c_bool
_ARRAYS: dict[str, tuple[type[Any], ...]] = {
    "add": (_ADDRESS, _ADDRESS, _ADDRESS, _COUNT),
    "scale_with_norm": (_ADDRESS, _FLOAT, _ADDRESS, _ADDRESS, _COUNT),
    **dict.fromkeys(
        ("narrow_bf16", "narrow_fp16", "widen_bf16", "widen_fp16", "add_bf16", "add_fp16"),
        (_ADDRESS, _ADDRESS, _COUNT),
    ),
}
_RANGE = (_COUNT, _COUNT, _ADDRESS, _ADDRESS, _COUNT)
_RULES: dict[str, tuple[type[Any], ...]] = {
    "adamw": (*(_ADDRESS,) * 5, *_RANGE, *(_FLOAT,) * 7),
    "sgd": (*(_ADDRESS,) * 3, *_RANGE, *(_FLOAT,) * 5, _FLAG),
}


class _Table(ctypes.Structure):
    """`struct tiermesh_kernels` of tiermesh.h, which describes the kernels."""

    _fields_ = (
        ("clone", ctypes.c_char_p),
        *((name, ctypes.CFUNCTYPE(None, *arguments)) for name, arguments in (_ARRAYS | _RULES).items()),
    )


@dataclass(frozen=True)
class Kernels:
    """The kernels of one clone, by the names of `struct tiermesh_kernels` in tiermesh.h, which describes them."""

    clone: str
    add: Kernel
    scale_with_norm: Kernel
    narrow_bf16: Kernel
    narrow_fp16: Kernel
    widen_bf16: Kernel
    widen_fp16: Kernel
    add_bf16: Kernel
    add_fp16: Kernel
    adamw: Kernel
    sgd: Kernel


def load_library(path: Path = LIBRARY) -> ctypes.CDLL:
    """Load the library of this Tiermesh.

    Raises:
        Unusable: there is none, it was built from other sources, or this machine can't run it.
    """
    remedy = "install Tiermesh again (`make install` in a checkout)"
    if not path.exists():
        raise Unusable(f"{path}: missing, expected Tiermesh's C library; {remedy}")
    try:
        library = ctypes.CDLL(str(path))
        library.tiermesh_sources.restype = ctypes.c_char_p
        sources = library.tiermesh_sources().decode()
    except (OSError, AttributeError) as error:
        raise Unusable(
            f"{path}: no library of Tiermesh for Linux on {os.uname().machine} ({error}); {remedy}"
        ) from None
    if sources != (expected := hash_sources()):
        raise Unusable(f"{path}: built from sources {sources}, expected {expected} as beside it; {remedy}")
    return library


def find_kernels(library: ctypes.CDLL) -> list[Kernels]:
    """Return the kernels of each clone that this CPU can run, the best one first."""
    find = library.tiermesh_find_kernels
    find.argtypes, find.restype = (_COUNT,), ctypes.POINTER(_Table)
    found: list[Kernels] = []
    while table := find(len(found)):
        functions = {name: getattr(table.contents, name) for name in _ARRAYS | _RULES}
        found.append(Kernels(table.contents.clone.decode(), **functions))
    return found


C = load_library()
"""The library."""
KERNELS = find_kernels(C)[0]
"""The kernels that this process uses."""
