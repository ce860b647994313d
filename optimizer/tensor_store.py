"""The optimizer's tensors in planes: each plane updates its chunks and keeps their rule state.

The engine calls the store and the store calls back, all on the event loop. A plane carries out its orders in sequence,
so a snapshot requested after an update contains all of that update and nothing of the next one. Reports of several
planes are put into the order of the layout here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from optimizer.core import events as ev
from optimizer.schedules import clip_coefficient, first_moment_decay, learning_rate
from optimizer.staged_sums import StagedSums
from plane.checkpoint_files import GatheredTensors
from plane.errors import PlaneLost, reason_of
from plane.group import PlaneGroup
from plane.link import PlaneLink
from plane.master_tensors import measure_gradient
from plane.update_rules import check_state, state_dtypes
from protos import plane_pb2 as pb
from protos.tensors_pb2 import ChunkHeader
from services.checkpoints.format import (
    Checkpoint,
)
from services.config.job import JobConfig
from services.errors import Failed, Refused, is_out_of_space
from services.protocol.file_refs import make_ref
from services.runtime.metrics import OptimizerMetrics
from services.tasks import gather_all, start_task
from services.tensors.kernels.arithmetic import BLOCK_ELEMENTS, Float32Array
from services.tensors.layout import Layout, chunk_range

log = logging.getLogger("tiermesh.optimizer")


Save: TypeAlias = "Callable[[Float32Array, Mapping[str, NDArray[Any]]], None]"
"""Callback that queues copies of the weights, [elements] float32, and of the rule's state for writing; any thread."""


@dataclass(frozen=True)
class TensorStoreCallbacks:
    """Callbacks of a store, called on the event loop but never from within a call to the store.

    Attributes:
        report: called with each input for the optimizer's core.
        updated: called when the new weights of a chunk can be sent.
    """

    report: Callable[[ev.Measured | ev.SaveFailed | ev.OperationFailed], None]
    updated: Callable[[ev.Updated], None]


class TensorStore:
    """Weights, staged gradient and update rule state of the open job.

    Args:
        callbacks: what the store calls on the event loop.
        planes: links to the planes that have the tensors.
        metrics: metrics of the optimizer.
    """

    def __init__(
        self, callbacks: TensorStoreCallbacks, planes: PlaneGroup, metrics: OptimizerMetrics
    ) -> None:
        self._callbacks = callbacks
        self._planes = planes
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._job = ""
        self._config: JobConfig | None = None
        self._elements = 0
        self._state_dtypes: dict[str, np.dtype[Any]] = {}
        self._chunks = 0
        self._opening = 0
        self._opened: dict[PlaneLink, asyncio.Future[None]] = {}
        self._staged: StagedSums[NDArray[np.float64]] = StagedSums()  # block sums of each chunk
        self._measuring: ev.Measure | None = None
        self._updating: tuple[ev.Update, float] | None = None  # with its start time
        self._updated: dict[PlaneLink, int] = {}  # number of updated chunks by shard
        self._reported_chunks = 0  # chunks of the update that the engine knows of
        self._last_copy = 0
        self._copied: dict[PlaneLink, asyncio.Future[pb.CopiedPart]] = {}  # of the newest copy
        self._tasks: set[asyncio.Task[None]] = set()
        planes.on_lost.append(self._lost)
        planes.report_handlers.update(
            {
                pb.PartOpened: self._part_opened,
                pb.StagedChunk: self._chunk_staged,
                pb.UpdatedPart: self._part_updated,
                pb.PartBroke: self._part_broke,
                pb.CopiedPart: self._part_copied,
            }
        )

    # ---- opening a job ----

    async def open(self, job: str, config: JobConfig, layout: Layout, checkpoint: Checkpoint | None) -> None:
        """Have each plane allocate its chunks, with their part of the checkpoint.

        Raises:
            Failed: a plane can't allocate its chunks.
            Refused: the checkpoint's state is not that of this job's update rule, or a plane refuses its part.
            PlaneLost: a plane is not connected, or was lost in the meantime.
        """
        if refusal := self._planes.check_ready():
            raise PlaneLost(refusal.reason)
        self._forget()
        self._job, self._config = job, config
        self._elements, self._chunks = layout.elements, layout.chunks
        self._state_dtypes = state_dtypes(config.optimizer)
        self._opening += 1
        opening = self._opening
        self._opened = {link: self._loop.create_future() for link in self._planes.links}
        layout_text = layout.dumps().encode()
        spec, ref = config.to_json(), make_ref(layout_text)
        what = f"the allocation of its chunks of job {job}"
        try:
            if checkpoint is not None:
                check_state(config.optimizer, layout.elements, checkpoint.optimizer_state)
            parts = await gather_all(
                link.prepare(layout, layout_text, checkpoint) for link in self._planes.links
            )
            for link, part in zip(self._planes.links, parts, strict=True):
                order = pb.OpenPart(opening=opening, job=job, spec_json=spec, layout=ref, tensors=part)
                link.send_order(order)
            await asyncio.gather(*(link.wait_for(opened, what) for link, opened in self._opened.items()))
            await gather_all(link.restore() for link in self._planes.links)
        except (Failed, Refused):
            self.drop()  # other planes may have allocated theirs
            raise
        finally:
            for opened in self._opened.values():
                opened.cancel()  # after a failure nothing awaits the others
        self._staged.reset()  # reports about the former job have come, since they precede PartOpened

    def _part_opened(self, link: PlaneLink, body: pb.PartOpened) -> None:
        opened = self._opened.get(link)
        if body.opening == self._opening and opened is not None and not opened.done():
            opened.set_result(None)

    def drop(self) -> None:
        """Have all planes free their tensors."""
        self._forget()
        self._planes.send_to_all(pb.DropPart())

    def _lost(self, reason: str) -> None:
        awaits: list[asyncio.Future[Any]] = [*self._opened.values(), *self._copied.values()]
        for awaited in awaits:
            if not awaited.done():
                awaited.set_exception(PlaneLost(reason))
                awaited.exception()  # marks it as retrieved: another shard's may be awaited
        self._forget()

    def _forget(self) -> None:
        self._job, self._config, self._measuring, self._updating = "", None, None, None
        self._staged.clear()

    def close(self) -> None:
        """Cancel checkpoints that are being collected."""
        for task in self._tasks:
            self._loop.call_soon_threadsafe(task.cancel)

    def _part_broke(self, link: PlaneLink, body: pb.PartBroke) -> None:
        reason, opened = link.describe(body.reason), self._opened.get(link)
        if body.opening != self._opening:
            log.info("%s; ignored, since the order was for an earlier job", reason)
        elif opened is not None and not opened.done():
            opened.set_exception(Failed(reason))
        else:
            self._callbacks.report(ev.OperationFailed(self._job, reason))

    # ---- a step ----

    def stage(self, chunk: int, values: Float32Array | None) -> None:
        """Have the plane of a chunk stage its finished sum.

        Args:
            chunk: index of the chunk.
            values: [elements of the chunk] float32, from another process; None if the plane has it already.
        """
        self._staged.note_order(chunk)
        self._put(chunk, values)
        self._planes.link_of_chunk(chunk).send_order(pb.StageChunk(job=self._job, chunk=chunk))

    def _put(self, chunk: int, values: Float32Array | None) -> None:
        if values is not None:
            assert self._planes.local is not None, "sums come to shards alone"
            self._planes.local.put_finished_sum(chunk, values)

    async def wait_for_room(self) -> None:
        """Wait until few sums from another process wait for the kernel thread.

        The caller must hand over its chunk before it awaits anything else.
        """
        if self._planes.local is not None:
            await self._planes.local.wait_for_room()

    def unstage(self) -> None:
        """Forget the block sums; the next chunks overwrite the staged ones."""
        self._staged.clear()

    def store_initial(self, chunk: int, values: Float32Array | None) -> None:
        """Have the plane of a chunk store its initial weights; arguments as for `stage`."""
        self._put(chunk, values)
        self._planes.link_of_chunk(chunk).send_order(pb.StageChunk(job=self._job, chunk=chunk, initial=True))

    def _chunk_staged(self, link: PlaneLink, body: pb.StagedChunk) -> None:
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
        """Report the norm as soon as all planes have reported their block sums."""
        self._measuring = effect
        for link in self._planes.links:
            link.expect("its part of the norm", partial(self._is_norm_pending, link, effect))
        self._loop.call_soon(self._measure_if_staged)

    def _is_norm_pending(self, link: PlaneLink, effect: ev.Measure) -> bool:
        staged = all(map(self._staged.has, link.stripe.chunk_indices(self._elements)))
        return self._measuring is effect and not staged

    def _measure_if_staged(self) -> None:
        effect, config = self._measuring, self._config
        sums = self._staged.take(self._chunks) if effect is not None else None
        if effect is None or config is None or sums is None:
            return
        self._measuring = None
        rate = learning_rate(config.schedule, config.optimizer.lr, effect.step)
        self._callbacks.report(ev.Measured(effect.job, effect.step, *measure_gradient(sums), rate))

    def update(self, effect: ev.Update, header: ChunkHeader) -> None:
        """Have each plane update its chunks and encode them, so that they can be sent."""
        config = self._config
        assert config is not None
        self._updating = effect, time.perf_counter()
        self._updated, self._reported_chunks = dict.fromkeys(self._planes.links, 0), 0
        for link in self._planes.links:
            link.expect("its part of the update", partial(self._is_update_pending, link, effect))
        self._planes.send_to_all(
            pb.UpdatePart(
                job=effect.job,
                epoch=header.epoch,
                generation=header.generation,
                step=effect.step,
                applied=effect.applied,
                grad_norm=effect.norm,
                learning_rate=effect.learning_rate,
                clip=clip_coefficient(effect.norm, config.clip_grad_norm),
                beta1=first_moment_decay(config.schedule, effect.step),
            )
        )

    def _is_update_pending(self, link: PlaneLink, effect: ev.Update) -> bool:
        updating = self._updating is not None and self._updating[0] is effect
        return updating and self._updated[link] < link.stripe.chunk_count(self._elements)

    def _part_updated(self, link: PlaneLink, body: pb.UpdatedPart) -> None:
        """Report updated chunks to the engine in the order of the layout."""
        if self._updating is None or body.step != self._updating[0].step:
            return
        effect, started = self._updating
        self._updated[link] = body.chunks
        while self._reported_chunks < self._chunks:
            owner = self._planes.link_of_chunk(self._reported_chunks)
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
        """Have a chunk's plane encode the weights again, unless they can be sent as they are (Failed)."""
        await self._planes.link_of_chunk(header.index).publish(header)

    # ---- checkpoints ----

    def snapshot(self, effect: ev.Snapshot, save: Save) -> None:
        """Have each plane copy its tensors, and put the copies together here."""
        self._last_copy += 1
        self._copied = {link: self._loop.create_future() for link in self._planes.links}
        self._planes.send_to_all(pb.CopyPart(job=effect.job, copy=self._last_copy))
        task = start_task(
            self._collect(effect, self._last_copy, self._copied, self._elements, save),
            f"job {effect.job}: checkpoint of step {effect.step}",
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _part_copied(self, link: PlaneLink, body: pb.CopiedPart) -> None:
        copied = self._copied.get(link)
        if body.copy == self._last_copy and copied is not None and not copied.done():
            copied.set_result(body)

    async def _collect(
        self,
        effect: ev.Snapshot,
        copy: int,
        copied: Mapping[PlaneLink, asyncio.Future[pb.CopiedPart]],
        elements: int,
        save: Save,
    ) -> None:
        gathered = GatheredTensors(elements, self._state_dtypes)

        async def gather(link: PlaneLink, copied: asyncio.Future[pb.CopiedPart]) -> None:
            body = await link.wait_for(copied, f"copy {copy} of its tensors")
            if body.reason:
                raise Failed(link.describe(body.reason))
            await link.gather(body, gathered)

        try:
            if refusal := self._planes.check_ready():
                raise PlaneLost(refusal.reason)
            await gather_all(gather(*each) for each in copied.items())
            gathered.finish()
            save(gathered.weights, gathered.state)
        except PlaneLost as error:
            log.info("job %s: the checkpoint of step %d is abandoned: %s", effect.job, effect.step, error)
            self._callbacks.report(ev.SaveFailed(effect.job, effect.generation, effect.step, str(error)))
        except Exception as error:
            self._callbacks.report(to_save_failed(effect, error))
        finally:
            self._planes.send_to_all(pb.DropCopy(copy=copy))


def to_operation_failed(job: str, error: Exception) -> ev.OperationFailed:
    """Return the core's input for an operation of a job that raised `error`."""
    return ev.OperationFailed(job, reason_of(error))


def to_save_failed(effect: ev.Snapshot, error: Exception) -> ev.SaveFailed:
    """Return the core's input for a snapshot whose copy or write raised `error`."""
    return ev.SaveFailed(effect.job, effect.generation, effect.step, reason_of(error), is_out_of_space(error))
