"""The optimizer's tensors in an aggregator's shards: each shard updates its chunks and keeps their rule state.

A shard carries out its orders in sequence. Reports of several shards are put into the order of the layout here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from aggregator.shards.client.gathered_tensors import GatheredTensors, checkpoint_pieces
from aggregator.shards.client.group import ShardGroup
from aggregator.shards.client.link import ShardLink
from aggregator.shards.client.staged_sums import StagedSums
from optimizer.core import events as ev
from optimizer.master_tensors import measure_gradient
from optimizer.tensor_store import Save, TensorStoreCallbacks, TensorStoreLost, to_save_failed
from optimizer.update_rules import state_dtypes
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.checkpoints.format import (
    Checkpoint,
)
from services.config.job import JobConfig
from services.errors import Failed
from services.protocol.file_refs import make_ref
from services.protocol.versions import Version
from services.runtime.metrics import OptimizerMetrics
from services.tasks import start_task
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS, Float32Array
from services.tensors.layout import Layout, chunk_range

log = logging.getLogger("tiermesh.aggregator")


class ShardedTensorStore:
    """A `TensorStore` whose tensors are in shards.

    Args:
        callbacks: what the store calls on the event loop.
        shards: links to the shards.
        metrics: metrics of the optimizer.
    """

    def __init__(
        self, callbacks: TensorStoreCallbacks, shards: ShardGroup, metrics: OptimizerMetrics
    ) -> None:
        self._callbacks = callbacks
        self._shards = shards
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._job = ""
        self._config: JobConfig | None = None
        self._elements = 0
        self._state_dtypes: dict[str, np.dtype[Any]] = {}
        self._chunks = 0
        self._opening = 0
        self._opened: dict[ShardLink, asyncio.Future[None]] = {}
        self._staged: StagedSums[NDArray[np.float64]] = StagedSums()  # block sums of each chunk
        self._measuring: ev.Measure | None = None
        self._updating: tuple[ev.Update, float] | None = None  # with its start time
        self._updated: dict[ShardLink, int] = {}  # number of updated chunks by shard
        self._reported_chunks = 0  # chunks of the update that the engine knows of
        self._published: Version | None = None  # version whose weights the shards send
        self._last_copy = 0
        self._tasks: set[asyncio.Task[None]] = set()
        shards.on_lost.append(self._lost)
        shards.report_handlers.update(
            {
                pb.PartOpened: self._part_opened,
                pb.StagedChunk: self._chunk_staged,
                pb.UpdatedPart: self._part_updated,
                pb.PartBroke: self._part_broke,
            }
        )

    # ---- opening a job ----

    async def open(self, job: str, config: JobConfig, layout: Layout, checkpoint: Checkpoint | None) -> None:
        """Have each shard allocate its chunks, and send it those of the checkpoint.

        Raises:
            Failed: a shard can't allocate its chunks.
            Refused: the checkpoint's state is not that of this job's update rule.
            TensorStoreLost: a shard is not connected, or was lost in the meantime.
        """
        if refusal := self._shards.check_ready():
            raise TensorStoreLost(refusal.reason)
        self._forget()
        self._job, self._config = job, config
        self._elements, self._chunks = layout.elements, layout.chunks
        self._state_dtypes = state_dtypes(config.optimizer)
        self._opening += 1
        opening = self._opening
        self._opened = {link: self._loop.create_future() for link in self._shards.links}
        layout_text = layout.dumps().encode()
        order = pb.OpenPart(
            opening=opening, job=job, spec_json=config.to_json(), layout=make_ref(layout_text)
        )
        what = f"the allocation of its chunks of job {job}"
        try:
            await asyncio.gather(*(link.send_file(layout_text) for link in self._shards.links))
            self._shards.send_to_all(order)
            await asyncio.gather(*(link.wait_for(opened, what) for link, opened in self._opened.items()))
        except Failed:
            self.drop()  # other shards may have allocated theirs
            raise
        finally:
            for opened in self._opened.values():
                opened.cancel()  # after a failure nothing awaits the others
        self._staged.reset()  # reports about the former job have come, since they precede PartOpened
        if checkpoint is not None:
            await asyncio.gather(
                *(
                    link.write_pieces(checkpoint_pieces(checkpoint, link.stripe, opening))
                    for link in self._shards.links
                )
            )

    def _part_opened(self, link: ShardLink, body: pb.PartOpened) -> None:
        opened = self._opened.get(link)
        if body.opening == self._opening and opened is not None and not opened.done():
            opened.set_result(None)

    def drop(self) -> None:
        """Have all shards free their tensors."""
        self._forget()
        self._shards.send_to_all(pb.DropPart())

    def _lost(self, reason: str) -> None:
        for opened in self._opened.values():
            if not opened.done():
                opened.set_exception(TensorStoreLost(reason))
                opened.exception()  # marks it as retrieved: `open` may await another shard's
        self._forget()

    def _forget(self) -> None:
        self._job, self._config, self._measuring, self._updating, self._published = "", None, None, None, None
        self._staged.clear()

    def close(self) -> None:
        """Cancel checkpoints that are being collected."""
        for task in self._tasks:
            self._loop.call_soon_threadsafe(task.cancel)

    def _part_broke(self, link: ShardLink, body: pb.PartBroke) -> None:
        reason, opened = f"{link}: {body.reason}", self._opened.get(link)
        if body.opening != self._opening:
            log.info("%s; ignored, since the order was for an earlier job", reason)
        elif opened is not None and not opened.done():
            opened.set_exception(Failed(reason))
        else:
            self._callbacks.report(ev.OperationFailed(self._job, reason))

    # ---- a step ----

    def stage(self, chunk: int, values: Float32Array | None) -> None:
        """Have the shard of a chunk stage its finished sum; `values` are not here."""
        self._staged.note_order(chunk)
        self._shards.link_of_chunk(chunk).send_order(pb.StageChunk(job=self._job, chunk=chunk))

    async def wait_for_room(self) -> None:
        """Return at once: the sums are in their shards."""

    def unstage(self) -> None:
        """Forget the block sums; the next chunks overwrite the staged ones."""
        self._staged.clear()

    def store_initial(self, chunk: int, values: Float32Array | None) -> None:
        """Have the shard of a chunk store its initial weights; `values` are not here."""
        self._shards.link_of_chunk(chunk).send_order(pb.StageChunk(job=self._job, chunk=chunk, initial=True))

    def _chunk_staged(self, link: ShardLink, body: pb.StagedChunk) -> None:
        if body.chunk not in link.stripe.chunk_indices(self._elements):
            return  # a report about the former job
        start, stop = chunk_range(self._elements, body.chunk)
        blocks = -(-(stop - start) // BLOCK_ELEMENTS)
        if len(body.block_sums) != blocks:
            link.close(f"StagedChunk {body.chunk}: {len(body.block_sums)} block sums, expected {blocks}")
            return
        if any(each < 0 for each in body.block_sums):
            link.close(
                f"StagedChunk {body.chunk}: sum of squares {min(body.block_sums):g}, expected at least 0"
            )
            return
        self._staged.note_report(body.chunk, np.array(body.block_sums, np.float64))
        self._measure_if_staged()

    def measure(self, effect: ev.Measure) -> None:
        """Report the norm as soon as all shards have reported their block sums."""
        self._measuring = effect
        for link in self._shards.links:
            link.expect("its part of the norm", partial(self._is_norm_pending, link, effect))
        self._loop.call_soon(self._measure_if_staged)

    def _is_norm_pending(self, link: ShardLink, effect: ev.Measure) -> bool:
        staged = all(map(self._staged.has, link.stripe.chunk_indices(self._elements)))
        return self._measuring is effect and not staged

    def _measure_if_staged(self) -> None:
        effect, config = self._measuring, self._config
        sums = self._staged.take(self._chunks) if effect is not None else None
        if effect is None or config is None or sums is None:
            return
        self._measuring = None
        norm, finite, rate = measure_gradient(config, sums, effect.step)
        self._callbacks.report(ev.Measured(effect.job, effect.step, norm, finite, rate))

    def update(self, effect: ev.Update, header: ChunkHeader) -> None:
        """Have each shard update its chunks and encode them, so that they can be sent."""
        self._updating = effect, time.perf_counter()
        self._updated, self._reported_chunks = dict.fromkeys(self._shards.links, 0), 0
        for link in self._shards.links:
            link.expect("its part of the update", partial(self._is_update_pending, link, effect))
        self._published = Version(header.generation, header.step)
        self._shards.send_to_all(
            pb.UpdatePart(
                job=effect.job,
                generation=header.generation,
                step=effect.step,
                applied=effect.applied,
                grad_norm=effect.norm,
                learning_rate=effect.learning_rate,
            )
        )

    def _is_update_pending(self, link: ShardLink, effect: ev.Update) -> bool:
        updating = self._updating is not None and self._updating[0] is effect
        return updating and self._updated[link] < link.stripe.chunk_count(self._elements)

    def _part_updated(self, link: ShardLink, body: pb.UpdatedPart) -> None:
        """Report updated chunks to the engine in the order of the layout."""
        if self._updating is None or body.step != self._updating[0].step:
            return
        effect, started = self._updating
        self._updated[link] = body.chunks
        while self._reported_chunks < self._chunks:
            owner = self._shards.link_of_chunk(self._reported_chunks)
            if self._updated[owner] <= owner.stripe.to_local(self._reported_chunks):
                return
            self._reported_chunks += 1
            self._callbacks.updated(ev.Updated(effect.job, effect.step, self._reported_chunks - 1))
        self._updating = None
        self._metrics.record_update(
            effect.job,
            seconds=time.perf_counter() - started,
            grad_norm=effect.norm,
            learning_rate=effect.learning_rate,
        )

    async def publish(self, header: ChunkHeader) -> None:
        """Have the shards encode the weights of this version, unless they have done so."""
        version = Version(header.generation, header.step)
        if self._published != version:
            self._published = version
            order = pb.MakeWeights(job=header.job, generation=version.generation, step=version.step)
            self._shards.send_to_all(order)

    # ---- checkpoints ----

    def snapshot(self, effect: ev.Snapshot, save: Save) -> None:
        """Have each shard copy its tensors, and put the copies together here."""
        self._last_copy += 1
        self._shards.send_to_all(pb.CopyPart(job=effect.job, copy=self._last_copy))
        task = start_task(
            self._collect(effect, self._last_copy, self._elements, save),
            f"job {effect.job}: checkpoint of step {effect.step}",
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _collect(self, effect: ev.Snapshot, copy: int, elements: int, save: Save) -> None:
        try:
            gathered = GatheredTensors(elements, self._state_dtypes)
            await asyncio.gather(*(self._read(link, copy, gathered) for link in self._shards.links))
            gathered.check_complete()
            save(gathered.weights, gathered.state)
        except (TensorStoreLost, grpc.aio.AioRpcError) as error:
            log.info("job %s: the checkpoint of step %d is abandoned: %s", effect.job, effect.step, error)
            self._callbacks.report(ev.SaveFailed(effect.job, effect.generation, effect.step, str(error)))
        except Exception as error:
            self._callbacks.report(to_save_failed(effect, error))

    async def _read(self, link: ShardLink, copy: int, gathered: GatheredTensors) -> None:
        async for piece in link.read_copy(copy):
            await asyncio.to_thread(gathered.add, link.stripe, piece)
