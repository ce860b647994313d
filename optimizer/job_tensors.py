"""Opens a job's tensors in planes, with a checkpoint's values or none, and copies them for checkpoints.

The core orders what happens to them in between. A plane carries out its orders in sequence, so a snapshot requested
after an update contains all of that update and nothing of the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from optimizer.core import events as ev
from plane.checkpoint_files import GatheredTensors
from plane.errors import PlaneLost, reason_of
from plane.group import PlaneGroup
from plane.link import PlaneLink
from plane.update_rules import check_state, state_dtypes
from protos import plane_pb2 as pb
from services.checkpoints.format import (
    Checkpoint,
)
from services.config.job import JobConfig
from services.errors import Failed, Refused, is_out_of_space
from services.protocol.file_refs import make_ref
from services.tasks import gather_all, start_task
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

log = logging.getLogger("tiermesh.optimizer")


Save: TypeAlias = "Callable[[Float32Array, Mapping[str, NDArray[Any]]], None]"
"""Callback that queues copies of the weights, [elements] float32, and of the rule's state for writing; any thread."""


class JobTensors:
    """Weights, staged gradient and update rule state of the open job, in all planes.

    Args:
        report: called on the event loop with inputs for the core, never from within a call to this object.
        planes: links to the planes.
    """

    def __init__(
        self, report: Callable[[ev.SaveFailed | ev.OperationFailed], None], planes: PlaneGroup
    ) -> None:
        self._report = report
        self._planes = planes
        self._loop = asyncio.get_running_loop()
        self._job = ""
        self._elements = 0
        self._state_dtypes: dict[str, np.dtype[Any]] = {}
        self._opening = 0
        self._opened: dict[PlaneLink, asyncio.Future[None]] = {}
        self._last_copy = 0
        self._copied: dict[PlaneLink, asyncio.Future[pb.CopiedPart]] = {}  # of the newest copy
        self._tasks: set[asyncio.Task[None]] = set()
        planes.on_lost.append(self._lost)
        planes.report_handlers.update(
            {
                pb.PartOpened: self._part_opened,
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
        self._job, self._elements = job, layout.elements
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
                link.prepare(job, layout, layout_text, checkpoint) for link in self._planes.links
            )
            for link, part in zip(self._planes.links, parts, strict=True):
                order = pb.OpenPart(opening=opening, job=job, spec_json=spec, layout=ref, tensors=part)
                link.send_order(order)
            await asyncio.gather(*(link.wait_for(opened, what) for link, opened in self._opened.items()))
            await gather_all(link.restore(job) for link in self._planes.links)
        except (Failed, Refused):
            self.drop()  # other planes may have allocated theirs
            raise
        finally:
            for opened in self._opened.values():
                opened.cancel()  # after a failure nothing awaits the others

    def _part_opened(self, link: PlaneLink, body: pb.PartOpened) -> None:
        opened = self._opened.get(link)
        if body.opening == self._opening and opened is not None and not opened.done():
            opened.set_result(None)

    def drop(self) -> None:
        """Have all planes free their tensors."""
        job, self._job = self._job, ""
        self._planes.send_order(pb.DropPart(job=job))

    def _lost(self, reason: str) -> None:
        awaits: list[asyncio.Future[Any]] = [*self._opened.values(), *self._copied.values()]
        for awaited in awaits:
            if not awaited.done():
                awaited.set_exception(PlaneLost(reason))
                awaited.exception()  # marks it as retrieved: another shard's may be awaited
        self._job = ""

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
            self._report(ev.OperationFailed(self._job, reason))

    # ---- checkpoints ----

    def snapshot(self, effect: ev.Snapshot, save: Save) -> None:
        """Have each plane copy its tensors, and put the copies together here."""
        self._last_copy += 1
        self._copied = {link: self._loop.create_future() for link in self._planes.links}
        self._planes.send_order(pb.CopyPart(job=effect.job, copy=self._last_copy))
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
            self._report(ev.SaveFailed(effect.job, effect.generation, effect.step, str(error)))
        except Exception as error:
            self._report(to_save_failed(effect, error))
        finally:
            self._planes.send_order(pb.DropCopy(job=effect.job, copy=copy))


def to_operation_failed(job: str, error: Exception) -> ev.OperationFailed:
    """Return the core's input for an operation of a job that raised `error`."""
    return ev.OperationFailed(job, reason_of(error))


def to_save_failed(effect: ev.Snapshot, error: Exception) -> ev.SaveFailed:
    """Return the core's input for a snapshot whose copy or write raised `error`."""
    return ev.SaveFailed(effect.job, effect.generation, effect.step, reason_of(error), is_out_of_space(error))
