"""Writes copies of tensors as checkpoints, on the disk thread."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from numpy.typing import NDArray

from optimizer.checkpoint_store import CheckpointStore
from optimizer.core import events as ev
from optimizer.disk_thread import DiskThread
from optimizer.job_files import CheckpointContents
from optimizer.job_tensors import to_save_failed
from services.config.job import JobConfig
from services.files.store import FileStore
from services.runtime.metrics import OptimizerMetrics
from services.tasks import start_call
from services.tensors.kernels.arithmetic import Float32Array

log = logging.getLogger("tiermesh.optimizer")


class CheckpointWriter:
    """Writes checkpoints to a store, and removes surplus ones.

    Args:
        store: checkpoints on disk.
        files: files that make room for them.
        disk: thread of the disk.
        metrics: metrics of the optimizer.
        report: called on the event loop with the outcome of each checkpoint.
    """

    def __init__(
        self,
        store: CheckpointStore,
        files: FileStore,
        disk: DiskThread,
        metrics: OptimizerMetrics,
        report: Callable[[ev.Saved | ev.SaveFailed], None],
    ) -> None:
        self._store = store
        self._files = files
        self._disk = disk
        self._metrics = metrics
        self._report = report
        self._loop = asyncio.get_running_loop()

    def save(
        self,
        effect: ev.Snapshot,
        contents: CheckpointContents,
        weights: Float32Array,
        state: Mapping[str, NDArray[Any]],
    ) -> None:
        """Queue copies for writing, and the removal of surplus checkpoints behind it; called on any thread."""
        what, disk = f"job {effect.job}: checkpoint of step {effect.step}", self._disk.of(effect.job)
        written = start_call(disk, what, self._write, effect, contents, weights, state)
        start_call(disk, f"{what}, removal of older ones", self._prune, effect, contents.config, written)

    def _write(
        self,
        effect: ev.Snapshot,
        contents: CheckpointContents,
        weights: Float32Array,
        state: Mapping[str, NDArray[Any]],
    ) -> bool:
        """Write a checkpoint on the disk thread; return whether that succeeded."""
        started = time.perf_counter()
        try:
            written, size_bytes = self._files.with_room(
                lambda: self._store.write(
                    effect.job,
                    effect.generation,
                    effect.step,
                    contents.config,
                    contents.layout,
                    weights,
                    state,
                    contents.files,
                ),
                weights.nbytes + sum(each.nbytes for each in state.values()),
            )
        except Exception as error:
            self._loop.call_soon_threadsafe(self._report, to_save_failed(effect, error))
            return False
        self._metrics.record_checkpoint(
            effect.job, seconds=time.perf_counter() - started, size_bytes=size_bytes
        )
        self._loop.call_soon_threadsafe(self._report, ev.Saved(written))
        return True

    def _prune(self, effect: ev.Snapshot, config: JobConfig, written: Future[bool]) -> None:
        """Remove surplus checkpoints on the disk thread, if a new one was written."""
        if not written.result():
            return
        keep = config.checkpoint
        for problem in self._store.prune(
            effect.job, effect.step, keep_last=keep.keep_last, keep_every=keep.keep_every
        ):
            log.warning("job %s: %s", effect.job, problem)
