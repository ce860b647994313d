"""The sum of a lease's micro-batches whose gradients come range by range, as a pipeline's schedule runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise

from services.pipeline.schedule import Pass
from services.tensors.kernels.arithmetic import Float32Array
from training.pipeline.stages import Compute, PipelineStages
from training.range_step import FinishedPass
from worker.gradient_checksum import GradientChecksum
from worker.node_sum import NodeSum
from worker.pass_checksums import PassChecksums


class RangeSums:
    """The sum of one node's leaves, of which each range has its part.

    Each range's part is added up the reduction tree as a whole model's gradient would be, in index order.

    Args:
        stages: the stages that compute the gradients.
        out: [elements of the stages] float32, the array that the node's sum is written to, one range after another.
        leaves: number of leaves (micro-batches) of the node.
        ready: callback, called with an index of `out` when the node's sum is complete from there to its end.
        checksums: takes the checksums of the gradients that it wants.
    """

    def __init__(
        self,
        stages: PipelineStages,
        out: Float32Array,
        leaves: int,
        ready: Callable[[int], None],
        checksums: PassChecksums,
    ) -> None:
        self._entries = stages.layout.entries
        self._ranges = stages.ranges
        self._checksums = checksums
        self._places = {index: place for place, index in enumerate(stages.ranges)}
        borders = list(pairwise((0, *accumulate(own.stop - own.start for own in stages.ranges.values()))))
        end = _CompleteEnd(borders, ready)
        self._sums = [
            NodeSum(out[start:stop], leaves, partial(end.note, place))
            for place, (start, stop) in enumerate(borders)
        ]

    def add_leaf(self, range_index: int, index: int, compute: Compute) -> FinishedPass:
        """Compute and add a range's part of the next micro-batch, see `training.pipeline.stages.AddLeaf`."""
        if self._checksums.wants(index):
            compute = partial(self._compute_with_checksum, range_index, index, compute)
        return self._sums[self._places[range_index]].add_leaf(compute)

    def _compute_with_checksum(
        self, range_index: int, index: int, compute: Compute, out: Float32Array, done: Callable[[int], None]
    ) -> FinishedPass:
        own = self._ranges[range_index]
        entries = [entry for entry in self._entries if own.start <= entry.offset < own.stop]
        checksum = GradientChecksum(entries, out)

        def ready(offset: int) -> None:
            checksum.advance_to(offset)
            done(offset)

        finished = compute(out, ready)
        self._checksums.note(Pass(True, range_index, index), checksum.crc32c)
        return finished


class _CompleteEnd:
    """The end of a sum that is complete: ranges from the last one on, and a part of the one before them.

    It knows nothing of `RangeSums`. A cycle would leave the memory of sums to the garbage collector.

    Args:
        borders: index of the first element, and after the last, of each range in the sum.
        ready: see `RangeSums`.
    """

    def __init__(self, borders: Sequence[tuple[int, int]], ready: Callable[[int], None]) -> None:
        self._starts = [start for start, _ in borders]
        self._missing = [stop - start for start, stop in borders]  # elements that are not complete
        self._ready = ready

    def note(self, place: int, offset: int) -> None:
        """Note that a range is complete from an index of it to its end, and report the sum's end if it has grown."""
        self._missing[place] = offset
        later = len(self._missing)
        while later and not self._missing[later - 1]:
            later -= 1
        if later > place + 1:
            return  # a later range is not complete
        first = max(later - 1, 0)
        self._ready(self._starts[first] + self._missing[first])
