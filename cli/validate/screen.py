"""What matters of a job, on one screen of 80 columns: the verdict, and a few lines."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

from cli.words import spell_duration
from services.printable import counted, format_bytes

_COLUMNS = 80
_LABEL_COLUMNS = 17
_UNKNOWN = "known to workers only"


def describe_verdict(report: dict[str, Any]) -> str:
    """Return whether a job of `report.make_report` fits on the chips, as one line."""
    memory, verdict = report["device_memory"], report["verdict"]
    if memory is None:
        return "the config is valid; whether it fits is known to workers only"
    needed = format_bytes(memory["total_bytes"])
    if verdict is None:
        return f"the config is valid; it needs {needed} for each emulated chip, of its host's memory"
    of = f"{needed} needed on each chip, {format_bytes(memory['chip_bytes'])} on a {memory['chip']}"
    if verdict == "fits":
        return f"the config is valid and fits: {of}"
    if verdict == "may not fit":
        return f"the config is valid, but may not fit: {of}"
    return f"the config is valid, but workers will refuse it: {of}"


def format_screen(report: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that matter of a report of `report.make_report`."""
    for label, text in _rows(report):
        first, *rest = textwrap.wrap(
            text, _COLUMNS - _LABEL_COLUMNS - 2, break_long_words=False, break_on_hyphens=False
        )
        yield f"  {label:{_LABEL_COLUMNS}}{first}"
        yield from (" " * (2 + _LABEL_COLUMNS) + each for each in rest)
    yield "every setting and figure: --long" + ("" if report["time"] else "; times: --link RATE, such as 10G")


def _rows(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    parameters = report["parameters"]
    count = _UNKNOWN if parameters is None else f"{parameters['total']:,}"
    yield "model", f"{report['model']}, {count} parameters"
    if report["data"]:
        yield "data", _describe_data(report)
    batches = counted(report["micro_batches"], "micro-batch", "micro-batches")
    yield "step", f"{batches} of {report['batch_size']:,}: {report['tokens_per_step']:,} {_tokens(report)}"
    epochs = f", {report['epochs']:,.3g} epochs" if report["epochs"] else ""
    yield "job", f"{counted(report['steps'], 'step')}: {report['tokens']:,} {_tokens(report)}{epochs}"
    yield "workers", _describe_workers(report)
    memory = report["device_memory"]
    if memory is not None:
        stage = "" if memory["stage"] is None else f" of stage {memory['stage']}"
        yield (
            "chip memory",
            f"{format_bytes(memory['total_bytes'])}{stage} in {memory['dtype']}; peak in: {memory['peak']}",
        )
    if report["host_memory"]:
        roles = (f"{each['role']} {format_bytes(_peak_bytes(each))}" for each in report["host_memory"])
        yield "host memory", "; ".join(roles)
    if report["pipeline"]:
        pipeline = report["pipeline"]
        stages = counted(len(pipeline["stages"]), "stage")
        yield "pipelines", f"{pipeline['pipelines']} of {stages}; {pipeline['bubble']:.1%} of the time idle"
    disk = report["checkpoints"]
    if disk is not None:
        yield (
            "checkpoints",
            f"{disk['written']:,} of {format_bytes(disk['bytes_each'])}, {disk['kept']:,} kept",
        )
    yield from _time_rows(report)


def _describe_data(report: dict[str, Any]) -> str:
    names = report["data"].split(", ")
    name = names[0].rpartition("/")[2] if len(names) == 1 else counted(len(names), "file")
    vocabulary = report["vocabulary"]
    return f"{name}, vocabulary {_UNKNOWN if vocabulary is None else f'{vocabulary:,}'}"


def _tokens(report: dict[str, Any]) -> str:
    return "tokens" if report["data"] else "samples"


def _describe_workers(report: dict[str, Any]) -> str:
    busy, holders, workers = report["busy_holders"], report["holders"], report["workers"]
    has_rows = report["pipeline"] is not None and len(report["pipeline"]["stages"]) > 1
    rows = f" in {counted(holders, 'row')}" if has_rows else ""
    used = (
        "all compute"
        if busy == holders
        else f"{busy} of {holders} {'rows compute' if has_rows else 'compute'}"
    )
    where = f"{report['shards']} shards" if report["shards"] else f"{report['tiers']} tiers"
    rows_columns = " x ".join(map(str, report["mesh_shape"]))
    return f"{workers:,}{rows}: {used}; {where}; a mesh of {rows_columns} each"


def _peak_bytes(role: dict[str, Any]) -> int:
    return int(role["memory_bytes"] + role["checkpoint_bytes"])


def _time_rows(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    time = report["time"]
    if time is None:
        return
    if "unknown" in time:
        yield "time", f"unknown: {time['unknown']}"
        return
    gigabits = time["link_bits_per_second"] / 1e9
    yield (
        "time of a step",
        f"{_seconds(time['step_seconds'])}, over links of {gigabits:g} Gbit/s",
    )
    batches = counted(time["most_micro_batches"], "micro-batch", "micro-batches")
    yield (
        "  computing",
        f"{_seconds(time['computing_seconds'])} for {batches}, {time['computing_from']}",
    )
    for name in ("weights", "gradients"):
        whole, exposed = time[f"{name}_seconds"], time[f"{name}_exposed_seconds"]
        yield f"  {name}", f"waits {_seconds(exposed)}; the transfer takes {_seconds(whole)}"
    yield "  update", f"{_seconds(time['update_seconds'])} with messages"
    evaluation = time["evaluation_seconds"]
    each = _UNKNOWN if evaluation is None else _seconds(evaluation)
    yield (
        "time of the job",
        f"{_seconds(time['job_seconds'])}: {_seconds(time['start_seconds'])} until it trains, "
        f"{_seconds(time['steps_seconds'])} of steps, {counted(time['evaluations'], 'evaluation')} of {each}, and "
        f"{_seconds(time['end_seconds'])} after the last step",
    )


def _seconds(seconds: float) -> str:
    """Return a duration with the digits by which the parts of a step can be compared."""
    return f"{seconds:.3g} s" if seconds < 100 else spell_duration(seconds)
