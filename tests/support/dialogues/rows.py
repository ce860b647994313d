"""Dialogues with an aggregator's core about a job with a pipeline, whose workers have some of the stages each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from aggregator.core import events as ev
from aggregator.core.membership.claims import bind_own
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader, Findings, NonFinite
from services.pipeline.split import StageRun
from services.protocol.plan import JobPlan
from services.tensors.layout import CHUNK_ELEMENTS
from services.tensors.layout_parts import LayoutParts, Piece
from tests.support.dialogues.aggregator import FINGERPRINT, Dialogue, arrived


class RowDialogue(Dialogue):
    """An aggregator's core with a job whose stages meet in the middle of chunks.

    Stage s has the layout up to the middle of chunk s, and from the middle of the one before: with two stages, chunk 0
    comes in two pieces, and chunk 1 in one.

    Args:
        stages: number of stages.
        chunks: number of chunks of the layout; one for each stage by default.

    Attributes:
        stages: number of stages.
        told: the stages that each session was told to build last.
    """

    def __init__(self, stages: int = 2, chunks: int = 0) -> None:
        super().__init__(chunks=chunks or stages)
        self.stages = stages
        self.told: dict[int, StageRun] = {}
        self._built: dict[int, StageRun] = {}
        self._rows: dict[int, int] = {}

    def line(self, effect: ev.Effect) -> str:
        """Return an effect as one line; empty for notes. Remember what workers are told to build."""
        if isinstance(effect, ev.ToWorker):
            order = effect.body
            if isinstance(order, pb.Join):
                self.told[effect.session] = StageRun(order.first_stage, order.stages)
            if isinstance(order, pb.Row):
                self._rows[effect.session] = order.row
            if isinstance(order, pb.Lease):
                assert order.row == self._rows[effect.session], "a lease is of the row that a worker knows"
        return super().line(effect)

    # ---- workers ----

    def arrives(self, session: int, brings: StageRun | None = None) -> list[str]:
        """Connect a worker that others can reach; return what it is told once its data stream is up.

        Args:
            session: its session.
            brings: stages of the job that it has built before.
        """
        built: dict[str, Any] = {}
        if brings is not None:
            built = {"job": "a", "first_stage": brings.first, "stages": brings.count}
        self.hello(session, pipeline_address=f"host{session}:1", **built)
        return self.give(ev.DataStreamOpened(session))

    def parts(self, session: int) -> LayoutParts:
        """Return the parts of the layout that a worker has built."""
        built = self._built[session]
        first = max(0, built.first * CHUNK_ELEMENTS - CHUNK_ELEMENTS // 2)
        stop = built.stop * CHUNK_ELEMENTS - CHUNK_ELEMENTS // 2
        return LayoutParts([(first, self.layout.elements if built.stop == self.stages else stop)])

    def builds(self, session: int, holds: tuple[int, int] | None = None, **fields: Any) -> list[str]:
        """Report that a worker has built what it was told."""
        run = self._built[session] = self.told[session]
        words = {
            "layout_hash": self.layout.hash,
            "elements": self.layout.elements,
            "evaluation_batches": 3,
            "tokens_per_micro_batch": 10,
            "parts": self.parts(session).to_messages(),
            "build": self.orders[session],
            **fields,
            "fingerprint": {**FINGERPRINT, **fields.get("fingerprint", {})},
        }
        ready = pb.Ready(job="a", first_stage=run.first, stages=run.count, **words)
        if holds is not None:
            ready.holds, ready.generation, ready.step = True, *holds
        return self.says(session, ready)

    def tells(
        self,
        session: int,
        *,
        lease: int = 0,
        losses: Iterable[float] = (),
        checksums: Mapping[int, int] | None = None,
        non_finite: Iterable[NonFinite] = (),
        seconds: float = 1.0,
        count: int | None = None,
    ) -> list[str]:
        """Report that a worker has computed its part of its newest lease, or of another. The last stage counts 1."""
        plan = self.plans["a"]
        assert isinstance(plan, JobPlan)
        count = int(self.told[session].stop == plan.stages) if count is None else count
        sums = [pb.Checksum(micro_batch=each, crc32c=value) for each, value in (checksums or {}).items()]
        report = pb.Computed(
            job="a",
            lease=lease or self.leases[session],
            seconds=seconds,
            findings=Findings(losses=losses, non_finite=non_finite, count=count),
            checksums=sums,
        )
        return self.says(session, report)

    def sends(self, session: int, generation: int, step: int, *chunks: int, lease: int = 0) -> list[str]:
        """Send a worker's pieces of some chunks of its newest lease, or of another; of all chunks if none is given."""
        return self._send(session, GRADIENT, chunks, lease, generation=generation, step=step)

    def sends_initial(self, session: int, *chunks: int) -> list[str]:
        """Send a worker's pieces of some chunks of the initial weights, or of all if none is given."""
        return self._send(session, INITIAL_WEIGHTS, chunks)

    def _send(
        self, session: int, kind: Any, chunks: Iterable[int], lease: int = 0, **version: Any
    ) -> list[str]:
        parts = self.parts(session)
        pieces = [parts[place] for place in reversed(range(len(parts)))]
        wanted = set(chunks)
        return [
            line
            for piece in pieces
            if not wanted or piece.chunk in wanted
            for line in self.send_piece(session, kind, piece, lease, **version)
        ]

    def send_piece(self, session: int, kind: Any, piece: Piece, lease: int = 0, **version: Any) -> list[str]:
        """Send one piece of a chunk."""
        header = ChunkHeader(
            job="a",
            epoch=self.core.epoch,
            lease=lease or self.leases[session],
            kind=kind,
            index=piece.chunk,
            offset=piece.offset,
            elements=piece.elements,
            **version,
        )
        return self.give(arrived(session, header))


def training_rows(
    *workers: int, stages: int = 2, generation: int = 1, step: int = 0, chunks: int = 0, **plan: Any
) -> RowDialogue:
    """Return a cluster in the middle of a job with a pipeline, whose workers have the weights and leases."""
    dialogue = RowDialogue(stages, chunks)
    dialogue.submit(stages=stages, **plan)
    dialogue.optimizer()
    for worker in workers:
        dialogue.arrives(worker)
    for worker in workers:
        if worker in dialogue.told:
            dialogue.builds(worker, holds=(generation, step))
    dialogue.stands(generation, step)
    dialogue.weights(generation, step, *range(dialogue.layout.chunks))
    dialogue.job().starts = 0  # as after a step, which would be saved
    bind_own(dialogue.job())
    return dialogue


def waits_for(dialogue: RowDialogue) -> str:
    """Return what the job waits for."""
    return dialogue.describe_wait() or ""


def state_of(dialogue: RowDialogue) -> dict[str, str]:
    """Return the state and stages of each worker."""
    return {
        each.name: f"{each.state} {StageRun(each.first_stage, each.stages)}" if each.stages else each.state
        for each in dialogue.status().workers
    }


def lost(dialogue: RowDialogue, session: int) -> list[str]:
    """Lose a worker."""
    return dialogue.give(ev.WorkerLost(session, "gone"))


def too_large(dialogue: RowDialogue, session: int, stages: StageRun | None = None) -> list[str]:
    """Report that the stages of a worker do not fit its chips: those it was told last, or others."""
    told = stages or dialogue.told[session]
    failure = pb.Failure(job="a", reason="they take 9 GB of a chip's 8 GB", too_large=True)
    failure.first_stage, failure.stages = told.first, told.count
    return dialogue.says(session, failure)
