"""What is taken and free of the devices' memory, now and at most in the meantime."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mesh.device import Mesh


@dataclass(frozen=True)
class ChipMemory:
    """Bytes of each chip's DRAM, as its allocator sees them."""

    total_bytes: int
    allocated_bytes: int


def chip_memory(mesh: Mesh) -> ChipMemory:
    """The DRAM of one chip; all chips of a mesh allocate alike."""
    view = mesh.tt.get_memory_view(mesh.handle, mesh.tt.BufferType.DRAM)
    banks = view.num_banks
    return ChipMemory(banks * view.total_bytes_per_bank, banks * view.total_bytes_allocated_per_bank)


@dataclass(frozen=True)
class MemorySegment:
    """What happened to one chip's memory between two points in time, in bytes.

    Attributes:
        peak: the most that was taken of DRAM, above what was taken at the start.
        allocated: of DRAM, all in all.
        freed: of DRAM, all in all.
        l1_circular_peak: the most that circular buffers took of a core's L1; 0 where that isn't known.
        l1_buffer_peak: the most that tensors in L1 took.
        l1_peak: the most that both took together.
    """

    peak: int = 0
    allocated: int = 0
    freed: int = 0
    l1_circular_peak: int = 0
    l1_buffer_peak: int = 0
    l1_peak: int = 0


class MemoryCapture(Protocol):
    """Watches a mesh's memory, segment by segment, from when it is made until `stop`."""

    def segment(self) -> MemorySegment:
        """What happened since the segment before."""

    def stop(self) -> None:
        """Watch no more."""


def capture_memory(mesh: Mesh, *, every_buffer: bool) -> MemoryCapture:
    """A capture of a mesh's memory.

    Args:
        mesh: whose memory.
        every_buffer: have ttnn note each buffer, which slows it down; else its peaks are those at the ends of segments.
            The emulator always knows them.
    """
    memory = getattr(mesh.handle, "memory", None)
    if memory is not None:
        return _CountedCapture(memory)
    return _NotedCapture(mesh) if every_buffer else _LookedAtCapture(mesh)


class _CountedCapture:
    """Of a device that counts for itself."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._start()

    def _start(self) -> None:
        self._memory.reset_peak()
        self._taken, self._allocated = self._memory.live_bytes, self._memory.allocated_bytes

    def segment(self) -> MemorySegment:
        allocated = self._memory.allocated_bytes - self._allocated
        found = MemorySegment(
            peak=self._memory.peak_bytes - self._taken,
            allocated=allocated,
            freed=allocated - (self._memory.live_bytes - self._taken),
        )
        self._start()
        return found

    def stop(self) -> None:
        """Counting costs nothing."""


class _LookedAtCapture:
    """What a look at the allocator at both ends tells."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._taken = chip_memory(mesh).allocated_bytes

    def segment(self) -> MemorySegment:
        taken = chip_memory(self._mesh).allocated_bytes
        change, self._taken = taken - self._taken, taken
        return MemorySegment(max(change, 0), max(change, 0), max(-change, 0))

    def stop(self) -> None:
        """Nothing was begun."""


class _NotedCapture:
    """What ttnn notes of every buffer in its graph of operations."""

    def __init__(self, mesh: Mesh) -> None:
        self._graph = mesh.tt._ttnn.graph  # the public wrapper of the package needs torch
        self._banks = mesh.tt.get_memory_view(mesh.handle, mesh.tt.BufferType.DRAM).num_banks
        self._noting = False
        self._start()

    def _start(self) -> None:
        self._graph.begin_graph_capture(self._graph.RunMode.NORMAL)
        self._noting = True

    def segment(self) -> MemorySegment:
        found = segment_of(self._graph.end_graph_capture(), self._banks)
        self._start()
        return found

    def stop(self) -> None:
        if self._noting:
            self._noting = False
            self._graph.end_graph_capture()


def segment_of(nodes: Iterable[Mapping[str, Any]], banks: int) -> MemorySegment:
    """What the nodes of a graph that ttnn noted say of one chip's memory, which has `banks` banks of DRAM."""
    taken = peak = allocated = freed = 0
    buffers = circular_peak = buffer_peak = l1_peak = 0
    circular: Counter[int] = Counter()  # by device; those laid over a tensor in L1 take nothing more
    for node in nodes:
        kind, values = node["node_type"], node["params"]
        if kind in ("buffer_allocate", "buffer_deallocate"):
            sign = 1 if kind == "buffer_allocate" else -1
            if values["type"] == "DRAM":
                size = banks * int(values["max_size_per_bank"])
                taken += sign * size
                allocated, freed = allocated + max(sign, 0) * size, freed + max(-sign, 0) * size
            elif values["type"].startswith("L1"):
                buffers += sign * int(values["max_size_per_bank"])
        elif kind == "circular_buffer_allocate":
            if values["globally_allocated"] == "0":
                circular[values["device_id"]] += int(values["size"])
        elif kind == "circular_buffer_deallocate_all":
            circular.pop(values["device_id"], None)
        else:
            continue
        fullest = max(circular.values(), default=0)
        peak, l1_peak = max(peak, taken), max(l1_peak, fullest + buffers)
        circular_peak, buffer_peak = max(circular_peak, fullest), max(buffer_peak, buffers)
    return MemorySegment(peak, allocated, freed, circular_peak, buffer_peak, l1_peak)
