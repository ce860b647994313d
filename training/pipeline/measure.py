"""Measured times of a model's blocks, of which only a range of one or two is on the mesh at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np

from mesh.device import Mesh
from mesh.exact_transfer import ExactArray, exact_dtype
from services.config.job import JobConfig
from services.pipeline.split import BlockRange
from services.sizing.measured_split import BlockTimes, PassTime
from training.job_data import JobData
from training.models.build import build_model, build_range
from training.models.initialise import build_layout
from training.range_step import PassInFlight, RangeStep

WARM_UP_PASSES = 2
"""Passes of each range that are not timed: kernels are compiled in the first."""
_DEVIATION = 0.02
"""Standard deviation of the values that stand for those of other ranges."""


class MeasuredRange(Protocol):
    """A range of blocks on a mesh. Each pass returns when the mesh has ended it."""

    def forward(self) -> None:
        """Run the forward pass of a micro-batch."""

    def backward(self) -> None:
        """Run the backward pass of the same micro-batch."""


OpenRange = Callable[[BlockRange], AbstractContextManager[MeasuredRange]]
"""Returns a context that has a range of blocks on the mesh."""


def plan_ranges(blocks: int, stages: int, *, equal: bool) -> tuple[BlockRange, ...]:
    """Return the ranges to measure: single blocks, and two neighbours where a stage has as many.

    Args:
        blocks: number of blocks of the model.
        stages: number of stages of the pipeline.
        equal: whether all blocks are alike. Then the first, the second and the last one are measured, else each.
    """
    singles = {0, min(1, blocks - 1), blocks - 1} if equal else range(blocks)
    ranges = [BlockRange(each, each + 1, blocks) for each in sorted(singles)]
    if blocks > stages:
        first = 1 if blocks > 3 else 0
        ranges.append(BlockRange(first, first + 2, blocks))
    return tuple(ranges)


def time_ranges(
    ranges: Sequence[BlockRange],
    open_range: OpenRange,
    *,
    passes: int,
    before_pass: Callable[[BlockRange], None],
    clock: Callable[[], float] = time.perf_counter,
) -> dict[BlockRange, PassTime]:
    """Return the median time of each range's passes.

    Args:
        ranges: the ranges.
        open_range: puts one of them on the mesh.
        passes: number of timed passes of each.
        before_pass: callback, called with the range before each forward pass. What it raises ends the measurement.
        clock: monotonic time in seconds.
    """
    times = {}
    for each in ranges:
        forward, backward = [], []
        with open_range(each) as measured:
            for _ in range(WARM_UP_PASSES + passes):
                before_pass(each)
                began = clock()
                measured.forward()
                between = clock()
                measured.backward()
                forward.append(between - began)
                backward.append(clock() - between)
        times[each] = PassTime(median(forward[WARM_UP_PASSES:]), median(backward[WARM_UP_PASSES:]))
    return times


def derive_block_times(times: dict[BlockRange, PassTime]) -> BlockTimes:
    """Return the time of each block, from those of `plan_ranges`.

    The border of a range is what two blocks take less in one range than in two.

    Args:
        times: times of the ranges. Blocks without one take as long as the second block.
    """
    blocks = next(iter(times)).blocks
    singles = {each.first: found for each, found in times.items() if len(each) == 1}
    every = [singles.get(block) or singles[1] for block in range(blocks)]
    pair = next((each for each in times if len(each) == 2), None)

    def subtract(seconds: Callable[[PassTime], float]) -> tuple[list[float], float]:
        own = [seconds(each) for each in every]
        border = 0.0
        if pair is not None:
            saved = sum(own[pair.first : pair.stop]) - seconds(times[pair])
            border = min(max(saved, 0.0), *own)
        return [each - border for each in own], border

    forward, forward_border = subtract(lambda each: each.forward_seconds)
    backward, backward_border = subtract(lambda each: each.backward_seconds)
    return BlockTimes(
        tuple(map(PassTime, forward, backward)),
        PassTime(forward_border, backward_border),
    )


class RangeOpener:
    """Puts ranges of a job's model on a mesh, one after the other.

    Activations and gradients of other ranges are random: times do not depend on values. So are the weights, even if the
    job starts from a checkpoint.

    Args:
        config: config of the job.
        mesh: mesh of a stage; the caller closes it.
        data_dir: folder of this host that is searched for corpus and tokenizer missing at the job's path.
        allowed_models: modules and factories of users' own models that jobs may name, see `build_model`.

    Attributes:
        vocabulary: number of tokens.

    Raises:
        Refused: data is missing or unusable, or the model can't be built.
    """

    def __init__(
        self, config: JobConfig, mesh: Mesh, data_dir: Path | None, allowed_models: Collection[str]
    ) -> None:
        self._config = config.model_copy(update={"pretrained": None})
        self._mesh = mesh
        self._allowed_models = allowed_models
        self._data = JobData.open(config, data_dir)
        self.vocabulary = self._data.vocabulary
        # The whole model only names parameters here: they get no values.
        model = build_model(config.model, self.vocabulary, mesh, allowed_models)
        self._layout = build_layout(model, decay_all=True)

    @contextmanager
    def open(self, blocks: BlockRange) -> Iterator[MeasuredRange]:
        """Put a range on the mesh, and free it in the end."""
        config, mesh = self._config, self._mesh
        model = build_range(config.model, self.vocabulary, mesh, blocks, self._allowed_models)
        step = RangeStep(config, mesh, self._data, self._layout, model, blocks)
        random = np.random.default_rng(0)
        try:
            for index in step.weights.loaded:
                size = self._layout.entries[index].size
                step.weights.load(index, random.standard_normal(size, np.float32) * np.float32(_DEVIATION))
            yield _RangeOnMesh(step, mesh, random)
        finally:
            step.weights.close()


class _RangeOnMesh:
    """A range with weights, and what its neighbours would send."""

    def __init__(self, step: RangeStep, mesh: Mesh, random: np.random.Generator) -> None:
        self._step = step
        self._mesh = mesh
        received = _draw(random, step.activation_shape, mesh)
        self._activation = None if step.blocks.is_first else received
        self._gradient = None if step.blocks.is_last else received
        tied = step.tied_shape if step.takes_tied_part else None
        self._tied = None if tied is None else _draw(random, tied, mesh)
        self._out = np.empty(step.weights.elements, np.float32)
        self._in_flight: PassInFlight | None = None

    def forward(self) -> None:
        self._in_flight, _ = self._step.forward(1, 0, self._activation)
        self._mesh.synchronise()

    def backward(self) -> None:
        assert self._in_flight is not None
        self._step.backward(self._in_flight, self._gradient, self._tied, self._out, lambda index: None)
        self._in_flight = None
        self._mesh.synchronise()


def _draw(random: np.random.Generator, shape: tuple[int, ...], mesh: Mesh) -> ExactArray:
    """Return random values of a shape, as another range would send them."""
    values = random.standard_normal(shape, np.float32) * np.float32(_DEVIATION)
    if exact_dtype(mesh) == np.float32:
        return values
    bits: ExactArray = (values.view(np.uint32) >> 16).astype(np.uint16)
    return bits
