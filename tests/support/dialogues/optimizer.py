"""Dialogues with the optimizer's core, one line for each effect."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from optimizer.core import events as ev
from optimizer.core.optimizer import OptimizerCore
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader
from services.protocol.plan import JobPlan
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.chunk_ranges import from_ranges
from services.tensors.layout import CHUNK_ELEMENTS

PLAN = JobPlan(steps=4, micro_batches=2, checkpoint_every=2)
STATES = {
    pb.OptimizerStatus.EMPTY: "empty",
    pb.OptimizerStatus.RECEIVING: "receiving",
    pb.OptimizerStatus.TRAINING: "training",
}


def line(effect: ev.Effect) -> str:
    """An effect on one line."""
    match effect:
        case ev.Say(pb.OptimizerStatus() as body):
            missing = "".join(f" #{chunk}" for chunk in from_ranges(body.missing, 99))
            return f"say {STATES[body.state]} {body.generation}.{body.step}, missing{missing or ' nothing'}"
        case ev.Say(pb.Commit() as body):
            found = "".join(f", {each.worker} {each.micro_batch}" for each in body.non_finite)
            return f"say commit {body.generation}.{body.step}{'' if body.applied else ' skipped'}{found}"
        case ev.Say(pb.CheckpointWritten() as body):
            return f"say checkpoint {body.generation}.{body.step}"
        case ev.Say(pb.CheckpointMissed() as body):
            return f"say no checkpoint {body.generation}.{body.step}: {body.reason}"
        case ev.Say(pb.Failure() as body):
            return f"say unable: {body.reason}"
        case ev.Refuse():
            return f"refuse: {effect.reason}"
        case ev.SaveEpoch():
            return f"save epoch {effect.epoch}"
        case ev.SaveGeneration():
            return f"save generation {effect.generation}"
        case ev.Load() | ev.Allocate():
            return f"{type(effect).__name__.lower()} {effect.job}"
        case ev.Stage() | ev.StoreInitial():
            return f"{'stage' if isinstance(effect, ev.Stage) else 'store'} #{effect.chunk}"
        case ev.Unstage():
            return "unstage"
        case ev.Measure():
            return f"measure step {effect.step}"
        case ev.Update():
            return f"update step {effect.step}{'' if effect.applied else ' skipped'}"
        case ev.Snapshot():
            return f"snapshot {effect.generation}.{effect.step}"
    return "drop job"


class Dialogue:
    """An optimizer's core of a job of two chunks, and what was said to it."""

    def __init__(self, epoch: int = 1) -> None:
        self.core = OptimizerCore(name="opt")
        self.elements = 2 * CHUNK_ELEMENTS
        self.epoch = epoch
        self.now_seconds = 1000.0
        assert self.connect(epoch) == [f"save epoch {epoch}"]

    def give(self, event: ev.Input) -> list[str]:
        """Any input."""
        return [line(effect) for effect in self.core.handle(event)]

    def connect(self, epoch: int, **words: Any) -> list[str]:
        """An aggregator connects."""
        hello = {
            "protocol": PROTOCOL_VERSION,
            "role": "aggregator",
            "name": "agg",
            "epoch_seen": epoch,
            **words,
        }
        return self.give(ev.Connected(pb.Hello(**hello)))

    def order(self, body: Any, epoch: int | None = None) -> list[str]:
        """An order of the aggregator."""
        return self.give(ev.Ordered(self.core.epoch if epoch is None else epoch, body))

    def open(self, job: str = "a", generation: int = 0) -> list[str]:
        """The aggregator opens a job."""
        return self.order(pb.Open(job=job, spec_json="{}", generation=generation))

    def loaded(
        self, job: str = "a", generation: int = 0, step: int | None = None, plan: JobPlan = PLAN
    ) -> list[str]:
        """A job is found on disk, with a checkpoint of a step or without."""
        if step is None:
            return self.give(ev.Loaded(job, plan, generation))
        written = self.written(generation, step, job)
        return self.give(ev.Loaded(job, plan, generation, "layout", self.elements, written))

    @staticmethod
    def written(generation: int, step: int, job: str = "a") -> pb.CheckpointWritten:
        """What is told of a checkpoint."""
        return pb.CheckpointWritten(job=job, generation=generation, step=step, path=f"step-{step}")

    def chunk(
        self, index: int, generation: int = 1, step: int = 0, *, kind: Any = GRADIENT, **fields: Any
    ) -> list[str]:
        """A chunk of a step's sum."""
        values = {"job": "a", "epoch": self.core.epoch, "index": index, **fields}
        return self.give(ev.ChunkArrived(ChunkHeader(generation=generation, step=step, kind=kind, **values)))

    def initial(self, index: int) -> list[str]:
        """A chunk of initial weights."""
        return self.chunk(index, 0, 0, kind=INITIAL_WEIGHTS)

    def measured(self, step: int, finite: bool = True) -> list[str]:
        """The staged gradient is measured."""
        return self.give(ev.Measured("a", step, 2.0, finite, 0.1, self.now_seconds))

    def updated(self, step: int, chunks: Iterable[int] = (0, 1)) -> list[str]:
        """Chunks are updated."""
        return [each for chunk in chunks for each in self.give(ev.Updated("a", step, chunk))]

    def step(self, generation: int, step: int, seconds: float = 0.0) -> list[str]:
        """A whole step, which takes so long; what its last chunk brings."""
        self.now_seconds += seconds
        self.chunk(0, generation, step)
        self.chunk(1, generation, step)
        self.measured(step)
        return self.updated(step)

    def saved(self, generation: int, step: int) -> list[str]:
        """A snapshot is on the disk."""
        return self.give(ev.Saved(self.written(generation, step)))

    def not_saved(self, generation: int, step: int, reason: str = "disk full") -> list[str]:
        """A snapshot could not be written."""
        return self.give(ev.SaveFailed("a", generation, step, reason))

    def stream(self) -> list[str]:
        """The weights that may be sent now."""
        lines = []
        while (header := self.core.next_weights()) is not None:
            lines.append(f"{header.generation}.{header.step} #{header.index}")
        return lines

    def send_weights(self, generation: int, step: int) -> list[str]:
        """The aggregator asks for weights."""
        return self.order(pb.SendWeights(job="a", generation=generation, step=step))


def training(generation: int = 0, step: int = 0, plan: JobPlan = PLAN) -> Dialogue:
    """An optimizer that continues a job, under the next generation."""
    talk = Dialogue()
    talk.open()
    talk.loaded(generation=generation, step=step, plan=plan)
    talk.send_weights(generation + 1, step)
    talk.stream()
    return talk
