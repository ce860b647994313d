"""The sum of a lease's micro-batches whose gradients come range by range, as a pipeline's schedule runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import accumulate, pairwise

from protos import cluster_pb2 as pb
from services.tensors.kernels.arithmetic import Float32Array
from training.pipeline.stages import Compute, PipelineStages
from training.range_step import FinishedPass
from worker.gradient_checksum import GradientChecksum, combine_checksums
from worker.node_sum import NodeSum


class RangeSums:
    """The sum of one node's leaves, of which each range has its part.

    Each range's part is added up the reduction tree as a whole model's gradient would be, in index order.

    Args:
        stages: the stages that compute the gradients.
        out: [elements of the stages] float32, the array that the node's sum is written to, one range after another.
        leaves: number of leaves (micro-batches) of the node.
        ready: callback, called with an index of `out` when the node's sum is complete from there to its end.
        with_checksum: indices of the micro-batches whose gradients get a checksum.

    Attributes:
        checksums: checksums of micro-batches whose gradient is complete, over the parameters of the stages.
    """

    def __init__(
        self,
        stages: PipelineStages,
        out: Float32Array,
        leaves: int,
        ready: Callable[[int], None],
        with_checksum: Collection[int] = (),
    ) -> None:
        self._entries = stages.layout.entries
        self._ranges = stages.ranges
        self._ready = ready
        self._with_checksum = with_checksum
        self._missing = [
            own.stop - own.start for own in stages.ranges.values()
        ]  # elements that are not complete
        borders = list(pairwise((0, *accumulate(self._missing))))
        self._starts = [start for start, _ in borders]
        self._places = {index: place for place, index in enumerate(stages.ranges)}
        self._sums = [
            NodeSum(out[start:stop], leaves, partial(self._complete, place))
            for place, (start, stop) in enumerate(borders)
        ]
        self._range_checksums: dict[int, list[GradientChecksum]] = {}
        self.checksums: list[pb.Checksum] = []

    def add_leaf(self, range_index: int, index: int, compute: Compute) -> FinishedPass:
        """Compute and add a range's part of the next micro-batch, see `training.pipeline.stages.AddLeaf`."""
        if index in self._with_checksum:
            compute = partial(self._compute_with_checksum, range_index, index, compute)
        return self._sums[self._places[range_index]].add_leaf(compute)

    def _complete(self, place: int, offset: int) -> None:
        """Report the sum's end that is complete: ranges from the last one on, and a part of the one before them."""
        self._missing[place] = offset
        later = len(self._sums)
        while later and not self._missing[later - 1]:
            later -= 1
        if later > place + 1:
            return  # a later range is not complete
        first = max(later - 1, 0)
        self._ready(self._starts[first] + self._missing[first])

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
        # A micro-batch's backward passes come from the last range to the first one.
        parts = self._range_checksums.setdefault(index, [])
        parts.insert(0, checksum)
        if self._places[range_index] == 0:
            crc32c = combine_checksums(self._range_checksums.pop(index))
            self.checksums.append(pb.Checksum(micro_batch=index, crc32c=crc32c))
        return finished
