"""The optimizer's tensors, spread over an aggregator's shards: each updates its chunks and keeps their rule state.

Orders to a shard are carried out in order. What shards report is put into the order of the layout here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from functools import partial
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from aggregator.shards.array_pieces import GatheredTensors, scattered
from aggregator.shards.client.group import ShardGroup
from aggregator.shards.client.link import ShardLink
from optimizer.core import events as ev
from optimizer.master_tensors import measure_gradient
from optimizer.tensor_store import Save, TensorStoreCallbacks, TensorStoreLost, to_save_failed
from optimizer.update_rules import state_dtypes
from protos import shards_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.checkpoints import Checkpoint
from services.config.job import JobConfig
from services.errors import Failed
from services.protocol.versions import Version
from services.runtime.metrics import OptimizerMetrics
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS, Float32Array
from services.tensors.layout import Layout, chunk_range

log = logging.getLogger("tiermesh.aggregator")


class ShardedTensorStore:
    """A `TensorStore`.

    Args:
        events: takes what is told.
        shards: where the tensors are.
        metrics: of the optimizer.
    """

    def __init__(self, events: TensorStoreCallbacks, shards: ShardGroup, metrics: OptimizerMetrics) -> None:
        self._events = events
        self._shards = shards
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._job = ""
        self._config: JobConfig | None = None
        self._elements = 0
        self._kinds: dict[str, np.dtype[Any]] = {}  # of the update rule's state
        self._chunks = 0
        self._opening = 0
        self._opened: dict[ShardLink, asyncio.Future[None]] = {}
        self._block_sums: dict[int, NDArray[np.float64]] = {}
        self._staging: Counter[int] = Counter()  # by chunk: how often it was asked for and not told of yet
        self._measuring: ev.Measure | None = None
        self._updating: tuple[ev.Update, float] | None = None  # and when it began
        self._updated: dict[ShardLink, int] = {}
        self._told = 0  # chunks of the update that were told of
        self._made: Version | None = None
        self._last_copy = 0
        self._tasks: set[asyncio.Task[None]] = set()
        shards.on_lost.append(self._lost)
        shards.takers.update(
            {
                pb.PartOpened: self._part_opened,
                pb.StagedChunk: self._staged,
                pb.UpdatedPart: self._part_updated,
                pb.PartBroke: self._part_broke,
            }
        )

    # ---- opening a job ----

    async def open(self, job: str, config: JobConfig, layout: Layout, checkpoint: Checkpoint | None) -> None:
        """Each shard makes room for its chunks (Failed: it can't), and is given those of the checkpoint."""
        if why := self._shards.why_not_ready():
            raise TensorStoreLost(why)
        self._forget()
        self._job, self._config = job, config
        self._elements, self._chunks = layout.elements, layout.chunks
        self._kinds = state_dtypes(config.optimizer)
        self._opening += 1
        opening = self._opening
        self._opened = {link: self._loop.create_future() for link in self._shards.links}
        self._shards.order_all(
            pb.OpenPart(opening=opening, job=job, spec_json=config.to_json(), layout_json=layout.dumps())
        )
        room = f"room for its part of job {job}"
        try:
            await asyncio.gather(*(link.within(opened, room) for link, opened in self._opened.items()))
        except Failed:
            self.drop()  # what others have made room for
            raise
        finally:
            for opened in self._opened.values():
                opened.cancel()  # of one that has failed nobody waits for the others
        self._staging.clear()  # what was told of the job before has come: before PartOpened
        self._block_sums.clear()
        if checkpoint is not None:
            await asyncio.gather(
                *(link.write_part(scattered(checkpoint, link.stripe, opening)) for link in self._shards.links)
            )

    def _part_opened(self, link: ShardLink, body: pb.PartOpened) -> None:
        opened = self._opened.get(link)
        if body.opening == self._opening and opened is not None and not opened.done():
            opened.set_result(None)

    def drop(self) -> None:
        """Forget the tensors."""
        self._forget()
        self._shards.order_all(pb.DropPart())

    def _lost(self, reason: str) -> None:
        for opened in self._opened.values():
            if not opened.done():
                opened.set_exception(TensorStoreLost(reason))
                opened.exception()  # somebody may wait for another one
        self._forget()

    def _forget(self) -> None:
        self._job, self._config, self._measuring, self._updating, self._made = "", None, None, None, None
        self._block_sums.clear()

    def close(self) -> None:
        """Give up what is being collected."""
        for task in self._tasks:
            self._loop.call_soon_threadsafe(task.cancel)

    def _part_broke(self, link: ShardLink, body: pb.PartBroke) -> None:
        reason, opened = f"{link}: {body.reason}", self._opened.get(link)
        if body.opening != self._opening:
            log.info("%s; that was asked for the job before", reason)
        elif opened is not None and not opened.done():
            opened.set_exception(Failed(reason))
        else:
            self._events.report(ev.OperationFailed(self._job, reason))

    # ---- a step ----

    def stage(self, chunk: int, values: Float32Array | None) -> None:
        """Have the finished sum, which is in its shard, staged there."""
        self._staging[chunk] += 1
        self._shards.of_chunk(chunk).order(pb.StageChunk(chunk=chunk))

    async def wait_for_room(self) -> None:
        """At once: sums are in their shards."""

    def unstage(self) -> None:
        """Chunks are staged over what was; what shards have yet to tell of that is not of the next sum."""
        self._block_sums.clear()

    def store_initial(self, chunk: int, values: Float32Array | None) -> None:
        """Have the initial weights, which are in their shard, stored there."""
        self._shards.of_chunk(chunk).order(pb.StageChunk(chunk=chunk, initial=True))

    def _staged(self, link: ShardLink, body: pb.StagedChunk) -> None:
        if body.chunk not in link.stripe.chunk_indices(self._elements):
            return  # of the job before
        start, stop = chunk_range(self._elements, body.chunk)
        blocks = -(-(stop - start) // BLOCK_ELEMENTS)
        if len(body.block_sums) != blocks:
            link.close(f"measured {len(body.block_sums)} blocks of chunk {body.chunk}, expected {blocks}")
            return
        if any(each < 0 for each in body.block_sums):
            link.close(f"measured a negative sum of squares of chunk {body.chunk}, {min(body.block_sums):g}")
            return
        self._staging[body.chunk] -= 1
        if self._staging[body.chunk]:
            return  # it is being staged anew
        self._block_sums[body.chunk] = np.array(body.block_sums, np.float64)
        self._measure_if_staged()

    def measure(self, effect: ev.Measure) -> None:
        """As soon as all shards have said what they measured."""
        self._measuring = effect
        for link in self._shards.links:
            link.expect("its part of the norm", partial(self._owes_norm, link, effect))
        self._loop.call_soon(self._measure_if_staged)

    def _owes_norm(self, link: ShardLink, effect: ev.Measure) -> bool:
        staged = all(chunk in self._block_sums for chunk in link.stripe.chunk_indices(self._elements))
        return self._measuring is effect and not staged

    def _measure_if_staged(self) -> None:
        effect, config = self._measuring, self._config
        if effect is None or config is None or len(self._block_sums) < self._chunks:
            return
        self._measuring = None
        sums = [self._block_sums[chunk] for chunk in range(self._chunks)]
        self._block_sums.clear()
        norm, finite, rate = measure_gradient(config, sums, effect.step)
        self._events.report(ev.Measured(effect.job, effect.step, norm, finite, rate))

    def update(self, effect: ev.Update, header: ChunkHeader) -> None:
        """Each shard updates its chunks, and has them ready to be sent."""
        self._updating = effect, time.perf_counter()
        self._updated, self._told = dict.fromkeys(self._shards.links, 0), 0
        for link in self._shards.links:
            link.expect("its part of the update", partial(self._owes_update, link, effect))
        self._made = Version(header.generation, header.step)
        self._shards.order_all(
            pb.UpdatePart(
                job=effect.job,
                generation=header.generation,
                step=effect.step,
                applied=effect.applied,
                grad_norm=effect.norm,
                learning_rate=effect.learning_rate,
            )
        )

    def _owes_update(self, link: ShardLink, effect: ev.Update) -> bool:
        updating = self._updating is not None and self._updating[0] is effect
        return updating and self._updated[link] < link.stripe.chunk_count(self._elements)

    def _part_updated(self, link: ShardLink, body: pb.UpdatedPart) -> None:
        """Tell of chunks in the order of the layout."""
        if self._updating is None or body.step != self._updating[0].step:
            return
        effect, began = self._updating
        self._updated[link] = body.chunks
        while self._told < self._chunks:
            holder = self._shards.of_chunk(self._told)
            if self._updated[holder] <= holder.stripe.to_local(self._told):
                return
            self._told += 1
            self._events.updated(ev.Updated(effect.job, effect.step, self._told - 1))
        self._updating = None
        self._metrics.record_update(
            effect.job,
            seconds=time.perf_counter() - began,
            grad_norm=effect.norm,
            learning_rate=effect.learning_rate,
        )

    async def publish(self, header: ChunkHeader) -> None:
        """Have the shards make the weights of this version ready to be sent, unless they are."""
        version = Version(header.generation, header.step)
        if self._made != version:
            self._made = version
            order = pb.MakeWeights(job=header.job, generation=version.generation, step=version.step)
            self._shards.order_all(order)

    # ---- checkpoints ----

    def snapshot(self, effect: ev.Snapshot, save: Save) -> None:
        """Each shard copies its chunks; the copies are put together here."""
        self._last_copy += 1
        self._shards.order_all(pb.CopyPart(copy=self._last_copy))
        task = self._loop.create_task(self._collect(effect, self._last_copy, self._elements, save))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _collect(self, effect: ev.Snapshot, copy: int, elements: int, save: Save) -> None:
        try:
            gathered = GatheredTensors(elements, self._kinds)
            await asyncio.gather(*(self._read(link, copy, gathered) for link in self._shards.links))
            gathered.check()
            save(gathered.weights, gathered.state)
        except (TensorStoreLost, grpc.aio.AioRpcError) as gone:
            log.info("job %s: the checkpoint of step %d is given up: %s", effect.job, effect.step, gone)
            self._events.report(ev.SaveFailed(effect.job, effect.generation, effect.step, str(gone)))
        except Exception as error:
            self._events.report(to_save_failed(effect, error))

    async def _read(self, link: ShardLink, copy: int, gathered: GatheredTensors) -> None:
        async for piece in link.read_part(copy):
            await self._loop.run_in_executor(None, gathered.take, link.stripe, piece)
