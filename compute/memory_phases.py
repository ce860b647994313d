"""Memory of device and host by phase, with the names of TTML's tracker."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mesh.device import Mesh
from mesh.memory import MemoryCapture, MemorySegment, capture_memory

TRACK_MEMORY = "TTML_TRACK_MEMORY"
"""Environment variable: with the value 1, the memory of the first iteration is measured buffer by buffer."""
WEIGHTS_LOADED = "WEIGHTS_LOADED"
"""Phase in which a model that has been made gets its weights."""
_MEGABYTE = 1 << 20


@dataclass(frozen=True)
class MemoryPhase:
    """Memory at the end of one phase, in bytes. Device memory is that of one chip.

    Attributes:
        name: name of the phase, such as FORWARD_PASS.
        segment: allocations on the device during the phase.
        device_bytes: memory allocated since the capture began and not freed.
        device_peak_bytes: largest value of `device_bytes` since the capture began.
        host_bytes: resident size of this process.
    """

    name: str
    segment: MemorySegment
    device_bytes: int
    device_peak_bytes: int
    host_bytes: int


class MemoryUsageTracker:
    """Memory of device and host, phase by phase: `begin_capture`, a `snapshot` at each phase's end, `end_capture`.

    The names are those of TTML's tracker.

    Args:
        mesh: the mesh whose memory is measured.
        every_buffer: see `mesh.memory.capture_memory`; None to follow TTML_TRACK_MEMORY.

    Attributes:
        phases: phases that have ended, in order.
    """

    def __init__(self, mesh: Mesh, *, every_buffer: bool | None = None) -> None:
        self._mesh = mesh
        self._every_buffer = os.environ.get(TRACK_MEMORY) == "1" if every_buffer is None else every_buffer
        self._capture: MemoryCapture | None = None
        self.phases: list[MemoryPhase] = []

    @property
    def is_capturing(self) -> bool:
        """Whether a capture is under way."""
        return self._capture is not None

    def begin_capture(self) -> None:
        """Start counting from zero.

        Raises:
            RuntimeError: a capture is under way.
        """
        if self._capture is not None:
            raise RuntimeError("begin_capture: a capture is under way; end it first")
        self.phases.clear()
        self._capture = capture_memory(self._mesh, every_buffer=self._every_buffer)

    def snapshot(self, name: str) -> None:
        """End a phase and start the next one.

        Raises:
            RuntimeError: no capture is under way.
        """
        if self._capture is None:
            raise RuntimeError(f"snapshot {name}: no capture is under way; begin one")
        segment = self._capture.segment()
        taken, peak = (
            (self.phases[-1].device_bytes, self.phases[-1].device_peak_bytes) if self.phases else (0, 0)
        )
        self.phases.append(
            MemoryPhase(
                name,
                segment,
                device_bytes=taken + segment.allocated_bytes - segment.freed_bytes,
                device_peak_bytes=max(peak, taken + segment.peak_bytes),
                host_bytes=_read_resident_bytes(),
            )
        )

    def end_capture(self, name: str) -> None:
        """End the last phase and the capture."""
        self.snapshot(name)
        self._stop()

    def print_memory_usage(self, parameters: int) -> None:
        """Print every phase in the lines that tt-train's `analyze_memory.py` reads, and the host's memory.

        Args:
            parameters: number of the model's parameters.
        """
        if not self.phases:
            return
        print(f"Total parameters: {parameters:,}\n=== Memory Usage Summary ===")
        for phase in _as_in_ttml(self.phases):
            print("\n".join(_format_lines(phase)))
        print(f"Overall DRAM Peak: {_show_mb(self.phases[-1].device_peak_bytes)}", flush=True)

    def clear(self) -> None:
        """Forget all phases, and stop the capture if one is under way."""
        self._stop()
        self.phases.clear()

    def _stop(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.stop()


def _as_in_ttml(phases: Sequence[MemoryPhase]) -> list[MemoryPhase]:
    """Return the phases with a model that is made with its weights, and the optimizer's memory, which is elsewhere."""
    shown: list[MemoryPhase] = []
    for phase in phases:
        if phase.name != WEIGHTS_LOADED or not shown:
            shown.append(phase)
            continue
        model = shown.pop()
        shown.append(replace(phase, name=model.name, segment=model.segment.followed_by(phase.segment)))
        shown.append(replace(phase, name="OPTIMIZER_CREATION", segment=MemorySegment()))
    return shown


def _format_lines(phase: MemoryPhase) -> tuple[str, ...]:
    segment = phase.segment
    change = segment.allocated_bytes - segment.freed_bytes
    return (
        f"--- {phase.name} ---",
        f"  DRAM: Segment Peak {_show_mb(segment.peak_bytes)}, Allocations {_show_mb(segment.allocated_bytes)}, "
        f"Deallocations {_show_mb(segment.freed_bytes)}, Segment Change {change / _MEGABYTE:+.2f} MB",
        f"  DRAM: Cumulative Peak {_show_mb(phase.device_peak_bytes)}, "
        f"Cumulative Current {_show_mb(phase.device_bytes)}",
        f"  L1: Peak CB {_show_mb(segment.l1_circular_peak_bytes)}, "
        f"Peak Buffer {_show_mb(segment.l1_buffer_peak_bytes)}, Peak Total {_show_mb(segment.l1_peak_bytes)}",
        f"  Host: Resident {_show_mb(phase.host_bytes)}",
    )


def _show_mb(count: int) -> str:
    return f"{count / _MEGABYTE:.2f} MB"


def _read_resident_bytes() -> int:
    """Return this process's resident size, or its maximum so far where the system has no /proc."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
