"""Arrays of one process that others on the host read where they lie: a place per chunk of the layout.

The owner writes a chunk into its place, marks the place with a sequence number, and sends a message that refers to it;
the reader maps the array once, and views the place. Nothing is copied, and nothing is given back: what lies in a place
stays until the owner, by the step protocol, knows that nobody needs it. Where it can't know (weights that a slow worker
still reads), the reader looks at the mark again after it has read. The message, which the kernel carries, is what
orders the memory: nothing in it is waited for.

The memory is a memfd, which no folder holds and the kernel takes back when the last process that has it is gone,
however it went.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import secrets
import weakref
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

MEMORY_NAME = "tiermesh"
PROC = Path("/proc")

_HEADER = np.dtype(
    [(name, "<u8") for name in ("identity", "places", "place_bytes", "payload_bytes", "stripe_count")]
)
_PAGE_BYTES = 4096
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


class NotShared(Exception):
    """What was found is not the memory that was meant, or it can't be seen."""


class SharedArray:
    """Memory of this process that others may map.

    Args:
        payload_bytes: of the whole array.
        place_bytes: of a chunk's place; the last one may be shorter.
        stripe_count: 1 for places of all chunks of a layout, else for every so many-th chunk's only.

    Attributes:
        identity: random; the memory carries it, so that a descriptor used anew is not mistaken for it.
        descriptor: by which this process has it open.
        payload: [payload_bytes] uint8, writeable.

    Raises:
        OSError: there is no such memory (any more), or it is not allowed.
    """

    def __init__(self, payload_bytes: int, place_bytes: int, stripe_count: int = 1) -> None:
        places = -(-payload_bytes // place_bytes)
        header_bytes = _header_bytes(places)
        self.identity = secrets.randbits(64)
        self.descriptor = make_memory(header_bytes + payload_bytes)
        # The descriptor is kept for peers to open it; the mapping lives as long as views of it do.
        self._closing = weakref.finalize(self, os.close, self.descriptor)
        mapped = mmap.mmap(self.descriptor, header_bytes + payload_bytes)
        header = np.frombuffer(mapped, _HEADER, 1)
        header[0] = (self.identity, places, place_bytes, payload_bytes, stripe_count)
        self._place_bytes, self._stripe_count = place_bytes, stripe_count
        self._marks = np.frombuffer(mapped, np.uint64, places, _HEADER.itemsize)
        self.payload: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8, payload_bytes, header_bytes)

    def place(self, chunk: int) -> NDArray[np.uint8]:
        """Where a chunk lies, a writeable view."""
        start = chunk // self._stripe_count * self._place_bytes
        return self.payload[start : start + self._place_bytes]

    def mark(self, chunk: int, sequence: int) -> None:
        """Say that a chunk's place holds what this number stands for; 0 while it is being written."""
        self._marks[chunk // self._stripe_count] = sequence

    def is_marked(self, chunk: int, sequence: int) -> bool:
        """Whether a chunk's place holds what this number stands for, now."""
        return int(self._marks[chunk // self._stripe_count]) == sequence

    def close(self) -> None:
        """Let nobody open it any more; views of it stay."""
        self._closing()


class MappedArray:
    """A `SharedArray` of another process, read-only.

    Args:
        process: its id.
        descriptor: by which that process has the memory open.
        identity: that the memory must carry.

    Attributes:
        payload: [payload_bytes] uint8, read-only.
        stripe_count: 1 if it has places for all chunks of a layout, side by side.

    Raises:
        NotShared, OSError: it can't be seen, or is something else.
    """

    def __init__(self, process: int, descriptor: int, identity: int) -> None:
        opened = open_memory(process, descriptor, os.O_RDONLY)
        try:
            size_bytes = os.fstat(opened).st_size
            if size_bytes < _HEADER.itemsize:
                raise NotShared("memory without a header")
            mapped = mmap.mmap(opened, size_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(opened)
        header = np.frombuffer(mapped, _HEADER, 1)[0]
        places, self._place_bytes = int(header["places"]), int(header["place_bytes"])
        payload_bytes, self.stripe_count = int(header["payload_bytes"]), int(header["stripe_count"])
        if int(header["identity"]) != identity:
            raise NotShared("another process's memory")
        # What a header says is held against the file: nothing is read beyond its end.
        if not self._place_bytes or not self.stripe_count or places != -(-payload_bytes // self._place_bytes):
            raise NotShared("a header that contradicts itself")
        if size_bytes != _header_bytes(places) + payload_bytes:
            raise NotShared("memory of another size than its header says")
        self._marks = np.frombuffer(mapped, np.uint64, places, _HEADER.itemsize)
        self.payload: NDArray[np.uint8] = np.frombuffer(
            mapped, np.uint8, payload_bytes, _header_bytes(places)
        )

    def place(self, chunk: int) -> NDArray[np.uint8]:
        """Where a chunk lies, a read-only view; empty if there is no such chunk."""
        start = chunk // self.stripe_count * self._place_bytes
        return self.payload[start : start + self._place_bytes]

    def is_marked(self, chunk: int, sequence: int) -> bool:
        """Whether a chunk's place holds what this number stands for, now."""
        place = chunk // self.stripe_count
        return place < self._marks.size and int(self._marks[place]) == sequence != 0


def make_memory(size_bytes: int) -> int:
    """The descriptor of new memory, all zero, that only this user's processes can open and nobody can resize.

    Raises:
        OSError: there is no such memory (any more), or it is not allowed.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memory without a name")
    memory = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(memory, 0o600)
        os.ftruncate(memory, size_bytes)
        # Now or never: a page that can't be had later would be a bus error in the middle of a copy.
        os.posix_fallocate(memory, 0, size_bytes)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(memory)
        raise
    return memory


def open_memory(process: int, descriptor: int, flags: int) -> int:
    """Open what `make_memory` made in another process of this user.

    Raises:
        NotShared, OSError: it can't be seen, or is something else.
    """
    path = PROC / str(process) / "fd" / str(descriptor)
    if not str(path.readlink()).startswith(f"/memfd:{MEMORY_NAME} "):
        raise NotShared("no memory there")
    opened = os.open(path, flags | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            raise NotShared("another user's")
        # Whoever could shorten it could make this process read past its end.
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
            raise NotShared("memory that can be shortened")
    except BaseException:
        os.close(opened)
        raise
    return opened


def _header_bytes(places: int) -> int:
    """Header and marks, in whole pages."""
    return -(-(_HEADER.itemsize + 8 * places) // _PAGE_BYTES) * _PAGE_BYTES
