"""An optimizer's engine with real tensors and a real folder, which tests drive step by step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np

from optimizer.core import events as ev
from optimizer.engine import EngineCallbacks, OptimizerEngine
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import GRADIENT, INITIAL_WEIGHTS, ChunkHeader, Findings
from services.checkpoints.read import list_checkpoints
from services.config.job import JobConfig
from services.files.store import FileStore
from services.protocol.envelope import OptimizerBody
from services.protocol.versions import PROTOCOL_VERSION
from services.runtime.metrics import OptimizerMetrics
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from tests.support.local_planes import make_local_planes

LAYOUT = Layout.build([("w", (8, 4), True, "w", False)])


class EngineDialogue:
    """An engine with a job of one chunk, and the messages that it sends.

    Args:
        folder: folder of the state.
        config: the job.
    """

    def __init__(self, folder: Path, config: JobConfig) -> None:
        self._config = config
        self._job, self._generation = "j", 1
        self.root = folder / "checkpoints" / "j"
        self.metrics = OptimizerMetrics()
        self.files = FileStore(folder / "files")
        self.planes = make_local_planes()
        self.engine = OptimizerEngine(
            name="opt",
            state_dir=folder,
            files=self.files,
            metrics=self.metrics,
            record=None,
            planes=self.planes,
        )
        self._sent: asyncio.Queue[OptimizerBody] = asyncio.Queue()
        hello = pb.Hello(protocol=PROTOCOL_VERSION, role="aggregator", name="agg", epoch_seen=1)
        self.engine.connect(hello, EngineCallbacks(self._sent.put_nowait, lambda reason: None))

    def close(self) -> None:
        """Stop the engine and its plane."""
        self.engine.close()
        if self.planes.local is not None:
            self.planes.local.close("the test is over")

    async def next_message(self, kind: type[Any]) -> Any:
        """Return the next message of this type; skip others."""
        while not isinstance(message := await self._sent.get(), kind):
            pass
        return message

    async def begin(self) -> None:
        """Start the job, up to its first checkpoint."""
        await self._open()
        layout, config = self.files.put(LAYOUT.dumps().encode()), self.files.put(b"{}")
        self.order(pb.Initialise(job="j", layout=layout, files={"config.json": config}))
        await self.next_message(pb.OptimizerStatus)
        self.chunk(INITIAL_WEIGHTS, 0, 0)
        await self.next_message(pb.CheckpointWritten)

    async def _open(self) -> pb.OptimizerStatus:
        self.open()
        status: pb.OptimizerStatus = await self.next_message(pb.OptimizerStatus)
        return status

    def open(self, job: str = "") -> None:
        """Order the engine to open the job, or another one of the same config."""
        self.order(pb.Open(job=job or self._job, spec_json=self._config.to_json()))

    async def remove(self, job: str) -> pb.RemoveCheckpointsReply:
        """Remove all checkpoints of a job."""
        return await self.engine.remove_checkpoints(pb.RemoveCheckpointsRequest(job=job, all=True))

    async def go_on(self, job: str, config: JobConfig) -> None:
        """End the job that is open, and start another one from its checkpoint."""
        self.order(pb.Close(job=self._job))
        self._job, self._config = job, config
        self._generation = (await self._open()).generation

    def order(self, body: Any) -> None:
        """Give an order to the engine."""
        self.engine.feed(ev.Ordered(1, body))

    async def step(self, step: int, gradient: Float32Array | None = None) -> None:
        """Run a whole step, up to the last updated chunk; the sum of its gradients is `step` + 1 if none is given."""
        self.chunk(GRADIENT, self._generation, step, gradient)
        await self.next_message(pb.Commit)
        job = self.engine.core.opened(self._job)
        assert job is not None
        while job.updated_chunks < job.chunks:
            await asyncio.sleep(0)

    def chunk(self, kind: Any, generation: int, step: int, values: Float32Array | None = None) -> None:
        """Let the chunk of a step's sum, or of the initial weights, arrive; its values are `step` + 1 by default."""
        header = ChunkHeader(
            job=self._job,
            epoch=1,
            generation=generation,
            step=step,
            kind=kind,
            elements=LAYOUT.elements,
            findings=Findings(count=1),
        )
        if values is None:
            values = np.full(LAYOUT.elements, step + 1, np.float32)
        self.engine.feed(ev.ChunksArrived(header, [header.index]), values)

    @property
    def failures(self) -> float:
        """Number of checkpoints that could not be written, from the metric."""
        labels = {"job": "j", "role": "optimizer"}
        return self.metrics.registry.get_sample_value("tiermesh_checkpoint_failures_total", labels) or 0.0

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints on disk."""
        return [int(path.name[5:]) for path in list_checkpoints(self.root)]
