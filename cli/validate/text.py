"""Tables of a job's figures, for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from cli.tables import format_table
from services.config.settings import DEFAULT, TT_TRAIN_DEFAULT
from services.printable import counted, format_bytes

_SHOWN = (
    "name",
    "model",
    "starts_from",
    "data",
    "optimizer",
    "schedule",
    "mesh_shape",
    "data_parallel",
    "tensor_parallel",
    "steps",
    "micro_batches",
    "batch_size",
    "sequences_per_step",
    "tokens_per_step",
    "tokens",
    "epochs",
    "vocabulary",
)
"""Figures with a line each."""
_UNKNOWN = "known to workers only"


def format_report(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that show a report of `report.make_report`."""
    yield from _setting_lines(report["settings"])
    yield "job"
    yield from format_table([[key, _show(report[key])] for key in _SHOWN if report[key] not in (None, 0)])
    yield from _pipeline_lines(report["pipeline"])
    if report["parameters"] is None:
        yield f"parameters, memory, bytes between roles, checkpoints: {_UNKNOWN}"
        return
    total, *parts = report["parameters"].items()
    yield f"parameters: {total[1]:,}"
    yield from format_table([[name, f"{count:,}"] for name, count in parts])
    if report["flops_per_token"]:
        yield f"FLOPs per token: {report['flops_per_token']:,}"
    yield from _device_lines(report["device_memory"])
    yield f"memory of each process (workers: {report['workers']}, tiers: {report['tiers']}, shards: {report['shards']})"
    yield from format_table(
        [
            [
                each["role"],
                format_bytes(each["memory_bytes"]),
                f"+ {format_bytes(each['checkpoint_bytes'])} for a checkpoint"
                if each["checkpoint_bytes"]
                else "",
                each["contents"],
            ]
            for each in report["host_memory"]
        ]
    )
    yield "bytes between roles in a step"
    yield from _link_lines(report["links"])
    disk = report["checkpoints"]
    yield (
        f"checkpoints: {disk['written']} of {format_bytes(disk['bytes_each'])}, of which {disk['kept']} are kept; "
        f"at most {format_bytes(disk['most_bytes'])} on disk"
    )


def _setting_lines(settings: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the settings of each origin under one line: given ones first, then defaults."""
    defaults = (TT_TRAIN_DEFAULT, DEFAULT)
    given = dict.fromkeys(each["origin"] for each in settings if each["origin"] not in defaults)
    for origin in (*given, *defaults):
        found = [each for each in settings if each["origin"] == origin]
        if found:
            yield f"settings: {origin}"
            yield from format_table(
                [
                    [each["key"], json.dumps(each["value"]), each["written"] and f"({each['written']})"]
                    for each in found
                ]
            )


def _device_lines(memory: dict[str, Any] | None) -> Iterator[str]:
    if memory is None:
        yield f"memory of a chip: {_UNKNOWN}"
        return
    of_chip = f" of {format_bytes(memory['chip_bytes'])} ({memory['chip']})" if memory["chip"] else ""
    held = "" if memory["stage"] is None else f" of stage {memory['stage']}"
    yield (
        f"memory of a chip{held}: {format_bytes(memory['total_bytes'])}{of_chip} in {memory['dtype']}; "
        f"the peak is in: {memory['peak']}"
    )
    names = ("weights", "padding", "caches", "inputs", "activations", "gradients", "temporaries")
    notes = {"padding": "part of the weights", "caches": "masks, positions, classes"}
    yield from format_table(
        [[name, format_bytes(memory[f"{name}_bytes"]), notes.get(name, "")] for name in names]
    )


def _pipeline_lines(pipeline: dict[str, Any] | None) -> Iterator[str]:
    if pipeline is None:
        return
    ranges = f", {pipeline['ranges_per_stage']} ranges each" if pipeline["ranges_per_stage"] > 1 else ""
    with_projection = pipeline["bubble_with_projection"]
    also = (
        ""
        if with_projection is None
        else f", {with_projection:.1%} if the projection counts by its operations"
    )
    yield (
        f"pipelines: {pipeline['pipelines']} of {len(pipeline['stages'])} stages{ranges}, "
        f"{counted(pipeline['micro_batches_each'], 'micro-batch', 'micro-batches')} each in a step; schedule "
        f"{pipeline['schedule']}"
    )
    yield f"bubble: {pipeline['bubble']:.1%} with equal time for each block{also}"
    titles = ["stage", "blocks", "parameters", "in flight", "memory of a chip", ""]
    yield from format_table([titles, *(_stage_row(each, pipeline) for each in pipeline["stages"])])
    if pipeline["links"]:
        yield "bytes between stages in a step"
        yield from _link_lines(pipeline["links"])


def _stage_row(stage: dict[str, Any], pipeline: dict[str, Any]) -> list[str]:
    memory = stage["device_memory"]
    return [
        str(stage["stage"]),
        ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in stage["blocks"]),
        f"{stage['parameters']:,}" if memory else _UNKNOWN,
        str(stage["in_flight"]),
        format_bytes(memory["total_bytes"]) if memory else _UNKNOWN,
        "largest" if stage["stage"] == pipeline["largest_stage"] else "",
    ]


def _link_lines(links: Sequence[dict[str, Any]]) -> Iterator[str]:
    return format_table(
        [
            [
                f"{each['sender']} to {each['receiver']}",
                each["content"],
                each["dtype"],
                format_bytes(each["total_bytes"]),
                f"over {each['links']} links" if each["links"] > 1 else "",
            ]
            for each in links
        ]
    )


def _show(value: Any) -> str:
    return f"{value:,}" if type(value) in (int, float) else str(value)
