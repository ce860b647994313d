"""Arrays that other processes of the host can read in place, with one place per chunk of the layout.

The owner writes a chunk into its place, marks the place with a sequence number, and sends a message that refers to it.
The reader maps the array once and views the place. Nothing is copied. A reader need not release a place: by the step
protocol, the owner knows when all readers are done. Weights are the exception, which a slow worker may still be
reading. There the reader checks the mark again after reading. The kernel carries the message, and that orders the
accesses to memory, so no locks are needed.

The memory is a memfd: it has no name in any folder. The kernel frees it when the last process that maps it has ended,
even by SIGKILL.
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
    """Memory of another process that can't be opened, or that is not the expected one."""


class SharedArray:
    """Memory of this process that other processes can map.

    Args:
        payload_bytes: size of the array.
        place_bytes: size of each chunk's place; the last one may be shorter.
        stripe_count: number of stripes of the layout, if the array has the places of only one; else 1.

    Attributes:
        identity: random number stored in the memory, by which readers notice that a descriptor was reused.
        descriptor: file descriptor of the memory in this process.
        payload: the array, [payload_bytes] uint8, writeable.

    Raises:
        OSError: the system is out of memory, or does not allow or support such memory.
    """

    def __init__(self, payload_bytes: int, place_bytes: int, stripe_count: int = 1) -> None:
        places = -(-payload_bytes // place_bytes)
        header_bytes = _header_bytes(places)
        self.identity = secrets.randbits(64)
        self.descriptor = make_memory(header_bytes + payload_bytes)
        mapped = mmap.mmap(self.descriptor, header_bytes + payload_bytes)
        header = np.frombuffer(mapped, _HEADER, 1)
        header[0] = (self.identity, places, place_bytes, payload_bytes, stripe_count)
        # Peers open the memory by this descriptor. The mapping lives as long as any view of it.
        self._closing = weakref.finalize(self, _close, self.descriptor, header)
        self._place_bytes, self._stripe_count = place_bytes, stripe_count
        self._marks = np.frombuffer(mapped, np.uint64, places, _HEADER.itemsize)
        self.payload: NDArray[np.uint8] = np.frombuffer(mapped, np.uint8, payload_bytes, header_bytes)

    def place(self, chunk: int) -> NDArray[np.uint8]:
        """Return a chunk's place, a writeable view."""
        start = self.start(chunk)
        return self.payload[start : start + self._place_bytes]

    def start(self, chunk: int) -> int:
        """Return the index of a chunk's first byte in the payload."""
        return chunk // self._stripe_count * self._place_bytes

    def mark(self, chunk: int, sequence: int) -> None:
        """Mark a chunk's place with the sequence number of its content; 0 while it is being written."""
        self._marks[chunk // self._stripe_count] = sequence

    def is_marked(self, chunk: int, sequence: int) -> bool:
        """Return whether a chunk's place is marked with this sequence number now."""
        return int(self._marks[chunk // self._stripe_count]) == sequence

    def close(self) -> None:
        """Close the descriptor, so that no process can open the memory, and tell readers; existing views stay valid."""
        self._closing()


class MappedArray:
    """Read-only mapping of a `SharedArray` of another process.

    Args:
        process: id of the other process.
        descriptor: file descriptor of the memory in that process.
        identity: identity that the memory must have.

    Attributes:
        payload: the array, [payload_bytes] uint8, read-only.
        stripe_count: number of stripes of the layout, if the array has the places of only one; else 1.

    Raises:
        NotShared, OSError: the memory can't be opened, or is another one.
    """

    def __init__(self, process: int, descriptor: int, identity: int) -> None:
        opened = open_memory(process, descriptor, os.O_RDONLY)
        try:
            size_bytes = os.fstat(opened).st_size
            if size_bytes < _HEADER.itemsize:
                raise NotShared("the memory is too small for a header")
            mapped = mmap.mmap(opened, size_bytes, prot=mmap.PROT_READ)
        finally:
            os.close(opened)
        header = np.frombuffer(mapped, _HEADER, 1)[0]
        places, self._place_bytes = int(header["places"]), int(header["place_bytes"])
        payload_bytes, self.stripe_count = int(header["payload_bytes"]), int(header["stripe_count"])
        if int(header["identity"]) != identity:
            raise NotShared("the identity is that of other memory")
        # The header is checked against the file size, so that nothing is read beyond its end.
        if not self._place_bytes or not self.stripe_count or places != -(-payload_bytes // self._place_bytes):
            raise NotShared("the header contradicts itself")
        if size_bytes != _header_bytes(places) + payload_bytes:
            raise NotShared("the size is not that of the header")
        self._identity = np.frombuffer(mapped, np.uint64, 1)
        self._marks = np.frombuffer(mapped, np.uint64, places, _HEADER.itemsize)
        self.payload: NDArray[np.uint8] = np.frombuffer(
            mapped, np.uint8, payload_bytes, _header_bytes(places)
        )

    @property
    def is_closed(self) -> bool:
        """Whether the owner has closed the memory, which this mapping alone may keep from being freed."""
        return not self._identity[0]

    def place(self, chunk: int) -> NDArray[np.uint8]:
        """Return a chunk's place, a read-only view; empty if there is no such chunk."""
        start = chunk // self.stripe_count * self._place_bytes
        return self.payload[start : start + self._place_bytes]

    def chunk_at(self, start: int) -> int:
        """Return the index of a chunk in whose place a byte of the payload lies."""
        return start // self._place_bytes * self.stripe_count

    def is_marked(self, chunk: int, sequence: int) -> bool:
        """Return whether a chunk's place is marked with this sequence number now."""
        place = chunk // self.stripe_count
        return place < self._marks.size and int(self._marks[place]) == sequence != 0


def _close(descriptor: int, header: NDArray[np.void]) -> None:
    """Close a shared array's descriptor, and tell its readers by an identity of 0."""
    header["identity"] = 0
    os.close(descriptor)


def make_memory(size_bytes: int) -> int:
    """Create zeroed memory that only this user's processes can open and no process can resize.

    Returns:
        Its file descriptor.

    Raises:
        OSError: the system is out of memory, or does not allow or support such memory.
    """
    if not hasattr(os, "memfd_create"):
        raise OSError("this system has no memfd_create")
    memory = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.fchmod(memory, 0o600)
        os.ftruncate(memory, size_bytes)
        # Allocate all pages now: one that is missing later would be a bus error in the middle of a copy.
        os.posix_fallocate(memory, 0, size_bytes)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, _SEALS)
    except BaseException:
        os.close(memory)
        raise
    return memory


def open_memory(process: int, descriptor: int, flags: int) -> int:
    """Open memory that another process of this user created with `make_memory`.

    Args:
        process: id of the other process.
        descriptor: file descriptor of the memory in that process.
        flags: `os.O_RDONLY` or `os.O_RDWR`.

    Returns:
        A file descriptor of this process.

    Raises:
        NotShared, OSError: the memory can't be opened, or is something else.
    """
    path = PROC / str(process) / "fd" / str(descriptor)
    if not str(path.readlink()).startswith(f"/memfd:{MEMORY_NAME} "):
        raise NotShared(f"{path} is no memory of Tiermesh")
    opened = os.open(path, flags | os.O_CLOEXEC | os.O_NOCTTY)
    try:
        if os.fstat(opened).st_uid != os.geteuid():
            raise NotShared(f"{path} belongs to another user")
        # If the owner could shorten it, this process might read past its end and die of SIGBUS.
        if fcntl.fcntl(opened, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK == 0:
            raise NotShared(f"{path} is not sealed against shrinking")
    except BaseException:
        os.close(opened)
        raise
    return opened


def _header_bytes(places: int) -> int:
    """Return the size of header and marks, rounded up to whole pages."""
    return -(-(_HEADER.itemsize + 8 * places) // _PAGE_BYTES) * _PAGE_BYTES
