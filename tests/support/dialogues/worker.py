"""Dialogues with the worker's core, in which each effect is one line of text. Orders to its plane are carried out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from plane.sum_queue import SumQueue
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import WEIGHTS, ChunkHeader
from services.pipeline.split import StageRun
from services.protocol.versions import Version
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts, Piece
from services.tensors.stripes import Stripe
from tests.support.chunk_sets import to_ranges
from worker.core import events as ev
from worker.core.worker import WorkerCore

WHOLE = Stripe()


def describe_effect(effect: ev.Effect) -> str:
    """Return an effect as one line, such as `load #2` or `send Ready with 1.0`."""
    match effect:
        case ev.ToAggregator(pb.Ready() as body):
            return f"send Ready{f' with {body.generation}.{body.step}' if body.holds else ''}"
        case ev.ToAggregator(pb.WeightsLoaded() as body):
            return f"send WeightsLoaded {body.generation}.{body.step}"
        case ev.ToAggregator(pb.Failure() as body):
            neighbour = f" of {body.neighbour}" if body.neighbour else ""
            kind = ", retries" * body.retries + ", too large" * body.too_large
            stages = f" ({StageRun(body.first_stage, body.stages)})" if body.stages else ""
            kind += ", died" * body.died
            return f"send Failure{neighbour}{kind}: {body.reason}{stages}"
        case ev.ToAggregator():
            return f"send {type(effect.body).__name__}"
        case ev.Load():
            within = effect.header.offset % CHUNK_ELEMENTS
            return f"load #{effect.header.index}{f'+{within}' if within else ''}"
        case ev.Perform():
            return f"perform {effect.lease.lease}"
        case ev.DropLease():
            return f"drop lease {effect.lease}"
        case ev.Build():
            stages = f", {effect.stages}" if effect.stages else ""
            return f"build {effect.job}{stages}" + (
                f" without {effect.damaged.path}" if effect.damaged else ""
            )
        case ev.OpenRow():
            return f"open row {effect.row.row}"
        case ev.CloseRow():
            return "close row"
        case ev.BuildLater():
            return f"build after {effect.seconds:g} s ({effect.attempt})"
    return "drop job"


class Dialogue:
    """A worker's core, and methods that give it inputs and return its effects as lines.

    Args:
        chunks: number of chunks of the job's layout.
        stages: stages that it is told to build; None for the whole model.
        parts: first element, and element after the last, of the parts of the layout that these stages have.
        shared: other parts that they need the weights of.
    """

    def __init__(
        self,
        chunks: int = 3,
        stages: StageRun | None = None,
        parts: Iterable[tuple[int, int]] = (),
        shared: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.core = WorkerCore(name="w")
        self.queue = SumQueue()
        self.chunks = chunks
        self.stages = stages
        self.parts, self.shared = LayoutParts(parts), LayoutParts(shared)

    def give(self, event: ev.Input) -> list[str]:
        """Give any input. A build that has ended is the last one of its job, unless it has a number."""
        if isinstance(event, ev.Built | ev.BuildFailed) and not event.number and self.core.job is not None:
            event = replace(event, number=self.core.job.number)
        effects = self.core.handle(event)
        for effect in effects:
            if isinstance(effect, ev.PlaneOrder):
                self.queue.carry_out(effect)
        return [describe_effect(each) for each in effects if not isinstance(each, ev.PlaneOrder)]

    def connect(self, epoch: int = 1) -> list[str]:
        """Open the streams to an aggregator, and let it send its Welcome."""
        self.give(ev.Connected())
        return self.order(pb.Welcome(name="agg"), epoch)

    def order(self, body: Any, epoch: int | None = None) -> list[str]:
        """Give an order of the aggregator; by default under the epoch that the core knows."""
        return self.give(ev.Ordered(self.core.epoch if epoch is None else epoch, body))

    def join(self, job: str = "a") -> list[str]:
        """Order the worker to join a job."""
        stages = self.stages or StageRun(0, 0)
        join = pb.Join(job=job, spec_json="{}", first_stage=stages.first, stages=stages.count)
        return self.order(join)

    def built(self, job: str = "a") -> list[str]:
        """Report that the job is built."""
        return self.give(
            ev.Built(
                job,
                "hash",
                self.chunks * CHUNK_ELEMENTS,
                2,
                10,
                stages=self.stages,
                parts=self.parts,
                shared=self.shared,
            )
        )

    def weights(self, generation: int, step: int, *indices: int, **fields: Any) -> list[str]:
        """Let chunks of weights arrive: those with `indices`, or all."""
        whole = [
            Piece(index, index * CHUNK_ELEMENTS, CHUNK_ELEMENTS) for index in indices or range(self.chunks)
        ]
        return self.pieces(generation, step, whole, **fields)

    def pieces(self, generation: int, step: int, pieces: Iterable[Piece], **fields: Any) -> list[str]:
        """Let pieces of weights arrive."""
        lines = []
        for piece in pieces:
            values = {
                "job": "a",
                "epoch": self.core.epoch,
                "kind": WEIGHTS,
                "index": piece.chunk,
                "offset": piece.offset,
                "elements": piece.elements,
                **fields,
            }
            header = ChunkHeader(generation=generation, step=step, **values)
            lines += self.give(ev.WeightsArrived(header))
        return lines

    def loaded(self, generation: int, step: int) -> list[str]:
        """Report that all weights of a version are on the mesh."""
        return self.give(ev.Loaded("a", Version(generation, step)))

    def lease(
        self,
        lease: int,
        generation: int = 1,
        step: int = 0,
        *,
        phase: Any = pb.TRAIN,
        chunks: Iterable[int] = (),
        row: int = 0,
    ) -> list[str]:
        """Grant a lease of two micro-batches."""
        return self.order(
            pb.Lease(
                job="a",
                generation=generation,
                step=step,
                lease=lease,
                phase=phase,
                count=2,
                chunks=to_ranges(chunks),
                row=row,
            )
        )

    def take_next(self, stripe: Stripe = WHOLE) -> ChunkHeader | None:
        """Return the header of the piece that a stripe's stream sends next; None if it may send none now."""
        return next(iter(self.queue.take(stripe, 1)), None)

    def sent(self) -> list[str]:
        """Send all chunks that may be sent now, and return a line for each."""
        lines = []
        for header in iter(self.take_next, None):
            losses = f" losses {list(header.findings.losses)}" if header.findings.losses else ""
            found = "".join(f" not finite {each.micro_batch}" for each in header.findings.non_finite)
            found += f", {header.findings.count} count" if header.findings.count else ""
            within = header.offset % CHUNK_ELEMENTS
            part = f"+{within}" if within else ""
            lines.append(f"{header.lease} #{header.index}{part}{losses}{found}")
        return lines


def start_with_weights(chunks: int = 3) -> Dialogue:
    """Return a dialogue with a worker that has joined job a and loaded the weights of version 1.0."""
    dialogue = Dialogue(chunks)
    dialogue.connect()
    dialogue.join()
    dialogue.built()
    dialogue.weights(1, 0)
    dialogue.loaded(1, 0)
    return dialogue
