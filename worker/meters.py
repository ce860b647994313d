"""What is measured of a worker's training: how fast it goes, and what memory it takes in which phase."""

from __future__ import annotations

import os
import resource
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mesh.device import Mesh
from mesh.memory import MemoryCapture, MemorySegment, capture_memory
from services.config.job import JobConfig

TRACK_MEMORY = "TTML_TRACK_MEMORY"
"""Set to 1: every buffer of the first iteration is noted, and what that gives is printed."""
_MEGABYTE = 1 << 20


class PerformanceMeter:
    """Samples and tokens per second over the newest steps.

    n stamps span n - 1 steps, so the first one's samples don't count.

    Args:
        config: of the job: batch_size, gradient_accumulation_steps, tokens of a sequence.
        window_size: how many stamps are kept.
        clock: seconds, of which only differences matter.
    """

    def __init__(
        self, config: JobConfig, window_size: int = 10, *, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._batch_size = config.batch_size
        self._micro_batches = config.gradient_accumulation_steps
        self._tokens_per_sample: int = getattr(config.model, "max_sequence_length", 1)
        self._clock = clock
        self._steps: deque[tuple[float, int]] = deque(maxlen=window_size)

    def step(self, micro_batches: int | None = None) -> None:
        """A step is done.

        Args:
            micro_batches: in it; `gradient_accumulation_steps` of the job if left out.
        """
        count = self._micro_batches if micro_batches is None else micro_batches
        self._steps.append((self._clock(), count * self._batch_size))

    def get_metrics(self) -> tuple[float, float]:
        """Samples/s and tokens/s; (0, 0) as long as no time has passed between steps."""
        if len(self._steps) < 2:
            return 0.0, 0.0
        seconds = self._steps[-1][0] - self._steps[0][0]
        if seconds <= 0:
            return 0.0, 0.0
        samples_per_second = sum(samples for _, samples in list(self._steps)[1:]) / seconds
        return samples_per_second, samples_per_second * self._tokens_per_sample


@dataclass(frozen=True)
class MemoryPhase:
    """Memory of one phase, in bytes; of the device, of each chip.

    Attributes:
        name: such as FORWARD_PASS.
        segment: what happened to the device's memory in the phase.
        device: taken at its end by what was made since the capture began.
        device_peak: the most that was taken since then.
        host: resident size of this process at its end.
    """

    name: str
    segment: MemorySegment
    device: int
    device_peak: int
    host: int


class MemoryUsageTracker:
    """Memory phase by phase, of device and host: `begin_capture`, a `snapshot` at each phase's end, `end_capture`.

    Args:
        mesh: whose memory.
        every_buffer: see `mesh.memory.capture_memory`; None: if TTML_TRACK_MEMORY is set to 1.
    """

    def __init__(self, mesh: Mesh, *, every_buffer: bool | None = None) -> None:
        self._mesh = mesh
        self._every_buffer = os.environ.get(TRACK_MEMORY) == "1" if every_buffer is None else every_buffer
        self._capture: MemoryCapture | None = None
        self.phases: list[MemoryPhase] = []

    @property
    def capturing(self) -> bool:
        """Whether a capture is under way."""
        return self._capture is not None

    def begin_capture(self) -> None:
        """Start counting from nothing (RuntimeError while a capture is under way)."""
        if self._capture is not None:
            raise RuntimeError("begin_capture: a capture is under way; end it first")
        self.phases.clear()
        self._capture = capture_memory(self._mesh, every_buffer=self._every_buffer)

    def snapshot(self, name: str) -> None:
        """A phase ends here; what follows is the next one's (RuntimeError without a capture)."""
        if self._capture is None:
            raise RuntimeError(f"snapshot {name}: no capture is under way; begin one")
        segment = self._capture.segment()
        taken, peak = (self.phases[-1].device, self.phases[-1].device_peak) if self.phases else (0, 0)
        self.phases.append(
            MemoryPhase(
                name,
                segment,
                device=taken + segment.allocated_bytes - segment.freed_bytes,
                device_peak=max(peak, taken + segment.peak_bytes),
                host=_resident_bytes(),
            )
        )

    def end_capture(self, name: str) -> None:
        """The last phase ends here."""
        self.snapshot(name)
        self._stop()

    def print_memory_usage(self) -> None:
        """Print every phase in the lines that TTML's scripts read, the host's memory beside."""
        for phase in self.phases:
            print("\n".join(_lines(phase)))
        if self.phases:
            print(f"Overall DRAM Peak: {_megabytes(self.phases[-1].device_peak)}", flush=True)

    def clear(self) -> None:
        """Forget all phases, and the capture that may be under way."""
        self._stop()
        self.phases.clear()

    def _stop(self) -> None:
        capture, self._capture = self._capture, None
        if capture is not None:
            capture.stop()


def _lines(phase: MemoryPhase) -> tuple[str, ...]:
    segment = phase.segment
    change = segment.allocated_bytes - segment.freed_bytes
    return (
        f"--- {phase.name} ---",
        f"  DRAM: Segment Peak {_megabytes(segment.peak_bytes)}, Allocations {_megabytes(segment.allocated_bytes)}, "
        f"Deallocations {_megabytes(segment.freed_bytes)}, Segment Change {change / _MEGABYTE:+.2f} MB",
        f"  DRAM: Cumulative Peak {_megabytes(phase.device_peak)}, Cumulative Current {_megabytes(phase.device)}",
        f"  L1: Peak CB {_megabytes(segment.l1_circular_peak_bytes)}, "
        f"Peak Buffer {_megabytes(segment.l1_buffer_peak_bytes)}, Peak Total {_megabytes(segment.l1_peak_bytes)}",
        f"  Host: Resident {_megabytes(phase.host)}",
    )


def _megabytes(count: int) -> str:
    return f"{count / _MEGABYTE:.2f} MB"


def _resident_bytes() -> int:
    """Of this process: now, or at most so far where the system doesn't tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
