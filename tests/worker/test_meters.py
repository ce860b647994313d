"""Meters of the worker: n time stamps span n - 1 steps, and memory is measured phase by phase."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from compute.memory_phases import MemoryUsageTracker
from mesh.device import Mesh
from mesh.memory import MemorySegment, summarise_graph
from services.config.job import JobConfig
from services.config.models import LinearRegressionConfig
from worker.meters import PerformanceMeter


def _load_config(**fields: Any) -> JobConfig:
    return JobConfig(model=LinearRegressionConfig(), **{"batch_size": 8, **fields})


class Clock:
    """A clock that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def _make_meter(config: JobConfig, times: list[float], window_size: int = 10) -> PerformanceMeter:
    clock = Clock()
    meter = PerformanceMeter(config, window_size, clock=clock)
    for each in times:
        clock.now = each
        meter.step()
    return meter


# ---- performance ----


def test_ten_stamps_span_nine_steps() -> None:
    meter = _make_meter(_load_config(gradient_accumulation_steps=4), [float(second) for second in range(10)])
    assert meter.get_metrics() == (32.0, 32.0)


def test_only_the_newest_steps_count() -> None:
    meter = _make_meter(_load_config(), [0.0, 100.0, 101.0, 102.0], window_size=3)
    assert meter.get_metrics()[0] == 8.0


def test_rates_are_zero_before_time_has_passed() -> None:
    assert _make_meter(_load_config(), []).get_metrics() == (0.0, 0.0)
    assert _make_meter(_load_config(), [5.0]).get_metrics() == (0.0, 0.0)
    assert _make_meter(_load_config(), [5.0, 5.0]).get_metrics() == (0.0, 0.0)


def test_steps_count_with_their_own_number_of_micro_batches() -> None:
    clock = Clock()
    meter = PerformanceMeter(_load_config(), clock=clock)
    for seconds, micro_batches in ((0.0, 100), (1.0, 1), (3.0, 5)):
        clock.now = seconds
        meter.step(micro_batches)
    assert meter.get_metrics()[0] == pytest.approx(6 * 8 / 3)


def test_tokens_of_a_sequence() -> None:
    class Model:
        max_sequence_length = 256

    class Config:
        batch_size, gradient_accumulation_steps, model = 4, 2, Model()

    meter = _make_meter(Config(), [0.0, 2.0])  # type: ignore[arg-type]
    assert meter.get_metrics() == (4.0, 1024.0)


# ---- memory ----


def _allocate(mesh: Mesh, tiles: int) -> Any:
    tt = mesh.tt
    return tt.ones([tiles * 32, 32], dtype=tt.float32, layout=tt.TILE_LAYOUT, device=mesh.handle)


PAGES = 12 * 32 * 32 * 4
"""Bytes that 12 tiles take on a chip: one tile in each bank."""


def test_memory_by_phase(mesh: Mesh) -> None:
    kept_from_before = _allocate(mesh, 12)
    tracker = MemoryUsageTracker(mesh)
    tracker.begin_capture()
    kept = _allocate(mesh, 12)
    tracker.snapshot("FORWARD_PASS")
    dropped = _allocate(mesh, 36)
    del dropped, kept
    tracker.end_capture("BACKWARD_PASS")
    forward, backward = tracker.phases
    assert (forward.device_bytes, forward.device_peak_bytes) == (PAGES, PAGES)
    assert forward.segment == MemorySegment(peak_bytes=PAGES, allocated_bytes=PAGES)
    assert (backward.device_bytes, backward.device_peak_bytes) == (0, 4 * PAGES)
    assert (backward.segment.peak_bytes, backward.segment.allocated_bytes) == (3 * PAGES, 3 * PAGES)
    assert backward.segment.freed_bytes == 4 * PAGES
    assert forward.host_bytes > 1 << 20
    del kept_from_before


SUMMARY = re.compile(r"=== Memory Usage Summary ===.*?Overall DRAM Peak[^\n]*", re.DOTALL)
SIZES = (
    r"\s*\n\s*DRAM: Segment Peak ([^,]+), Allocations ([^,]+), Deallocations ([^,]+), Segment Change ([^\n]+)"
    r"\s*\n\s*DRAM: Cumulative Peak ([^,]+), Cumulative Current ([^\n]+)"
)
ANALYSED = ("MODEL_CREATION", "OPTIMIZER_CREATION", "FORWARD_PASS", "BACKWARD_PASS")
"""What tt-train's analyze_memory.py looks for, and the phases whose sizes it reads."""


def test_analyze_memory_finds_what_it_reads(mesh: Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    """The script takes the weights for part of MODEL_CREATION, and compares with a phase for the optimizer."""
    tracker = MemoryUsageTracker(mesh)
    tracker.begin_capture()
    tracker.snapshot("MODEL_CREATION")
    kept = [_allocate(mesh, 12 * 22)]  # 22 tiles of 4096 bytes in each of 12 banks: 1.03 MiB
    tracker.snapshot("WEIGHTS_LOADED")
    kept.append(_allocate(mesh, 12 * 22))
    tracker.snapshot("FORWARD_PASS")
    kept.pop()
    tracker.snapshot("BACKWARD_PASS")
    tracker.end_capture("FIRST_ITERATION_COMPLETE")
    tracker.print_memory_usage(270_336)
    printed = capsys.readouterr().out
    (summary,) = SUMMARY.findall(printed)
    before = printed[: printed.index(summary)].replace(",", "")
    found = re.search(r"Total parameters:\s*(\d+)", before)
    assert found and found[1] == "270336"
    phases = {name: re.findall(f"--- {name} ---{SIZES}", summary) for name in ANALYSED}
    zero, one, two = "0.00 MB", "1.03 MB", "2.06 MB"
    assert phases == {
        "MODEL_CREATION": [(one, one, zero, "+1.03 MB", one, one)],
        "OPTIMIZER_CREATION": [(zero, zero, zero, "+0.00 MB", one, one)],
        "FORWARD_PASS": [(one, one, zero, "+1.03 MB", two, two)],
        "BACKWARD_PASS": [(zero, zero, one, "-1.03 MB", two, one)],
    }
    peak = re.search(r"Overall DRAM Peak:\s*([^\n,]+)", summary)
    assert peak and peak[1] == two
    del kept


def test_two_segments_make_one() -> None:
    first = MemorySegment(peak_bytes=5, allocated_bytes=5, freed_bytes=3, l1_peak_bytes=7)
    second = MemorySegment(peak_bytes=4, allocated_bytes=9, freed_bytes=9, l1_peak_bytes=6)
    both = MemorySegment(peak_bytes=6, allocated_bytes=14, freed_bytes=12, l1_peak_bytes=7)
    assert first.followed_by(second) == both


def test_printed_lines_have_the_host_s_memory_and_l1_too(
    mesh: Mesh, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = MemoryUsageTracker(mesh)
    tracker.begin_capture()
    tracker.end_capture("FIRST_ITERATION_COMPLETE")
    tracker.print_memory_usage(1)
    lines = capsys.readouterr().out.splitlines()
    assert lines[5] == "  L1: Peak CB 0.00 MB, Peak Buffer 0.00 MB, Peak Total 0.00 MB"
    assert re.fullmatch(r"  Host: Resident \d+\.\d\d MB", lines[6])
    tracker.clear()
    tracker.print_memory_usage(1)
    assert capsys.readouterr().out == ""


def test_snapshots_need_a_capture(mesh: Mesh) -> None:
    tracker = MemoryUsageTracker(mesh)
    with pytest.raises(RuntimeError, match=r"snapshot X\b.*capture"):
        tracker.snapshot("X")
    tracker.begin_capture()
    with pytest.raises(RuntimeError, match="under way"):
        tracker.begin_capture()
    tracker.clear()
    tracker.begin_capture()
    assert tracker.phases == []


def _make_node(kind: str, **params: Any) -> dict[str, Any]:
    return {"node_type": kind, "params": params}


def test_ttnn_records_of_buffers() -> None:
    nodes = [
        _make_node("capture_start"),
        _make_node("buffer_allocate", type="DRAM", max_size_per_bank=2048),
        _make_node("circular_buffer_allocate", size=100, device_id=0, globally_allocated="0"),
        _make_node("circular_buffer_allocate", size=200, device_id=0, globally_allocated="0"),
        _make_node("circular_buffer_allocate", size=200, device_id=1, globally_allocated="0"),
        _make_node("circular_buffer_allocate", size=900, device_id=0, globally_allocated="1"),
        _make_node("buffer_allocate", type="L1", max_size_per_bank=50),
        _make_node("circular_buffer_deallocate_all", device_id=0),
        _make_node("circular_buffer_deallocate_all", device_id=1),
        _make_node("buffer_allocate", type="DRAM", max_size_per_bank=4096),
        _make_node("buffer_deallocate", type="DRAM", max_size_per_bank=2048),
        _make_node("buffer_deallocate", type="L1", max_size_per_bank=50),
        _make_node("circular_buffer_allocate", size=10, device_id=0, globally_allocated="0"),
    ]
    assert summarise_graph(nodes, 12) == MemorySegment(
        peak_bytes=12 * 6144,
        allocated_bytes=12 * 6144,
        freed_bytes=12 * 2048,
        l1_circular_peak_bytes=300,
        l1_buffer_peak_bytes=50,
        l1_peak_bytes=350,
    )


def test_memory_is_that_of_one_chip(open_emulator: Callable[..., Mesh]) -> None:
    mesh = open_emulator((1, 2))
    tracker = MemoryUsageTracker(mesh, every_buffer=True)
    tracker.begin_capture()
    kept = _allocate(mesh, 12)
    tracker.end_capture("ONE")
    assert tracker.phases[0].device_bytes == PAGES
    del kept
