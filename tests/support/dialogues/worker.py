"""Dialogues with the worker's core, in which each effect is one line of text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import WEIGHTS, ChunkHeader
from services.protocol.file_refs import make_ref
from services.protocol.versions import Version
from services.tensors.layout import CHUNK_ELEMENTS
from tests.support.chunk_sets import to_ranges
from worker.core import events as ev
from worker.core.worker import WorkerCore


def describe_effect(effect: ev.Effect) -> str:
    """Return an effect as one line, such as `load #2` or `send Ready with 1.0`."""
    match effect:
        case ev.ToAggregator(pb.Ready() as body):
            return f"send Ready{f' with {body.generation}.{body.step}' if body.holds else ''}"
        case ev.ToAggregator(pb.WeightsLoaded() as body):
            return f"send WeightsLoaded {body.generation}.{body.step}"
        case ev.ToAggregator(pb.Failure() as body):
            return f"send Failure{', retries' if body.retries else ''}: {body.reason}"
        case ev.ToAggregator():
            return f"send {type(effect.body).__name__}"
        case ev.Load():
            return f"load #{effect.header.index}"
        case ev.Perform():
            return f"perform {effect.lease.lease}"
        case ev.DropLease():
            return f"drop lease {effect.lease}"
        case ev.Build():
            return f"build {effect.job}" + (f" without {effect.damaged.path}" if effect.damaged else "")
        case ev.BuildLater():
            return f"build after {effect.seconds:g} s ({effect.attempt})"
    return "drop job"


class Dialogue:
    """A worker's core, and methods that give it inputs and return its effects as lines.

    Args:
        chunks: number of chunks of the job's layout.
    """

    def __init__(self, chunks: int = 3) -> None:
        self.core = WorkerCore(name="w")
        self.chunks = chunks

    def give(self, event: ev.Input) -> list[str]:
        """Give any input."""
        return [describe_effect(effect) for effect in self.core.handle(event)]

    def connect(self, epoch: int = 1) -> list[str]:
        """Open the streams to an aggregator, and let it send its Welcome."""
        self.give(ev.Connected())
        return self.order(pb.Welcome(name="agg"), epoch)

    def order(self, body: Any, epoch: int | None = None) -> list[str]:
        """Give an order of the aggregator; by default under the epoch that the core knows."""
        return self.give(ev.Ordered(self.core.epoch if epoch is None else epoch, body))

    def join(self, job: str = "a") -> list[str]:
        """Order the worker to join a job."""
        return self.order(pb.Join(job=job, spec=make_ref(b"{}")))

    def built(self, job: str = "a") -> list[str]:
        """Report that the job is built."""
        return self.give(ev.Built(job, "hash", self.chunks * CHUNK_ELEMENTS, 2, 10))

    def weights(self, generation: int, step: int, *indices: int, **fields: Any) -> list[str]:
        """Let chunks of weights arrive: those with `indices`, or all."""
        lines = []
        for index in indices or range(self.chunks):
            values = {"job": "a", "epoch": self.core.epoch, "kind": WEIGHTS, **fields}
            header = ChunkHeader(generation=generation, step=step, index=index, **values)
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
            )
        )

    def sent(self) -> list[str]:
        """Send all chunks that may be sent now, and return a line for each."""
        lines = []
        while (header := self.core.next_chunk()) is not None:
            losses = f" losses {list(header.losses)}" if header.losses else ""
            found = "".join(f" not finite {each.micro_batch}" for each in header.non_finite)
            lines.append(f"{header.lease} #{header.index}{losses}{found}")
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
