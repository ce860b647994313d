"""An optimizer's engine whose tensors are in two shards, which tests stand in for."""

from __future__ import annotations

import asyncio
from pathlib import Path

from google.protobuf.message import Message

from optimizer.core import events as ev
from optimizer.engine import EngineCallbacks, OptimizerEngine
from plane.group import PlaneGroup
from protos import cluster_pb2 as cluster
from protos import plane_pb2 as pb
from protos.tensors_pb2 import GRADIENT, ChunkHeader, Findings
from services.files.store import FileStore
from services.protocol.envelope import OptimizerBody
from services.protocol.plan import JobPlan
from services.protocol.versions import PROTOCOL_VERSION
from services.runtime.metrics import OptimizerMetrics
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS
from services.tensors.layout import CHUNK_ELEMENTS, Layout
from tests.support.recording_links import recording_links, set_stall

CHUNKS = 5
LAYOUT = Layout.build([("w", (4 * CHUNK_ELEMENTS + 77,), True, "w", False)])


def block_sums(chunk: int, each: float = 1.0) -> list[float]:
    """Return as many block sums as a chunk has blocks."""
    size = min(CHUNK_ELEMENTS, LAYOUT.elements - chunk * CHUNK_ELEMENTS)
    return [each] * -(-size // BLOCK_ELEMENTS)


class ShardedEngine:
    """An engine with job `j`, which is at a step of generation 2, over two links that record orders.

    Args:
        folder: folder of the state.
        plan: the job's plan.
        step: step that the job is at.
        stall: how long links wait for their shards' work, in seconds.

    Attributes:
        orders: orders to the shards, with their numbers.
        sent: messages to the aggregator.
        lost: reasons for which shards were lost.
    """

    def __init__(self, folder: Path, plan: JobPlan, step: int, stall: float) -> None:
        self.orders: list[tuple[int, Message]] = []
        self.sent: list[OptimizerBody] = []
        self.lost: asyncio.Queue[str] = asyncio.Queue()
        self.metrics = OptimizerMetrics()
        self._step = step
        self._links = recording_links(self.orders)
        for link in self._links:
            vars(link)["_channel"] = object()  # the link counts as up
            set_stall(link, stall)
        self.planes = PlaneGroup(self._links)
        self.planes.on_lost.append(self.lost.put_nowait)
        self.engine = OptimizerEngine(
            name="opt",
            state_dir=folder,
            files=FileStore(folder / "files"),
            metrics=self.metrics,
            record=None,
            planes=self.planes,
        )
        hello = cluster.Hello(protocol=PROTOCOL_VERSION, role="aggregator", name="agg", epoch_seen=1)
        self.engine.connect(hello, EngineCallbacks(self.sent.append, lambda reason: None))
        written = cluster.CheckpointWritten(job="j", generation=1, step=step)
        self.engine.core.handle(ev.Ordered(1, cluster.Open(job="j")))
        self.engine.core.handle(ev.Loaded("j", plan, 1, LAYOUT.hash, LAYOUT.elements, written))

    def arrive(self, *chunks: int, generation: int = 2, step: int | None = None) -> None:
        """Tell the engine that the sums of these chunks are finished."""
        for chunk in chunks:
            header = ChunkHeader(
                job="j",
                epoch=1,
                generation=generation,
                step=self._step if step is None else step,
                kind=GRADIENT,
                index=chunk,
                findings=Findings(count=1),
            )
            self.engine.feed(ev.ChunksArrived(header, [header.index]))

    def report(self, shard: int, body: pb.StagedChunks | pb.UpdatedPart) -> None:
        """Give a report of a shard to its handler."""
        self.planes.take_report(self._links[shard], body)

    def staged(self, chunk: int, sums: list[float]) -> None:
        """Report that a chunk is staged."""
        self.report(
            chunk % 2, pb.StagedChunks(job="j", chunks=[pb.StagedChunk(chunk=chunk, block_sums=sums)])
        )

    def take_orders(self) -> list[tuple[int, Message]]:
        """Return the orders since the last call."""
        taken = self.orders.copy()
        self.orders.clear()
        return taken

    @property
    def commits(self) -> list[cluster.Commit]:
        """COMMITs that were sent."""
        return [each for each in self.sent if isinstance(each, cluster.Commit)]

    @property
    def updated_chunks(self) -> int:
        """Number of chunks, from the first, whose new weights can be sent."""
        job = self.engine.core.opened("j")
        assert job is not None
        return job.updated_chunks
