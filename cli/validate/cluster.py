"""The cluster that a job's figures are for, and how fast its hosts compute."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aggregator.core.leasing.planning import plan
from cli.options import DEFAULT_MFU
from mesh.backend import choose_dtype, may_drive_chips
from services.config.job import JobConfig
from services.config.models import OwnConfig, RegressionConfig
from services.errors import Refused
from services.input_files import open_input_file
from services.printable import counted, printable, printable_path
from services.sizing.chips import CHIPS, DEFAULT_CHIP, Chip
from services.sizing.flops import find_peak_flops
from services.sizing.measured_split import BlockTimes, PassTime
from services.sizing.step_time import Sharing, estimate_block_times
from services.tensors.reduction_tree import Node

_MOST_MEASURED_BYTES = 1 << 20


@dataclass(frozen=True)
class Cluster:
    """The cluster that a job's figures are for.

    Attributes:
        workers: number of worker daemons; None for the job's `num_workers`.
        tiers: 3 for an optimizer of its own, 2 for one inside the aggregator.
        shards: number of shards; 0 for none.
        chip: name of the chips (`services.sizing.chips.CHIPS`), which must have the memory; None if it is not known.
        link_bits: bits a second of each host's link, each way; None if no times are wanted.
        mfu: share of the chips' peak that a job reaches, where nothing is measured.
        measured: file with the result of `tiermesh measure --json`; None for none.
    """

    workers: int | None = None
    tiers: int = 3
    shards: int = 0
    chip: str | None = None
    link_bits: float | None = None
    mfu: float = DEFAULT_MFU
    measured: Path | None = None

    def choose_chip(self, config: JobConfig) -> tuple[str, Chip, bool]:
        """Return the dtype on a chip, the chip, and whether its figures are known: an emulated one is its host's."""
        dtype = choose_dtype(config.device.backend, config.device.dtype)
        known = self.chip is not None or may_drive_chips(config.device.backend)
        return dtype, CHIPS[self.chip] if self.chip else DEFAULT_CHIP, known


class Computing(NamedTuple):
    """How fast a worker computes.

    Attributes:
        times: times of the model's blocks for a micro-batch.
        source: where they are from, for people.
    """

    times: BlockTimes
    source: str


class _PassTime(BaseModel):
    """Times of a block, or of a range's border."""

    model_config = ConfigDict(strict=True)

    forward_seconds: float = Field(ge=0, le=1e6, allow_inf_nan=False)
    backward_seconds: float = Field(ge=0, le=1e6, allow_inf_nan=False)


class _Measured(BaseModel):
    """The part of `tiermesh measure`'s result that times need."""

    model_config = ConfigDict(strict=True)

    mesh_shape: list[int]
    arch: str
    batch_size: int
    blocks: list[_PassTime] = Field(min_length=1)
    border: _PassTime


def share_out(config: JobConfig, workers: int) -> Sharing:
    """Return how the aggregator shares out a step's micro-batches over workers, or rows of them, of one speed."""
    speeds = dict.fromkeys(range(config.count_holders(workers)), 1.0)
    owners = plan([Node(0, config.micro_batches)], speeds)
    most: Counter[int] = Counter()
    for node, owner in owners.items():
        most[owner] += node.count
    return Sharing(max(most.values()), len(owners), len(most))


def find_computing(config: JobConfig, cluster: Cluster) -> Computing | str:
    """Return how fast a worker computes, or why nobody knows.

    Raises:
        Refused: the file of measured times can't be read, or is about another model, mesh or batch.
    """
    if isinstance(config.model, RegressionConfig | OwnConfig) or config.vocabulary is None:
        return "its operations are known to workers only"
    if cluster.measured is not None:
        return _read_measured(cluster.measured, config)
    _, chip, known = cluster.choose_chip(config)
    rows, columns = config.device.mesh_shape
    peak = find_peak_flops(chip.arch, rows * columns * chip.cores) if known else None
    if peak is None:
        return "an emulated chip has no peak; give --measured FILE, the output of tiermesh measure --json"
    times = estimate_block_times(config, cluster.mfu * peak)
    assert times is not None
    chips = counted(rows * columns, f"{chip.name} chip")
    return Computing(times, f"{100 * cluster.mfu:.3g} % of the peak of {chips} ({peak / 1e12:,.0f} TFLOP/s)")


def _read_measured(path: Path, config: JobConfig) -> Computing:
    with open_input_file("--measured", path, _MOST_MEASURED_BYTES) as file:
        lines = file.read().decode(errors="replace").strip().splitlines()
    where = f"--measured: {printable_path(path)}"
    try:
        found = _Measured.model_validate(json.loads(lines[-1] if lines else ""))
    except (ValueError, ValidationError, RecursionError):
        raise Refused(
            f"{where}: is no result of tiermesh measure; write one with tiermesh measure JOB.yaml --json > FILE"
        ) from None
    expected: Mapping[str, tuple[Any, Any]] = {
        "mesh_shape": (found.mesh_shape, list(config.device.mesh_shape)),
        "batch_size": (found.batch_size, config.batch_size),
        "number of blocks": (len(found.blocks), getattr(config.model, "num_blocks", 0)),
    }
    for name, (given, wanted) in expected.items():
        if given != wanted:
            raise Refused(
                f"{where}: {name} {printable(str(given), 40)} measured, expected {wanted} as in the job; measure this "
                "job's file"
            )
    times = BlockTimes(tuple(map(_pass_time, found.blocks)), _pass_time(found.border))
    return Computing(times, f"measured on {printable(found.arch, 40)}")


def _pass_time(found: _PassTime) -> PassTime:
    return PassTime(found.forward_seconds, found.backward_seconds)
