"""Carries out what the optimizer's core decides: tensors in a home (home.py), checkpoints on a disk thread.

The core runs on the event loop. Lives in the optimizer's process (3-tier) or in the aggregator's (2-tier).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from optimizer import update_rules as rules
from optimizer.checkpoint_store import CheckpointStore, EpochFile
from optimizer.core import events as ev
from optimizer.core.optimizer import OptimizerCore
from optimizer.local_tensor_store import LocalTensorStore, broke, not_saved
from optimizer.tensor_store import TensorStore, TensorStoreEvents, TensorStoreLost
from protos import cluster_pb2 as pb
from protos.tensors_pb2 import WEIGHTS, ChunkHeader
from services.checkpoints import Checkpoint, Fence
from services.config.job import JobConfig
from services.errors import Failed, Refused
from services.instrumentation import timeline
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.envelope import OptimizerBody
from services.runtime.metrics import OptimizerMetrics
from services.runtime.recording import make_core
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from services.transport.newest_weights import NewestWeights

log = logging.getLogger("tiermesh.optimizer")


@dataclass(frozen=True)
class EngineCallbacks:
    """Where an engine's words go; all are called on the event loop.

    Attributes:
        say: a message for the aggregator.
        refuse: end the link to the aggregator, for this reason.
        wake: there may be weights to take.
    """

    say: Callable[[OptimizerBody], None]
    refuse: Callable[[str], None]
    wake: Callable[[], None]


@dataclass(frozen=True)
class _Opened:
    """What checkpoints of the open job are made with."""

    config: JobConfig
    layout: Layout
    files: Mapping[str, bytes]


class OptimizerEngine:
    """One optimizer: its core, its tensors, its disk.

    Args:
        name: of the optimizer.
        incarnation: of this process.
        state_dir: where checkpoints live.
        metrics: of the optimizer.
        record: file to record the core in; None: none.
        make_home: where the tensors live; None: in this process.
        epochs: where the highest epoch that was obeyed is kept; None: elsewhere.
        fence: held while others are shown what was written.
    """

    def __init__(
        self,
        *,
        name: str,
        incarnation: str,
        state_dir: Path,
        metrics: OptimizerMetrics,
        record: Path | None,
        make_home: Callable[[TensorStoreEvents], TensorStore] | None = None,
        epochs: EpochFile | None = None,
        fence: Fence = nullcontext,
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        rules.prepare()
        self.store = CheckpointStore(state_dir / "checkpoints", fence)
        self._epochs = epochs
        self.core = make_core(OptimizerCore, record, name=name, epoch=epochs.read() if epochs else 0)
        self._metrics = metrics
        self._outlet: EngineCallbacks | None = None
        self._config: JobConfig | None = None
        self._opened: _Opened | None = None
        self.newest = NewestWeights()
        self._disk = ThreadPoolExecutor(1, "disk")
        self._loop = asyncio.get_running_loop()
        events = TensorStoreEvents(self._told, self._updated)
        self._home: TensorStore = (
            make_home(events)
            if make_home
            else LocalTensorStore(events, self.newest, incarnation=incarnation, metrics=metrics)
        )
        self._closed = False
        self._opening = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self) -> None:
        """Stop the threads; a checkpoint being written is finished first."""
        self._closed = True
        self._home.close()
        self._disk.shutdown()

    # ---- what the link brings ----

    def connect(self, hello: pb.Hello, outlet: EngineCallbacks) -> None:
        """An aggregator is there; from now on the outlet is its."""
        self._outlet = outlet
        self.feed(ev.Connected(hello))

    def disconnect(self, outlet: EngineCallbacks) -> None:
        """That aggregator's link is down."""
        if self._outlet is outlet:
            self.feed(ev.Disconnected())
            self._outlet = None

    async def room(self) -> None:
        """Wait until another chunk may come; whoever brings one then must do so at once."""
        await self._home.room()

    def chunk(self, header: ChunkHeader, values: Float32Array | None) -> None:
        """A chunk arrived, [elements] float32; None: in the home of the tensors."""
        self.feed(ev.ChunkArrived(header), values)

    async def next_weights(self) -> ChunkHeader | None:
        """The header of the next chunk of weights, which is in `newest`; None: nothing for now."""
        header = self.core.next_weights()
        if header is None or self._opened is None:
            return None
        if not self.newest.holds(header):
            try:
                await self._home.publish(header)  # asked for anew
            except Failed as failed:
                self.feed(broke(header.job, failed))
                return None
        return header

    # ---- the core ----

    def feed(self, event: ev.Input, values: Float32Array | None = None) -> None:
        """Give the core an input and carry out what it decides; `values` of the chunk that just arrived."""
        if self._closed:
            return  # what a thread had still told of: there are none any more to carry anything out
        for effect in self.core.handle(event):
            try:
                self._carry_out(effect, values)
            except Exception as error:  # the job's failure, not the process's
                job = self.core.open_job.job if self.core.open_job else ""
                self.feed(broke(job, error))
                return

    def _carry_out(self, effect: ev.Effect, values: Float32Array | None) -> None:
        match effect:
            case ev.Stage():
                self._home.stage(effect.chunk, values)
            case ev.Measure():
                self._home.measure(effect)
            case ev.Unstage():
                self._home.unstage()
            case ev.Update():
                self._update_started(effect)
            case ev.Say(body=pb.Commit()):
                hit_failpoint("optimizer.commit.before")
                if self._outlet is not None:
                    self._outlet.say(effect.body)
                hit_failpoint("optimizer.commit.after")
            case ev.Say():
                if self._outlet is not None:
                    self._outlet.say(effect.body)
            case ev.Snapshot():
                assert self._opened is not None
                self._home.snapshot(effect, partial(self._save, effect, self._opened))
            case ev.StoreInitial():
                self._home.store_initial(effect.chunk, values)
            case ev.Refuse():
                if self._outlet is not None:
                    self._outlet.refuse(effect.reason)
            case ev.SaveGeneration():
                self.store.save_generation(effect.job, effect.generation)
            case ev.SaveEpoch():
                self._save_epoch(effect.epoch)
            case ev.Load():
                self._start(effect.job, self._load(effect))
            case ev.Allocate():
                self._start(effect.job, self._allocate(effect))
            case ev.DropJob():
                self._opened, self._config = None, None
                self._home.drop()
                self.newest.clear()

    def _save_epoch(self, epoch: int) -> None:
        """What can't be kept is obeyed all the same: a full disk stops no job."""
        if self._epochs is None:
            return
        try:
            self._epochs.write(epoch)
        except Failed as failed:
            log.warning(
                "epoch %d is obeyed, but a restart of this optimizer won't know of it: %s", epoch, failed
            )

    # ---- opening a job ----

    def _start(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(self._guarded(job, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        """Run work whose failure is the job's, not the process's; one after the other."""
        async with self._opening:
            try:
                await work
            except TensorStoreLost as gone:
                log.info("job %s: %s", job, gone)
            except Exception as error:
                self.feed(broke(job, error))

    async def _load(self, effect: ev.Load) -> None:
        config, checkpoint, loaded = await self._loop.run_in_executor(self._disk, self._look_up, effect)
        if not self.core.is_loading(effect.job):
            return  # closed meanwhile
        opened: _Opened | None = None
        if checkpoint is not None:
            await self._home.open(effect.job, config, checkpoint.layout, checkpoint)
            if not self.core.is_loading(effect.job):
                self._home.drop()
                return
            opened = _Opened(config, checkpoint.layout, dict(checkpoint.files))
        self._config, self._opened = config, opened
        self.feed(loaded)

    def _look_up(self, effect: ev.Load) -> tuple[JobConfig, Checkpoint | None, ev.Loaded]:
        """On the disk thread: a job as it is on the disk."""
        config = JobConfig.from_json(effect.spec_json)
        plan = config.plan()
        checkpoint, notices = self.store.newest(effect.job, effect.void)
        for notice in notices:
            log.warning("%s", notice)
        loaded = ev.Loaded(effect.job, plan, self.store.generation(effect.job), notices=tuple(notices))
        if checkpoint is not None:
            loaded = ev.Loaded(
                effect.job,
                plan,
                max(loaded.generation, checkpoint.generation),
                checkpoint.layout.dumps(),
                checkpoint.layout.elements,
                self.store.describe(checkpoint),
                tuple(notices),
            )
        return config, checkpoint, loaded

    async def _allocate(self, effect: ev.Allocate) -> None:
        config = self._config
        if config is None:
            return  # dropped meanwhile
        try:
            layout = Layout.loads(effect.layout_json)
        except ValueError as error:
            raise Refused(
                f"the layout of the initial weights is damaged: {error}; give all hosts the same version of Tiermesh"
            ) from None
        if not layout.elements:
            raise Refused("the layout of the initial weights is empty; a model has parameters")
        await self._home.open(effect.job, config, layout, None)
        if self._config is not config:
            self._home.drop()
            return
        self._opened = _Opened(config, layout, effect.files)
        self.feed(ev.Allocated(effect.job, effect.layout_json, layout.elements))

    # ---- a step ----

    def _update_started(self, effect: ev.Update) -> None:
        """What is sent of this update is for the aggregator of now."""
        assert self.core.open_job is not None
        timeline.mark("kernel", "COMMIT", effect.step)
        header = ChunkHeader(
            job=effect.job,
            epoch=self.core.epoch,
            generation=self.core.open_job.generation,
            step=effect.step + 1,
            kind=WEIGHTS,
            dtype=self.core.open_job.plan.wire.weights,
        )
        self._home.update(effect, header)

    def _told(self, event: ev.Measured | ev.SaveFailed | ev.OperationFailed) -> None:
        if isinstance(event, ev.SaveFailed):
            log.warning("job %s: no checkpoint of step %d: %s", event.job, event.step, event.reason)
            self._metrics.count_checkpoint_failure(event.job)
        elif isinstance(event, ev.Measured):
            event = replace(event, now_seconds=self._loop.time())
        self.feed(event)

    def _updated(self, event: ev.Updated) -> None:
        self.feed(event)
        if self._outlet is not None:
            self._outlet.wake()

    # ---- checkpoints ----

    def _save(
        self, effect: ev.Snapshot, opened: _Opened, weights: Float32Array, state: Mapping[str, NDArray[Any]]
    ) -> None:
        """On any thread: have copies written; what is older is removed when they are no longer held."""
        written = self._disk.submit(self._write, effect, opened, weights, state)
        self._disk.submit(self._prune, effect, opened.config, written)

    def _write(
        self, effect: ev.Snapshot, opened: _Opened, weights: Float32Array, state: Mapping[str, NDArray[Any]]
    ) -> bool:
        """On the disk thread; whether there is a new checkpoint."""
        started = time.perf_counter()
        try:
            written, size_bytes = self.store.write(
                effect.job,
                effect.generation,
                effect.step,
                opened.config,
                opened.layout,
                weights,
                state,
                opened.files,
            )
        except Exception as error:
            self._loop.call_soon_threadsafe(self._told, not_saved(effect, error))
            return False
        self._metrics.record_checkpoint(
            effect.job, seconds=time.perf_counter() - started, size_bytes=size_bytes
        )
        self._loop.call_soon_threadsafe(self.feed, ev.Saved(written))
        return True

    def _prune(self, effect: ev.Snapshot, config: JobConfig, written: Future[bool]) -> None:
        """On the disk thread, after the write."""
        if not written.result():
            return
        keep = config.checkpoint
        for problem in self.store.prune(
            effect.job, effect.step, keep_last=keep.keep_last, keep_every=keep.keep_every
        ):
            log.warning("job %s: %s", effect.job, problem)
