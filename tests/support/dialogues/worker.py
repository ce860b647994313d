"""Dialogues with the worker's core, one line for each effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import WEIGHTS, ChunkHeader
from services.tensors.chunk_ranges import to_ranges
from services.tensors.layout import CHUNK_ELEMENTS
from worker.core import events as ev
from worker.core.worker import WorkerCore


def line(effect: ev.Effect) -> str:
    """An effect on one line."""
    match effect:
        case ev.Say(pb.Ready() as body):
            return f"say ready{f', holds {body.generation}.{body.step}' if body.holds else ''}"
        case ev.Say(pb.WeightsLoaded() as body):
            return f"say holding {body.generation}.{body.step}"
        case ev.Say(pb.Failure() as body):
            return f"say {'unfit' if body.retries else 'unable'}: {body.reason}"
        case ev.Say():
            return f"say {type(effect.body).__name__.lower()}"
        case ev.Load():
            return f"load #{effect.header.index}"
        case ev.Perform():
            return f"perform {effect.lease.lease}"
        case ev.DropLease():
            return f"drop lease {effect.lease}"
        case ev.Build():
            return f"build {effect.job}"
        case ev.BuildLater():
            return f"build after {effect.seconds:g} s ({effect.attempt})"
    return "drop job"


class Dialogue:
    """A worker's core, and what was said to it."""

    def __init__(self, chunks: int = 3) -> None:
        self.core = WorkerCore(name="w")
        self.chunks = chunks

    def give(self, event: ev.Input) -> list[str]:
        """Any input."""
        return [line(effect) for effect in self.core.handle(event)]

    def connect(self, epoch: int = 1) -> list[str]:
        """The streams to an aggregator come up."""
        self.give(ev.Connected())
        return self.order(pb.Welcome(name="agg"), epoch)

    def order(self, body: Any, epoch: int | None = None) -> list[str]:
        """An order of the aggregator."""
        return self.give(ev.Ordered(self.core.epoch if epoch is None else epoch, body))

    def join(self, job: str = "a") -> list[str]:
        """The aggregator has a job built."""
        return self.order(pb.Join(job=job, spec_json="{}"))

    def built(self, job: str = "a") -> list[str]:
        """The job is built."""
        return self.give(ev.Built(job, "hash", self.chunks * CHUNK_ELEMENTS, 2, 10))

    def weights(self, generation: int, step: int, *indices: int, **fields: Any) -> list[str]:
        """Chunks of weights; all of them unless some are named."""
        lines = []
        for index in indices or range(self.chunks):
            values = {"job": "a", "epoch": self.core.epoch, "kind": WEIGHTS, **fields}
            header = ChunkHeader(generation=generation, step=step, index=index, **values)
            lines += self.give(ev.WeightsArrived(header))
        return lines

    def loaded(self, generation: int, step: int) -> list[str]:
        """The weights are on the mesh."""
        return self.give(ev.Loaded("a", generation, step))

    def lease(
        self,
        lease: int,
        generation: int = 1,
        step: int = 0,
        *,
        phase: Any = pb.TRAIN,
        chunks: Iterable[int] = (),
    ) -> list[str]:
        """A lease is granted."""
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
        """The chunks that may be sent now."""
        lines = []
        while (header := self.core.next_chunk()) is not None:
            losses = f" losses {list(header.losses)}" if header.losses else ""
            found = "".join(f" not finite {each.micro_batch}" for each in header.non_finite)
            lines.append(f"{header.lease} #{header.index}{losses}{found}")
        return lines


def holding(chunks: int = 3) -> Dialogue:
    """A worker that holds the weights of 1.0."""
    talk = Dialogue(chunks)
    talk.connect()
    talk.join()
    talk.built()
    talk.weights(1, 0)
    talk.loaded(1, 0)
    return talk
