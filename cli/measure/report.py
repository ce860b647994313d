"""Figures of measured blocks and of the splits that follow from them: as one object, and as tables for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cli.tables import format_table
from services.config.job import JobConfig
from services.pipeline.split import BlockRange
from services.printable import format_bytes
from services.sizing.measured_split import BlockTimes, MeasuredBalance, MeasuredSplit, PassTime


@dataclass(frozen=True)
class Measurement:
    """What was measured, and on what.

    Attributes:
        config: config of the job.
        mesh_shape: rows and columns of the mesh of a stage.
        backend: device module, `ttnn` or `emulator`.
        arch: architecture of the chips.
        dtype: dtype of weights and activations.
        passes: number of timed passes of each range.
        times: median times of each range.
        blocks: times of the blocks that follow from them.
    """

    config: JobConfig
    mesh_shape: tuple[int, int]
    backend: str
    arch: str
    dtype: str
    passes: int
    times: Mapping[BlockRange, PassTime]
    blocks: BlockTimes


def describe(measured: Measurement) -> dict[str, Any]:
    """Return what was measured as one JSON object. `tiermesh validate --measured` reads it."""
    config = measured.config
    whole = measured.blocks.of_ranges((BlockRange.whole(len(measured.blocks.blocks)),))
    return {
        "mesh_shape": list(measured.mesh_shape),
        "backend": measured.backend,
        "arch": measured.arch,
        "dtype": measured.dtype,
        "passes": measured.passes,
        "batch_size": config.batch_size,
        "ranges": [
            {"first": each.first, "last": each.stop - 1, **asdict(found)}
            for each, found in measured.times.items()
        ],
        "border": asdict(measured.blocks.border),
        "blocks": [asdict(each) for each in measured.blocks.blocks],
        "model": asdict(PassTime(whole.forward[0], whole.backward[0])),
    }


def describe_splits(
    config: JobConfig, balance: MeasuredBalance, blocks_per_stage: tuple[int, ...]
) -> dict[str, Any]:
    """Return what a pipeline's splits cost, for the same object.

    Args:
        config: config of a job with a pipeline.
        balance: times and memory of the job's splits.
        blocks_per_stage: blocks of each stage of the balanced split.
    """
    assert config.pipeline is not None
    return {
        "schedule": config.pipeline.schedule,
        "micro_batches_each": config.gradient_accumulation_steps,
        "balanced": _describe_split(balance.describe(blocks_per_stage)),
        "present": _describe_split(balance.describe(config.pipeline.blocks_per_stage)),
    }


def format_figures(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines that show the figures of `describe`, and of `describe_splits` if there are some."""
    yield (
        f"mesh {figures['mesh_shape']} on {figures['backend']}: {figures['arch']}, {figures['dtype']}; "
        f"median of {figures['passes']} passes of a micro-batch"
    )
    titles = ["range", "forward", "backward"]
    yield from format_table(
        [
            titles,
            *(
                [name_blocks(each["first"], each["last"] + 1), *_milliseconds(each)]
                for each in figures["ranges"]
            ),
            ["border of a range", *_milliseconds(figures["border"])],
            ["the whole model", *_milliseconds(figures["model"])],
        ]
    )
    if "balanced" not in figures:
        return
    balanced, present = figures["balanced"], figures["present"]
    for name, split in (("present split", present), ("balanced split", balanced)):
        yield (
            f"{name}: bubble {split['bubble']:.1%}, a step of {figures['micro_batches_each']} micro-batches "
            f"{split['step_seconds']:.3f} s ({figures['schedule']}, without transfers between workers)"
        )
        yield from format_table(
            [["stage", "blocks", "a micro-batch", "memory of a chip"], *map(_stage_row, split["stages"])]
        )
    yield "for multihost_config.pipeline_parallel_config:"
    yield f"    blocks_per_rank: {_to_yaml(balanced['stages'])}"


def name_blocks(first: int, stop: int) -> str:
    """Return the name of a range of blocks, for people."""
    return f"block {first}" if stop - first == 1 else f"blocks {first} to {stop - 1}"


def _describe_split(split: MeasuredSplit) -> dict[str, Any]:
    stages = zip(split.blocks_per_stage, split.stage_seconds, split.memory_bytes, strict=True)
    return {
        "stages": [
            {"stage": stage, "blocks": blocks, "seconds": seconds, "memory_bytes": memory_bytes}
            for stage, (blocks, seconds, memory_bytes) in enumerate(stages)
        ],
        "bubble": round(split.bubble, 4),
        "step_seconds": split.step_seconds,
    }


def _stage_row(stage: Mapping[str, Any]) -> list[str]:
    memory = stage["memory_bytes"]
    return [
        str(stage["stage"]),
        str(stage["blocks"]),
        f"{stage['seconds'] * 1e3:.1f} ms",
        "known to workers only" if memory is None else format_bytes(memory),
    ]


def _milliseconds(times: Mapping[str, Any]) -> list[str]:
    return [f"{times[key] * 1e3:.2f} ms" for key in ("forward_seconds", "backward_seconds")]


def _to_yaml(stages: Sequence[Mapping[str, Any]]) -> str:
    return "{" + ", ".join(f"{each['stage']}: {each['blocks']}" for each in stages) + "}"
