"""Opens jobs: reads what the disk has of them, and has planes allocate their tensors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any
from weakref import WeakValueDictionary

from optimizer.core import events as ev
from optimizer.core.checkpoint_schedule import SPACE_RETRY_SECONDS
from optimizer.core.optimizer import OptimizerCore
from optimizer.disk_thread import DiskThread
from optimizer.job_files import CheckpointContents, JobFiles
from optimizer.job_tensors import JobTensors, to_operation_failed
from plane.errors import PlaneLost
from services.config.job import JobConfig
from services.errors import Failed, is_out_of_space
from services.tasks import call_in, start_task

log = logging.getLogger("tiermesh.optimizer")


class JobOpener:
    """Carries out Load and Allocate, one at a time for a job. No job waits for the opening of another one.

    Args:
        core: state machine, which is asked whether a job is still to be opened.
        tensors: tensors of all jobs.
        job_files: reader of the files of jobs.
        disk: thread of the disk.
        feed: called with the answers.
        report_no_space: called with a job and the reason while the disk has no space to open it.
    """

    def __init__(
        self,
        core: OptimizerCore,
        tensors: JobTensors,
        job_files: JobFiles,
        disk: DiskThread,
        *,
        feed: Callable[[ev.Input], None],
        report_no_space: Callable[[str, str], None],
    ) -> None:
        self._core = core
        self._tensors = tensors
        self._job_files = job_files
        self._disk = disk
        self._feed = feed
        self._report_no_space = report_no_space
        self._configs: dict[str, JobConfig] = {}  # by job, until it is dropped
        self._contents: dict[str, CheckpointContents] = {}  # by job, until it is dropped
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by job, while used
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def close(self) -> None:
        """Report no errors any longer: the disk's thread stops."""
        self._closed = True

    def contents(self, job: str) -> CheckpointContents:
        """Return the contents of an open job's checkpoints besides its tensors."""
        return self._contents[job]

    def drop(self, job: str) -> None:
        """Forget a job."""
        self._configs.pop(job, None)
        self._contents.pop(job, None)

    def load(self, effect: ev.Load) -> None:
        """Answer Load, unless the job is closed before that."""
        self._start(effect.job, self._load(effect))

    def allocate(self, effect: ev.Allocate) -> None:
        """Answer Allocate, unless the job is closed before that."""
        self._start(effect.job, self._allocate(effect))

    def _start(self, job: str, work: Coroutine[Any, Any, None]) -> None:
        lock = self._locks.setdefault(job, asyncio.Lock())
        task = start_task(self._guarded(job, lock, work), f"job {job}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guarded(self, job: str, lock: asyncio.Lock, work: Coroutine[Any, Any, None]) -> None:
        """Run work so that an error fails the job, not the process."""
        async with lock:
            try:
                await work
            except PlaneLost as lost:
                log.info("job %s: %s", job, lost)
            except Exception as error:
                if not self._closed:
                    self._feed(to_operation_failed(job, error))

    async def _load(self, effect: ev.Load) -> None:
        job = effect.job
        await self._prepare(effect)
        config, checkpoint, loaded = await call_in(self._disk.of(job), self._job_files.look_up, effect)
        if not self._core.is_loading(job):
            return  # the job was closed in the meantime
        if checkpoint is not None:
            await self._tensors.open(job, config, checkpoint.layout, checkpoint)
            if not self._core.is_loading(job):
                self._tensors.drop(job)
                return
            self._contents[job] = CheckpointContents(config, checkpoint.layout, dict(checkpoint.files))
        self._configs[job] = config
        self._feed(loaded)

    async def _prepare(self, effect: ev.Load) -> None:
        """Prepare the job's files, and wait while the disk has no space for them (TiermeshError).

        The file of its generation later changes on a full disk too.
        """
        job = effect.job
        is_reported = False
        while self._core.is_loading(job):
            try:
                await call_in(self._disk.of(job), self._job_files.prepare, effect)
                return
            except Failed as failed:
                if not is_out_of_space(failed):
                    raise
                if not is_reported:
                    is_reported = True
                    self._report_no_space(job, f"{failed}; the job begins once there is space")
            await asyncio.sleep(SPACE_RETRY_SECONDS)

    async def _allocate(self, effect: ev.Allocate) -> None:
        job = effect.job
        config = self._configs.get(job)
        if config is None:
            return  # the job was dropped in the meantime
        layout, files = await call_in(self._disk.of(job), self._job_files.read_description, effect, config)
        await self._tensors.open(job, config, layout, None)
        if self._configs.get(job) is not config:
            self._tensors.drop(job)
            return
        self._contents[job] = CheckpointContents(config, layout, files)
        self._feed(ev.Allocated(job, layout.hash, layout.elements))
