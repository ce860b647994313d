"""Checksums of what the passes of checked micro-batches put out, by which the aggregator finds a faulty worker."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence

import numpy as np

from native import crc32c
from protos import cluster_pb2 as pb
from services.pipeline.exchange import Compute, ExactArray, FinishedPass, PassExchange
from services.pipeline.schedule import Pass
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Entry


class PassChecksums:
    """Checksums of a lease's passes. They do not depend on which worker runs a pass, or where its neighbours are.

    A forward pass puts out its activation; the last one puts out nothing. A backward pass puts out gradients: of the
    range's parameters, of the activation and, in the last range, of the tied table. So a whole model, which is one
    range, has one checksum for each micro-batch.

    Args:
        ranges: number of ranges of the pipeline; 1 without one.
        micro_batches: indices of the micro-batches whose passes get checksums.
    """

    def __init__(self, ranges: int, micro_batches: Collection[int]) -> None:
        self._ranges = ranges
        self._micro_batches = micro_batches
        self._outputs: dict[tuple[int, int], list[int]] = {}  # by micro-batch and place

    def wants(self, micro_batch: int) -> bool:
        """Return whether a micro-batch's passes get checksums."""
        return micro_batch in self._micro_batches

    def note(self, one: Pass, checksums: Iterable[int]) -> None:
        """Take checksums of what a pass puts out; a pass puts out the same things in the same order."""
        if self.wants(one.micro_batch):
            self._outputs.setdefault((one.micro_batch, self._place(one)), []).extend(checksums)

    def note_array(self, one: Pass, array: ExactArray) -> None:
        """Take an array that a pass puts out."""
        if self.wants(one.micro_batch):
            self.note(one, [crc32c.value(np.ascontiguousarray(array).reshape(-1).view(np.uint8))])

    def _place(self, one: Pass) -> int:
        return 2 * (self._ranges - 1) - one.range_index if one.is_backward else one.range_index

    def watch_gradient(self, one: Pass, entries: Sequence[Entry], compute: Compute) -> Compute:
        """Return a function that computes a gradient and notes its checksums before others are added to it.

        Each parameter has a checksum of its own. So the result does not depend on the pieces in which the gradient
        becomes ready. It costs one pass over the gradient.

        Args:
            one: the backward pass.
            entries: layout entries of its range, contiguous.
            compute: computes the gradient.
        """
        start = entries[0].offset

        def compute_and_note(out: Float32Array, ready: Callable[[int], None]) -> FinishedPass:
            missing = list(entries)
            checksums: list[int] = []

            def note_down_to(offset: int) -> None:
                while missing and missing[-1].offset - start >= offset:
                    entry = missing.pop()
                    checksums.append(
                        crc32c.value(out[entry.offset - start : entry.stop - start].view(np.uint8))
                    )
                ready(offset)

            finished = compute(out, note_down_to)
            self.note(one, reversed(checksums))
            return finished

        return compute_and_note

    def watch(self, exchange: PassExchange) -> PassExchange:
        """Return an exchange whose arrays get checksums when they are sent."""
        return _WatchedExchange(exchange, self, self._ranges - 1) if self._micro_batches else exchange

    def to_messages(self) -> list[pb.Checksum]:
        """Return the checksum of each pass, by micro-batch, in the order of the passes."""
        return [
            pb.Checksum(
                micro_batch=micro_batch,
                place=place,
                crc32c=crc32c.value(np.array(outputs, "<u4").view(np.uint8)),
            )
            for (micro_batch, place), outputs in sorted(self._outputs.items())
        ]


class _WatchedExchange:
    """A `PassExchange` that notes what is sent as put out by the pass before the one that takes it."""

    def __init__(self, exchange: PassExchange, checksums: PassChecksums, last_range: int) -> None:
        self._exchange = exchange
        self._checksums = checksums
        self._last_range = last_range

    def send(self, to: Pass, array: ExactArray) -> None:
        """Send a pass its activation, or its gradient."""
        sender = to._replace(range_index=to.range_index + (1 if to.is_backward else -1))
        self._checksums.note_array(sender, array)
        self._exchange.send(to, array)

    def receive(self, one: Pass) -> ExactArray:
        """Return what a pass of a neighbouring range has sent to this one."""
        return self._exchange.receive(one)

    def send_tied(self, micro_batch: int, array: ExactArray) -> None:
        """Send the first range the last one's part of the token embedding's gradient."""
        sender = Pass(is_backward=True, range_index=self._last_range, micro_batch=micro_batch)
        self._checksums.note_array(sender, array)
        self._exchange.send_tied(micro_batch, array)

    def receive_tied(self, micro_batch: int) -> ExactArray:
        """Return what the last range has sent by `send_tied`."""
        return self._exchange.receive_tied(micro_batch)
