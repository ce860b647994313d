"""Memory of the chips: what is allocated now, and the peaks between two points in time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mesh.device import Mesh


@dataclass(frozen=True)
class ChipMemory:
    """DRAM of each chip in bytes, as its allocator counts it, and the number of its banks."""

    total_bytes: int
    allocated_bytes: int
    banks: int


def read_chip_memory(mesh: Mesh) -> ChipMemory:
    """Return the DRAM figures of one chip. All chips of a mesh allocate the same."""
    view = mesh.tt.get_memory_view(mesh.handle, mesh.tt.BufferType.DRAM)
    banks = view.num_banks
    return ChipMemory(banks * view.total_bytes_per_bank, banks * view.total_bytes_allocated_per_bank, banks)


def find_chip_limit(mesh: Mesh) -> ChipMemory | None:
    """Return the DRAM figures of one chip; None if it is emulated and has the memory of its host."""
    return None if mesh.backend == "emulator" else read_chip_memory(mesh)


@dataclass(frozen=True)
class MemorySegment:
    """Allocations of one chip between two points in time, in bytes.

    Attributes:
        peak_bytes: largest increase of allocated DRAM over the amount at the start.
        allocated_bytes: sum of all DRAM allocations.
        freed_bytes: sum of all DRAM deallocations.
        l1_circular_peak_bytes: peak of circular buffers in one core's L1; 0 if unknown.
        l1_buffer_peak_bytes: peak of tensors in L1; 0 if unknown.
        l1_peak_bytes: peak of circular buffers and tensors together; 0 if unknown.
    """

    peak_bytes: int = 0
    allocated_bytes: int = 0
    freed_bytes: int = 0
    l1_circular_peak_bytes: int = 0
    l1_buffer_peak_bytes: int = 0
    l1_peak_bytes: int = 0

    def followed_by(self, later: MemorySegment) -> MemorySegment:
        """Return what happened in this segment and in the one after it."""
        return MemorySegment(
            max(self.peak_bytes, self.allocated_bytes - self.freed_bytes + later.peak_bytes),
            self.allocated_bytes + later.allocated_bytes,
            self.freed_bytes + later.freed_bytes,
            max(self.l1_circular_peak_bytes, later.l1_circular_peak_bytes),
            max(self.l1_buffer_peak_bytes, later.l1_buffer_peak_bytes),
            max(self.l1_peak_bytes, later.l1_peak_bytes),
        )


class MemoryCapture(Protocol):
    """Observer of a mesh's memory, active from its construction until `stop`."""

    def segment(self) -> MemorySegment:
        """Return what happened since the last call, or since the start."""

    def stop(self) -> None:
        """End the capture."""


def capture_memory(mesh: Mesh, *, every_buffer: bool) -> MemoryCapture:
    """Start a capture of a mesh's memory.

    Args:
        mesh: open mesh.
        every_buffer: whether ttnn records each buffer, which slows it down. Without it, peaks between the ends of
            segments are missed. The emulator counts every buffer in both cases.
    """
    memory = getattr(mesh.handle, "memory", None)
    if memory is not None:
        return _EmulatorCapture(memory)
    return _GraphCapture(mesh) if every_buffer else _AllocatorCapture(mesh)


class _EmulatorCapture:
    """Capture from the emulator's own counters."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory
        self._start()

    def _start(self) -> None:
        self._memory.reset_peak()
        self._live_bytes, self._allocated_bytes = self._memory.live_bytes, self._memory.allocated_bytes

    def segment(self) -> MemorySegment:
        allocated_bytes = self._memory.allocated_bytes - self._allocated_bytes
        segment = MemorySegment(
            peak_bytes=self._memory.peak_bytes - self._live_bytes,
            allocated_bytes=allocated_bytes,
            freed_bytes=allocated_bytes - (self._memory.live_bytes - self._live_bytes),
        )
        self._start()
        return segment

    def stop(self) -> None:
        """Do nothing: the emulator always counts."""


class _AllocatorCapture:
    """Capture from the allocator's figures at the start and the end of each segment."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._allocated_bytes = read_chip_memory(mesh).allocated_bytes

    def segment(self) -> MemorySegment:
        allocated_bytes = read_chip_memory(self._mesh).allocated_bytes
        change, self._allocated_bytes = allocated_bytes - self._allocated_bytes, allocated_bytes
        return MemorySegment(max(change, 0), max(change, 0), max(-change, 0))

    def stop(self) -> None:
        """Do nothing: there is nothing to end."""


class _GraphCapture:
    """Capture from ttnn's graph of operations, which records every buffer."""

    def __init__(self, mesh: Mesh) -> None:
        self._graph = mesh.tt._ttnn.graph  # The public wrapper in the package needs torch.
        self._banks = mesh.tt.get_memory_view(mesh.handle, mesh.tt.BufferType.DRAM).num_banks
        self._active = False
        self._start()

    def _start(self) -> None:
        self._graph.begin_graph_capture(self._graph.RunMode.NORMAL)
        self._active = True

    def segment(self) -> MemorySegment:
        segment = summarise_graph(self._graph.end_graph_capture(), self._banks)
        self._start()
        return segment

    def stop(self) -> None:
        if self._active:
            self._active = False
            self._graph.end_graph_capture()


def summarise_graph(nodes: Iterable[Mapping[str, Any]], banks: int) -> MemorySegment:
    """Sum up the allocations of one chip in a graph that ttnn captured.

    Args:
        nodes: nodes of the graph, in order.
        banks: number of DRAM banks of a chip.
    """
    live_bytes = peak_bytes = allocated_bytes = freed_bytes = 0
    l1_buffer_bytes = circular_peak_bytes = l1_buffer_peak_bytes = l1_peak_bytes = 0
    circular_bytes: Counter[int] = (
        Counter()
    )  # By device. A circular buffer inside an L1 tensor takes no memory.
    for node in nodes:
        kind, values = node["node_type"], node["params"]
        if kind in ("buffer_allocate", "buffer_deallocate"):
            sign = 1 if kind == "buffer_allocate" else -1
            if values["type"] == "DRAM":
                size_bytes = banks * int(values["max_size_per_bank"])
                live_bytes += sign * size_bytes
                allocated_bytes += max(sign, 0) * size_bytes
                freed_bytes += max(-sign, 0) * size_bytes
            elif values["type"].startswith("L1"):
                l1_buffer_bytes += sign * int(values["max_size_per_bank"])
        elif kind == "circular_buffer_allocate":
            if values["globally_allocated"] == "0":
                circular_bytes[values["device_id"]] += int(values["size"])
        elif kind == "circular_buffer_deallocate_all":
            circular_bytes.pop(values["device_id"], None)
        else:
            continue
        fullest_bytes = max(circular_bytes.values(), default=0)
        peak_bytes = max(peak_bytes, live_bytes)
        l1_peak_bytes = max(l1_peak_bytes, fullest_bytes + l1_buffer_bytes)
        circular_peak_bytes = max(circular_peak_bytes, fullest_bytes)
        l1_buffer_peak_bytes = max(l1_buffer_peak_bytes, l1_buffer_bytes)
    return MemorySegment(
        peak_bytes, allocated_bytes, freed_bytes, circular_peak_bytes, l1_buffer_peak_bytes, l1_peak_bytes
    )
