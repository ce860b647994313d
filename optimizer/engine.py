"""Carries out what the optimizer's core decides: arithmetic on a kernel thread, checkpoints on a disk thread.

The core runs on the event loop. The kernel thread takes one task after the other, so the tensors change in the order in
which the core asks: a snapshot asked for after an update sees all of it and nothing of the next.
Lives in the optimizer's process (3-tier) or in the aggregator's (2-tier).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from optimizer import events as ev
from optimizer import rules
from optimizer.core import OptimizerCore
from optimizer.store import JobStore
from optimizer.tensors import Tensors
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import WEIGHTS, ChunkHeader
from services.config import JobConfig
from services.envelope import OptimizerBody
from services.errors import Failed, Refused, TiermeshError
from services.metrics import OptimizerMetrics
from services.plan import plan_of
from services.process import describe
from services.record import make_core
from services.tensors.kernels import Float32Array
from services.tensors.layout import Layout
from services.tensors.wire import pack, serialize, too_large

log = logging.getLogger("tiermesh.optimizer")


@dataclass(frozen=True)
class Outlet:
    """Where an engine's words go; all are called on the event loop.

    Attributes:
        say: a message for the aggregator.
        refuse: end the link to the aggregator, for this reason.
        wake: there may be weights to take.
    """

    say: Callable[[OptimizerBody], None]
    refuse: Callable[[str], None]
    wake: Callable[[], None]


class OptimizerEngine:
    """One optimizer: its core, its tensors, its threads."""

    def __init__(
        self, *, name: str, incarnation: str, state_dir: Path, metrics: OptimizerMetrics, record: Path | None
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        rules.prepare()
        self.store = JobStore(state_dir / "checkpoints")
        self.core = make_core(OptimizerCore, record, name=name)
        self._metrics = metrics
        self._outlet: Outlet | None = None
        self._config: JobConfig | None = None
        self._tensors: Tensors | None = None
        self._files: dict[str, bytes] = {}
        self._fresh: dict[int, bytes] = {}  # messages made right after an update, for the aggregator of then
        self._fresh_epoch = 0
        self._kernel = ThreadPoolExecutor(1, "kernel")
        self._disk = ThreadPoolExecutor(1, "disk")
        self._writing: Future[None] | None = None  # the checkpoint on its way to the disk
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Stop the threads; a checkpoint being written is finished first."""
        self._kernel.shutdown(cancel_futures=True)
        self._disk.shutdown()

    # ---- what the link brings ----

    def connect(self, hello: pb.Hello, outlet: Outlet) -> None:
        """An aggregator is there; from now on the outlet is its."""
        self._outlet = outlet
        self.feed(ev.Connected(hello))

    def disconnect(self, outlet: Outlet) -> None:
        """That aggregator's link is down."""
        if self._outlet is outlet:
            self.feed(ev.Disconnected())
            self._outlet = None

    def chunk(self, header: ChunkHeader, values: Float32Array) -> None:
        """A chunk arrived, [elements] float32."""
        self.feed(ev.ChunkArrived(header), values)

    async def next_weights(self) -> bytes | None:
        """The next chunk of weights as a message of the data plane; None: nothing for now."""
        header = self.core.next_weights()
        if header is None or self._tensors is None:
            return None
        message = self._fresh.pop(header.index, None)
        if message is not None and self._fresh_epoch == header.epoch:
            return message
        # Asked for anew. The kernel thread will come to this before any later update: the core would have
        # named the later version otherwise.
        try:
            return await self._loop.run_in_executor(
                self._kernel, self._message, self._tensors, header, header.index
            )
        except Failed as failed:
            self.feed(_broke(header.job, failed))
            return None

    # ---- the core ----

    def feed(self, event: ev.Input, values: Float32Array | None = None) -> None:
        """Give the core an input and carry out what it decides; `values` of the chunk that just arrived."""
        for effect in self.core.handle(event):
            try:
                self._carry_out(effect, values)
            except Exception as error:  # the job's failure, not the process's
                job = self.core.open_job.job if self.core.open_job else ""
                self.feed(_broke(job, error))
                return

    def _carry_out(self, effect: ev.Effect, values: Float32Array | None) -> None:
        tensors = self._tensors
        match effect:
            case ev.Stage():
                assert tensors is not None and values is not None
                self._on_kernel(tensors.stage, effect.chunk, values)
            case ev.Measure():
                self._on_kernel(self._measure, tensors, effect)
            case ev.Update():
                self._update_started(effect)
            case ev.Say():
                if self._outlet is not None:
                    self._outlet.say(effect.body)
            case ev.Snapshot():
                self._on_kernel(self._snapshot, tensors, self._files, effect)
            case ev.StoreInitial():
                assert tensors is not None and values is not None
                self._on_kernel(tensors.store_initial, effect.chunk, values)
            case ev.Refuse():
                if self._outlet is not None:
                    self._outlet.refuse(effect.reason)
            case ev.SaveGeneration():
                self.store.save_generation(effect.job, effect.generation)
            case ev.Load():
                self._disk.submit(self._guarded, effect.job, self._load, effect)
            case ev.Allocate():
                self._allocate(effect)
            case ev.DropJob():
                self._tensors, self._config = None, None
                self._files = {}
                self._fresh.clear()

    def _tell(self, event: ev.Input) -> None:
        """Feed an input from another thread."""
        self._loop.call_soon_threadsafe(self.feed, event)

    def _on_kernel(self, work: Callable[..., None], *arguments: Any) -> None:
        job = self.core.open_job.job if self.core.open_job else ""
        self._kernel.submit(self._guarded, job, work, *arguments)

    def _guarded(self, job: str, work: Callable[..., None], *arguments: Any) -> None:
        """Run work whose failure is the job's, not the process's."""
        try:
            work(*arguments)
        except Exception as error:
            self._tell(_broke(job, error))

    # ---- opening a job ----

    def _load(self, effect: ev.Load) -> None:
        config = JobConfig.from_json(effect.spec_json)
        plan = plan_of(config)
        checkpoint, notices = self.store.newest(effect.job)
        for notice in notices:
            log.warning("%s", notice)
        loaded = ev.Loaded(effect.job, plan, self.store.generation(effect.job), notices=tuple(notices))
        tensors: Tensors | None = None
        files: dict[str, bytes] = {}
        if checkpoint is not None:
            tensors = Tensors(config, checkpoint.layout)
            tensors.restore(checkpoint.weights, checkpoint.optimizer_state)
            files = dict(checkpoint.files)
            loaded = ev.Loaded(
                effect.job,
                plan,
                max(loaded.generation, checkpoint.generation),
                checkpoint.layout.dumps(),
                checkpoint.layout.elements,
                self.store.describe(checkpoint),
                tuple(notices),
            )
        self._loop.call_soon_threadsafe(self._loaded, config, tensors, files, loaded)

    def _loaded(
        self, config: JobConfig, tensors: Tensors | None, files: dict[str, bytes], loaded: ev.Loaded
    ) -> None:
        self.feed(loaded)
        opened = self.core.open_job
        if opened is not None and opened.job == loaded.job:
            self._config, self._tensors, self._files = config, tensors, files

    def _allocate(self, effect: ev.Allocate) -> None:
        assert self._config is not None
        try:
            layout = Layout.loads(effect.layout_json)
            tensors = Tensors(self._config, layout)
        except (TypeError, KeyError, ValueError) as error:
            raise Refused(
                f"the layout of the initial weights is damaged: {error}; give all hosts the same version of Tiermesh"
            ) from None
        if not layout.elements:
            raise Refused("the layout of the initial weights is empty; a model has parameters")
        self._tensors, self._files = tensors, effect.files
        self.feed(ev.Allocated(effect.job, effect.layout_json, layout.elements))

    # ---- a step, on the kernel thread ----

    def _measure(self, tensors: Tensors, effect: ev.Measure) -> None:
        norm, finite, rate = tensors.measure(effect.step)
        self._tell(ev.Measured(effect.job, effect.step, norm, finite, rate))

    def _update_started(self, effect: ev.Update) -> None:
        """On the event loop: what is sent of this update is for the aggregator of now."""
        assert self.core.open_job is not None
        self._fresh.clear()
        self._fresh_epoch = self.core.epoch
        header = ChunkHeader(
            job=effect.job,
            epoch=self._fresh_epoch,
            generation=self.core.open_job.generation,
            step=effect.step + 1,
            kind=WEIGHTS,
            dtype=self.core.open_job.plan.wire.weights,
        )
        self._on_kernel(self._update, self._tensors, effect, header)

    def _update(self, tensors: Tensors, effect: ev.Update, header: ChunkHeader) -> None:
        started = time.perf_counter()
        if effect.applied:
            tensors.begin_update(effect.norm, effect.learning_rate)
        for chunk in range(tensors.layout.chunks):
            if effect.applied:
                tensors.update(chunk)
            message = self._message(tensors, header, chunk)
            self._loop.call_soon_threadsafe(
                self._updated, ev.Updated(effect.job, effect.step, chunk), message
            )
        self._metrics.updated(
            effect.job,
            seconds=time.perf_counter() - started,
            grad_norm=effect.norm,
            learning_rate=effect.learning_rate,
        )

    def _updated(self, event: ev.Updated, message: bytes) -> None:
        if self._outlet is not None:
            self._fresh[event.chunk] = message
        self.feed(event)
        if self._outlet is not None:
            self._outlet.wake()

    def _message(self, tensors: Tensors, header: ChunkHeader, chunk: int) -> bytes:
        header.incarnation = self.incarnation
        packed = pack(header, chunk, tensors.chunk_weights(chunk))
        text = too_large(packed)
        if text:
            raise Failed(f"weights: {text}")
        return serialize(packed)

    # ---- checkpoints ----

    def _snapshot(self, tensors: Tensors, files: dict[str, bytes], effect: ev.Snapshot) -> None:
        """On the kernel thread: copy, so that the next update need not wait for the disk.

        It waits for the checkpoint before, so that there is one copy at most however slow the disk is.
        """
        if self._writing is not None:
            self._writing.result()
        weights, state = tensors.copy()
        self._writing = self._disk.submit(
            self._guarded, effect.job, self._write, tensors, files, effect, weights, state
        )

    def _write(
        self,
        tensors: Tensors,
        files: dict[str, bytes],
        effect: ev.Snapshot,
        weights: Float32Array,
        state: dict[str, NDArray[Any]],
    ) -> None:
        started = time.perf_counter()
        written, size_bytes = self.store.write(
            effect.job, effect.generation, effect.step, tensors.config, tensors.layout, weights, state, files
        )
        self._metrics.checkpointed(effect.job, seconds=time.perf_counter() - started, size_bytes=size_bytes)
        self._tell(ev.Saved(written))


def _broke(job: str, error: Exception) -> ev.Broke:
    if isinstance(error, TiermeshError):
        return ev.Broke(job, str(error))
    log.error("%s", describe(error), exc_info=error)
    return ev.Broke(job, describe(error))
