"""The command `tiermesh measure`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from cli.measure.report import Measurement, describe, describe_splits, format_figures, name_blocks
from cli.output import Output
from services.config.job import JobConfig
from services.config.models import CustomConfig, ExternalConfig, RegressionConfig
from services.config.pipeline import count_blocks
from services.errors import Failed, Refused
from services.pipeline.split import BlockRange, StageRun
from services.printable import format_bytes
from services.runtime.process import limit_blas_to_one_thread
from services.sizing.chips import DEFAULT_CHIP
from services.sizing.device_memory import estimate_device_memory
from services.sizing.fitting import LARGEST_ERROR
from services.sizing.measured_split import MeasuredBalance
from services.sizing.portion import Portion
from services.tasks import start_thread

if TYPE_CHECKING:
    from mesh.memory import ChipMemory

_GRACE_SECONDS = 30.0
"""Time beyond the limit after which a pass is taken to hang: the limit itself is kept between passes."""
_SECTION = "multihost_config.pipeline_parallel_config"

T = TypeVar("T")


@dataclass(frozen=True)
class MeasureOptions:
    """How to measure.

    Attributes:
        passes: number of timed passes of each range.
        limit_seconds: limit on the time of everything.
        data_dir: folder that is searched for data missing at the job's path; None for none.
        allowed_models: code of users' own models that the job may name.
    """

    passes: int
    limit_seconds: float
    data_dir: Path | None
    allowed_models: Collection[str]


def run(path: Path, overrides: Sequence[str], options: MeasureOptions, output: Output) -> None:
    """Measure the blocks of a job's model on this host's mesh, and print the split of a pipeline that they balance.

    Raises:
        Refused: the model has no blocks, data is missing, or a block or each split needs more memory than a chip has.
        Failed: the mesh can't be opened, a pass fails, or it takes too long.
    """
    from cli.reading_progress import show_reading
    from services.config.load import load_job

    with show_reading(output):
        config, notices = load_job(path, overrides)
    if isinstance(config.model, RegressionConfig | ExternalConfig):
        raise Refused(
            f"training_config.model_type: {config.model.model_type} given, expected gpt2, llama or a model of your "
            "own with num_blocks, as blocks are measured; measure another job"
        )
    for notice in notices:
        output.warn(notice)
    limit_blas_to_one_thread()
    progress = _Progress(options.limit_seconds)
    figures, lines = _run_bounded(lambda: _measure(config, options, progress), progress)
    for line in lines:
        output.say(line)
    output.result(figures)


class _Progress:
    """What is being measured, and the limit on its time."""

    def __init__(self, limit_seconds: float) -> None:
        self.limit_seconds = limit_seconds
        self.doing = "the opening of the mesh"
        self._ends = time.monotonic() + limit_seconds

    def note(self, doing: str) -> None:
        """Note what comes next.

        Raises:
            Failed: the time is over.
        """
        self.doing = doing
        if time.monotonic() > self._ends:
            raise Failed(
                f"measure: {self.limit_seconds:g} s are over before {doing}, expected all ranges within them; "
                "give more time by --limit-seconds, or fewer --passes"
            )


def _run_bounded(work: Callable[[], T], progress: _Progress) -> T:
    """Return what `work` returns. It runs on a thread that is left behind if it hangs, as a device may.

    Raises:
        Failed: it takes too long.
    """
    outcomes: SimpleQueue[T | BaseException] = SimpleQueue()

    def run_work() -> None:
        try:
            outcomes.put(work())
        except BaseException as error:  # passed on to the caller's thread
            outcomes.put(error)

    start_thread(run_work, "measure")
    try:
        outcome = outcomes.get(timeout=progress.limit_seconds + _GRACE_SECONDS)
    except Empty:
        raise Failed(
            f"measure: no end of {progress.doing} after {progress.limit_seconds + _GRACE_SECONDS:g} s, so the device "
            "may hang; reset it with `tt-smi -r`, or give more time by --limit-seconds"
        ) from None
    if isinstance(outcome, BaseException):
        raise outcome
    return outcome


def _measure(
    config: JobConfig, options: MeasureOptions, progress: _Progress
) -> tuple[dict[str, object], list[str]]:
    """Return the figures of a job's blocks and splits, and the lines that show them."""
    from compute.job_on_mesh import choose_mesh
    from mesh.device import open_mesh
    from mesh.memory import find_chip_limit
    from mesh.ttnn_errors import explain_known_error
    from training.pipeline.measure import RangeOpener, derive_block_times, plan_ranges, time_ranges

    def before_pass(each: BlockRange) -> None:
        progress.note(f"a pass of {name_blocks(each.first, each.stop)}")

    equal = not isinstance(config.model, CustomConfig)
    ranges = plan_ranges(count_blocks(config.model), config.stages, equal=equal)
    with open_mesh(**choose_mesh(config, StageRun(0, 1))) as mesh:
        chip, dtype = find_chip_limit(mesh), str(mesh.dtype).rpartition(".")[2].lower()
        progress.note("the building of the model")
        opener = RangeOpener(config, mesh, options.data_dir, options.allowed_models)
        banks = DEFAULT_CHIP.banks if chip is None else chip.banks
        if chip is not None:
            for each in ranges:
                check_range_memory(config, each, opener.vocabulary, dtype, banks, chip.total_bytes)
        try:
            found = time_ranges(ranges, opener.open, passes=options.passes, before_pass=before_pass)
        except RuntimeError as error:
            known = explain_known_error(error)
            if known is None:
                raise
            raise Failed(f"measure: {progress.doing}: {known}") from error
        times = derive_block_times(found)
        measured = Measurement(
            config, mesh.shape, mesh.backend, mesh.arch, dtype, options.passes, found, times
        )
        figures = describe(measured)
        if config.stages > 1:
            balance = MeasuredBalance(config, times, opener.vocabulary, dtype=dtype, banks=banks)
            figures |= describe_splits(config, balance, _find_split(config, balance, chip, mesh.arch))
    return figures, list(format_figures(figures))


def _find_split(
    config: JobConfig, balance: MeasuredBalance, chip: ChipMemory | None, arch: str
) -> tuple[int, ...]:
    """Return the blocks of each stage of the balanced split.

    Raises:
        Refused: the chips hold no split.
    """
    split = balance.find(None if chip is None else chip.total_bytes)
    if split is None:
        assert chip is not None
        raise Refused(
            f"{_SECTION}: no split of {count_blocks(config.model)} blocks over {config.stages} stages fits into "
            f"the {format_bytes(chip.total_bytes)} of this host's {arch}; use more stages, a smaller "
            "batch_size, or enable_tp or enable_fsdp on a larger mesh"
        )
    return split


def check_range_memory(
    config: JobConfig, blocks: BlockRange, vocabulary: int, dtype: str, banks: int, chip_bytes: int
) -> None:
    """Check that a chip may hold a range to measure.

    Raises:
        Refused: it certainly needs more memory.
    """
    portion = Portion((blocks,), len(blocks), int(blocks.is_last), 0)
    memory = estimate_device_memory(config, vocabulary, dtype=dtype, banks=banks, portion=portion)
    if memory is not None and memory.total_bytes > LARGEST_ERROR * chip_bytes:
        raise Refused(
            f"device_config: {format_bytes(memory.total_bytes)} needed on each chip for "
            f"{name_blocks(blocks.first, blocks.stop)} alone, expected at most the {format_bytes(chip_bytes)} of this "
            "host's chips; use a smaller batch_size, or enable_tp or enable_fsdp on a mesh of more chips"
        )
