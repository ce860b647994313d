"""pipeline: memory of a stage's activations, and the bubble of schedules, of pipelines in one process.

Memory comes from `PipelineStep` on submeshes of the emulator. It is the peak of a stage's chip during a lease under
1F1B, counted from the lease's start, with 32 micro-batches over 8.

The bubble comes from threads that follow the schedules in real time. A thread is a stage. Its passes are pauses, the
same for each block, so that the machine's cores don't matter. Between stages are queues that hold one message. The
figure is the largest distance of the measured bubble from (p-1)/(vm+p-1), as a share of that.
"""

from __future__ import annotations

import threading
import time
from queue import Queue

import numpy as np

from benchmarks.harness.job_settings import load_setting
from benchmarks.harness.report import report
from mesh.axes import Axes
from mesh.device import open_mesh
from mesh.memory import capture_memory
from services.config.pipeline import PipelineConfig
from services.pipeline.schedule import LEAST_CREDITS, Pass, Schedule, ScheduleKind
from training.pipeline.stages import Compute
from training.pipeline.step import PipelineStep
from training.range_step import FinishedPass

MEMORY_BOUND = 1.05
BUBBLE_BOUND = 0.10
INTERLEAVED_BOUND = 0.15
STAGES = (2, 4)
BLOCKS = 8
MICRO_BATCHES = 8
MANY_MICRO_BATCHES = 32
FORWARD_SECONDS_PER_BLOCK = 0.005


def run() -> bool:
    """Measure memory, then bubbles."""
    memory = _report_memory()
    bubble = _report_bubble("pipeline_bubble", BUBBLE_BOUND, ranges_per_stage=1)
    return _report_bubble("pipeline_bubble_interleaved", INTERLEAVED_BOUND, ranges_per_stage=2) and (
        bubble and memory
    )


def _report_memory() -> bool:
    ratios, details = [], []
    for stages in STAGES:
        few, many = _measure_activations(stages)
        ratios += [after / before for before, after in zip(few, many, strict=True)]
        for count, peaks in ((MICRO_BATCHES, few), (MANY_MICRO_BATCHES, many)):
            shown = ", ".join(f"{peak / 2**20:.2f}" for peak in peaks)
            details.append(f"{stages} stages, {count} micro-batches: {shown} MiB at the peak")
    return report("pipeline_memory", max(ratios), MEMORY_BOUND, *details)


def _measure_activations(stages: int) -> tuple[list[int], list[int]]:
    """Return the peak bytes of each stage with few micro-batches, and with many."""
    config = load_setting(f"transformer_config.num_blocks={BLOCKS}")
    pipeline = PipelineConfig(blocks_per_stage=(BLOCKS // stages,) * stages)
    with open_mesh((stages, 1), backend="emulator", dtype=config.device.dtype) as mesh:
        meshes = mesh.split(stages, Axes())
        step = PipelineStep(config, pipeline, meshes)
        weights = step.initial_weights()
        for index, entry in enumerate(step.layout.entries):
            step.load(index, weights[entry.offset : entry.stop])
        gradient = np.empty(step.layout.elements, np.float32)

        def discard(range_index: int, index: int, compute: Compute) -> FinishedPass:
            del index
            return compute(gradient[step.ranges[range_index]], lambda offset: None)

        def measure(micro_batches: int) -> list[int]:
            captures = [capture_memory(each, every_buffer=False) for each in meshes]
            step.micro_batches(0, 0, micro_batches, discard)
            return [capture.segment().peak_bytes for capture in captures]

        step.micro_batches(0, 0, 1, discard)  # makes masks and other constants
        peaks = measure(MICRO_BATCHES), measure(MANY_MICRO_BATCHES)
        step.close()
    return peaks


def _report_bubble(name: str, bound: float, *, ranges_per_stage: int) -> bool:
    distances, details = [], []
    for stages in STAGES:
        kind: ScheduleKind = "interleaved_1f1b" if ranges_per_stage > 1 else "1f1b"
        measured = _measure_bubble(Schedule(kind, stages, MICRO_BATCHES, ranges_per_stage))
        expected = (stages - 1) / (ranges_per_stage * MICRO_BATCHES + stages - 1)
        distances.append(abs(measured / expected - 1))
        details.append(
            f"{kind}, {stages} stages, {MICRO_BATCHES} micro-batches: {100 * measured:.2f} % idle, "
            f"{100 * expected:.2f} % by the formula"
        )
    return report(name, max(distances), bound, *details)


def _measure_bubble(schedule: Schedule) -> float:
    """Return the share of all stages' time, from the first forward to the last backward pass, without a pass."""
    blocks = BLOCKS / schedule.ranges
    links: dict[tuple[int, bool], Queue[Pass]] = {
        (stage, is_backward): Queue(LEAST_CREDITS)
        for stage in range(schedule.stages)
        for is_backward in (False, True)
    }
    spans: list[tuple[float, float]] = []

    def follow(stage: int) -> None:
        for one in schedule.passes(stage):
            if schedule.is_fed(one):
                received = links[stage, one.is_backward].get(timeout=60)
                assert received == one
            started = time.perf_counter()
            time.sleep(blocks * FORWARD_SECONDS_PER_BLOCK * (2 if one.is_backward else 1))
            spans.append((started, time.perf_counter()))
            successor = schedule.successor(one)
            if successor is not None:
                links[successor.range_index % schedule.stages, one.is_backward].put(successor, timeout=60)

    threads = [threading.Thread(target=follow, args=(stage,)) for stage in range(schedule.stages)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    makespan = max(stop for _, stop in spans) - min(start for start, _ in spans)
    busy = sum(stop - start for start, stop in spans)
    return 1 - busy / (schedule.stages * makespan)
