"""Size of what an object keeps: its lists, tables, texts and messages, and those of the objects that it reaches."""

from __future__ import annotations

import functools
import random
import types
from collections import deque
from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

_ELEMENT_BYTES = 8
_LEAVES = (
    type, types.FunctionType, types.MethodType, types.ModuleType, types.BuiltinFunctionType, functools.partial,
    random.Random, range, float, bool, type(None),
)  # fmt: skip


def count_held(root: object) -> int:
    """Return the size in bytes of what an object keeps. An element of a list or table counts 8 bytes."""
    seen: set[int] = set()
    left = [root]
    size = 0
    while left:
        each = left.pop()
        if isinstance(each, _LEAVES) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, int):
            size += each.bit_length() // 8
        elif isinstance(each, str | bytes | bytearray):
            size += len(each)
        elif isinstance(each, Message):
            size += each.ByteSize()
        elif isinstance(each, Mapping):
            size += _ELEMENT_BYTES * len(each)
            left += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set | frozenset | deque):
            size += _ELEMENT_BYTES * len(each)
            left += each
        else:
            left += _attributes_of(each)
    return size


def _attributes_of(each: object) -> list[Any]:
    found = list(getattr(each, "__dict__", {}).values())
    for kind in type(each).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        found += [getattr(each, name, None) for name in ((slots,) if isinstance(slots, str) else slots)]
    return found
