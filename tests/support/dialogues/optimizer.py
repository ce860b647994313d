"""Dialogues with the optimizer's core: each call gives it one input and returns its effects, one line each.

Effects of another job than `a` begin with its id.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from optimizer.core import events as ev
from optimizer.core.optimizer import OptimizerCore
from plane.bookkeeping import AGGREGATOR_SESSION
from protos import cluster_pb2 as pb
from protos import plane_pb2 as plane
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader, Findings
from services.protocol.plan import JobPlan
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.chunk_ranges import from_ranges
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.stripes import Stripe

PLAN = JobPlan(steps=4, micro_batches=2, checkpoint_every=2)
STATES = {
    pb.OptimizerStatus.EMPTY: "empty",
    pb.OptimizerStatus.RECEIVING: "receiving",
    pb.OptimizerStatus.TRAINING: "training",
}


def line(effect: ev.Effect) -> str:
    """Return an effect as one line."""
    job = "" if isinstance(effect, ev.Load | ev.Allocate) else ev.job_of(effect)
    return f"{job}: {_text(effect)}" if job not in ("", "a") else _text(effect)


def _text(effect: ev.Effect) -> str:
    match effect:
        case ev.ToAggregator(pb.OptimizerStatus() as body):
            missing = "".join(f" #{chunk}" for chunk in from_ranges(body.missing, 99))
            return f"send {STATES[body.state]} {body.generation}.{body.step}, missing{missing or ' nothing'}"
        case ev.ToAggregator(pb.Commit() as body):
            found = "".join(f", {each.worker} {each.micro_batch}" for each in body.non_finite)
            return f"send commit {body.generation}.{body.step}{'' if body.applied else ' skipped'}{found}"
        case ev.ToAggregator(pb.CheckpointWritten() as body):
            return f"send checkpoint {body.generation}.{body.step}"
        case ev.ToAggregator(pb.CheckpointMissed() as body):
            return f"send no checkpoint {body.generation}.{body.step}: {body.reason}"
        case ev.ToAggregator(pb.Failure() as body):
            return f"send failure: {body.reason}"
        case ev.Refuse():
            return f"refuse: {effect.reason}"
        case ev.SaveEpoch():
            return f"save epoch {effect.epoch}"
        case ev.SaveGeneration():
            return f"save generation {effect.generation}"
        case ev.Load() | ev.Allocate():
            return f"{type(effect).__name__.lower()} {effect.job}"
        case plane.StageChunks():
            return (
                f"{'store' if effect.initial else 'stage'} {' '.join(f'#{each}' for each in effect.chunks)}"
            )
        case plane.UpdatePart():
            return f"update step {effect.step}{'' if effect.applied else ' skipped'}"
        case plane.MakeWeights():
            return f"make {effect.generation}.{effect.step}"
        case plane.SendVersion():
            assert effect.session == AGGREGATOR_SESSION
            return f"weights {effect.generation}.{effect.step}"
        case ev.RetryLater():
            return "retry later"
        case ev.Snapshot():
            return f"snapshot {effect.generation}.{effect.step}"
        case ev.JobBroke():
            return f"broke: {effect.error}"
    return "drop job"


class Dialogue:
    """An optimizer's core with a connected aggregator and jobs of two chunks, most calls being about job `a`.

    Args:
        epoch: epoch of the aggregator.
    """

    def __init__(self, epoch: int = 1) -> None:
        self.core = OptimizerCore(name="opt")
        self.elements = 2 * CHUNK_ELEMENTS
        self.epoch = epoch
        self.now_seconds = 1000.0
        assert self.connect(epoch) == [f"save epoch {epoch}"]

    def give(self, event: ev.Input) -> list[str]:
        """Give any input."""
        return [line(effect) for effect in self.core.handle(event)]

    def connect(self, epoch: int, **fields: Any) -> list[str]:
        """Connect an aggregator, with other fields in its Hello if given."""
        hello = {
            "protocol": PROTOCOL_VERSION,
            "role": "aggregator",
            "name": "agg",
            "epoch_seen": epoch,
            **fields,
        }
        return self.give(ev.Connected(pb.Hello(**hello)))

    def order(self, body: Any, epoch: int | None = None) -> list[str]:
        """Give an order of the aggregator, by default under its own epoch."""
        return self.give(ev.Ordered(self.core.epoch if epoch is None else epoch, body))

    def open(self, job: str = "a", generation: int = 0) -> list[str]:
        """Order a job to be opened."""
        return self.order(pb.Open(job=job, spec_json="{}", generation=generation))

    def loaded(
        self, job: str = "a", generation: int = 0, step: int | None = None, plan: JobPlan = PLAN
    ) -> list[str]:
        """Answer Load: with a checkpoint of `step`, or without one if it is None."""
        if step is None:
            return self.give(ev.Loaded(job, plan, generation))
        written = self.written(generation, step, job)
        return self.give(ev.Loaded(job, plan, generation, "layout", self.elements, written))

    @staticmethod
    def written(generation: int, step: int, job: str = "a") -> pb.CheckpointWritten:
        """Return the message that names a checkpoint."""
        return pb.CheckpointWritten(job=job, generation=generation, step=step, path=f"step-{step}")

    def chunk(
        self, index: int, generation: int = 1, step: int = 0, *, kind: Any = GRADIENT, **fields: Any
    ) -> list[str]:
        """Give a chunk of a step's sum."""
        findings = None if index or kind != GRADIENT else Findings(count=1)
        values = {"job": "a", "epoch": self.core.epoch, "index": index, "findings": findings, **fields}
        header = ChunkHeader(generation=generation, step=step, kind=kind, **values)
        return self.give(ev.ChunksArrived(header, [header.index]))

    def initial(self, index: int, job: str = "a") -> list[str]:
        """Give a chunk of initial weights."""
        return self.chunk(index, 0, 0, kind=INITIAL_WEIGHTS, job=job)

    def report(self, body: plane.StagedChunks | plane.UpdatedPart, stripe: Stripe | None = None) -> list[str]:
        """Give a report of the only plane, or of the one with this stripe."""
        return self.give(ev.FromPlane(stripe or Stripe(), body, self.now_seconds))

    def staged(self, finite: bool = True, chunks: Iterable[int] = (0, 1), job: str = "a") -> list[str]:
        """Report that these chunks are staged; the norm of both is 2."""
        sums = [2.0 if finite else math.inf]
        staged = [plane.StagedChunk(chunk=chunk, block_sums=sums) for chunk in chunks]
        reports = [plane.StagedChunks(job=job, chunks=[each]) for each in staged]
        return [each for report in reports for each in self.report(report)]

    def updated(self, step: int, chunks: Iterable[int] = (0, 1), job: str = "a") -> list[str]:
        """Report that these chunks are updated, one after the other."""
        reports = [plane.UpdatedPart(job=job, step=step, chunks=chunk + 1) for chunk in chunks]
        return [each for report in reports for each in self.report(report)]

    def step(self, generation: int, step: int, seconds: float = 0.0, job: str = "a") -> list[str]:
        """Run a whole step that takes `seconds`; return the effects of its last update."""
        self.now_seconds += seconds
        self.chunk(0, generation, step, job=job)
        self.chunk(1, generation, step, job=job)
        self.staged(job=job)
        return self.updated(step, job=job)

    def saved(self, generation: int, step: int, job: str = "a") -> list[str]:
        """Answer Snapshot: the checkpoint is on disk."""
        return self.give(ev.Saved(self.written(generation, step, job)))

    def save_failed(
        self,
        generation: int,
        step: int,
        reason: str = "disk full",
        *,
        out_of_space: bool = False,
        job: str = "a",
    ) -> list[str]:
        """Answer Snapshot: the checkpoint could not be written."""
        return self.give(ev.SaveFailed(job, generation, step, reason, out_of_space))

    def send_weights(self, generation: int, step: int, job: str = "a") -> list[str]:
        """Order weights to be sent."""
        return self.order(pb.SendWeights(job=job, generation=generation, step=step))


def training(
    generation: int = 0, step: int = 0, plan: JobPlan = PLAN, jobs: Iterable[str] = ("a",)
) -> Dialogue:
    """Return a dialogue with jobs that continue from a checkpoint, under the next generation."""
    dialogue = Dialogue()
    for job in jobs:
        dialogue.open(job)
        dialogue.loaded(job, generation, step, plan)
        dialogue.send_weights(generation + 1, step, job)
    return dialogue
