"""Opens jobs' tensors in planes, with a checkpoint's values or none, and copies them for checkpoints.

The core orders what happens to them in between. A plane carries out its orders in sequence, so a snapshot requested
after an update contains all of that update and nothing of the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
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


@dataclass(frozen=True)
class _OpenedTensors:
    """What is known of the tensors of a job that planes have, or are opening.

    Attributes:
        opening: number of the opening.
        elements: number of elements of the layout.
        state_dtypes: dtypes of the update rule's arrays by name.
    """

    opening: int
    elements: int
    state_dtypes: dict[str, np.dtype[Any]]


class JobTensors:
    """Weights, staged gradient and update rule state of all open jobs, in all planes.

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
        self._opened: dict[str, _OpenedTensors] = {}  # by job
        self._last_opening = 0
        self._openings: dict[int, dict[PlaneLink, asyncio.Future[None]]] = {}  # by number, while awaited
        self._last_copy = 0
        self._copies: dict[
            int, dict[PlaneLink, asyncio.Future[pb.CopiedPart]]
        ] = {}  # by number, while awaited
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
        """Have each plane allocate its chunks, with their part of the checkpoint, in place of the job's earlier ones.

        Raises:
            Failed: a plane can't allocate its chunks.
            Refused: the checkpoint's state is not that of this job's update rule, or a plane refuses its part.
            PlaneLost: a plane is not connected, or was lost in the meantime.
        """
        if refusal := self._planes.check_ready():
            raise PlaneLost(refusal.reason)
        self._last_opening += 1
        opening = self._last_opening
        self._opened[job] = _OpenedTensors(opening, layout.elements, state_dtypes(config.optimizer))
        opened = {link: self._loop.create_future() for link in self._planes.links}
        self._openings[opening] = opened
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
                tensors = part.ref if part is not None else None
                order = pb.OpenPart(opening=opening, job=job, spec_json=spec, layout=ref, tensors=tensors)
                link.send_order(order)
            await asyncio.gather(*(link.wait_for(each, what) for link, each in opened.items()))
            await gather_all(
                link.restore(job, part) for link, part in zip(self._planes.links, parts, strict=True)
            )
        except (Failed, Refused):
            self.drop(job)  # other planes may have allocated theirs
            raise
        finally:
            del self._openings[opening]
            for each in opened.values():
                each.cancel()  # after a failure nothing awaits the others

    def _part_opened(self, link: PlaneLink, body: pb.PartOpened) -> None:
        opened = self._openings.get(body.opening, {}).get(link)
        if opened is not None and not opened.done():
            opened.set_result(None)

    def drop(self, job: str) -> None:
        """Have all planes free a job's tensors."""
        self._opened.pop(job, None)
        self._planes.send_order(pb.DropPart(job=job))

    def _lost(self, reason: str) -> None:
        awaits: list[asyncio.Future[Any]] = [
            *chain.from_iterable(each.values() for each in self._openings.values()),
            *chain.from_iterable(each.values() for each in self._copies.values()),
        ]
        for awaited in awaits:
            if not awaited.done():
                awaited.set_exception(PlaneLost(reason))
                awaited.exception()  # marks it as retrieved: another shard's may be awaited
        self._opened.clear()

    def close(self) -> None:
        """Cancel checkpoints that are being collected."""
        for task in self._tasks:
            self._loop.call_soon_threadsafe(task.cancel)

    def _part_broke(self, link: PlaneLink, body: pb.PartBroke) -> None:
        reason, opened = link.describe(body.reason), self._openings.get(body.opening, {}).get(link)
        job = next((job for job, each in self._opened.items() if each.opening == body.opening), None)
        if opened is not None and not opened.done():
            opened.set_exception(Failed(reason))
        elif job is not None:
            self._report(ev.OperationFailed(job, reason))
        else:
            log.info("%s; ignored, since the order was for tensors that were dropped or replaced", reason)

    # ---- checkpoints ----

    def snapshot(self, effect: ev.Snapshot, save: Save) -> None:
        """Have each plane copy the job's tensors, and put the copies together here."""
        opened = self._opened[effect.job]
        self._last_copy += 1
        copy = self._last_copy
        self._copies[copy] = {link: self._loop.create_future() for link in self._planes.links}
        self._planes.send_order(pb.CopyPart(job=effect.job, copy=copy))
        task = start_task(
            self._collect(effect, copy, opened, save), f"job {effect.job}: checkpoint of step {effect.step}"
        )
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _part_copied(self, link: PlaneLink, body: pb.CopiedPart) -> None:
        copied = self._copies.get(body.copy, {}).get(link)
        if copied is not None and not copied.done():
            copied.set_result(body)

    async def _collect(self, effect: ev.Snapshot, copy: int, opened: _OpenedTensors, save: Save) -> None:
        gathered = GatheredTensors(opened.elements, opened.state_dtypes)
        failed: ev.SaveFailed | None = None

        async def gather(link: PlaneLink, copied: asyncio.Future[pb.CopiedPart]) -> None:
            body = await link.wait_for(copied, f"copy {copy} of its tensors")
            if body.reason:
                raise Failed(link.describe(body.reason))
            await link.gather(body, gathered)

        try:
            if refusal := self._planes.check_ready():
                raise PlaneLost(refusal.reason)
            await gather_all(gather(*each) for each in self._copies[copy].items())
            gathered.finish()
            save(gathered.weights, gathered.state)
        except PlaneLost as error:
            log.info("job %s: the checkpoint of step %d is abandoned: %s", effect.job, effect.step, error)
            failed = ev.SaveFailed(effect.job, effect.generation, effect.step, str(error))
        except Exception as error:
            failed = to_save_failed(effect, error)
        finally:
            del self._copies[copy]
            self._planes.send_order(pb.DropCopy(job=effect.job, copy=copy))
        if failed is not None:
            self._report(failed)  # the next copy is ordered behind the end of this one


def to_operation_failed(job: str, error: Exception) -> ev.OperationFailed:
    """Return the core's input for an operation of a job that raised `error`."""
    return ev.OperationFailed(job, reason_of(error))


def to_save_failed(effect: ev.Snapshot, error: Exception) -> ev.SaveFailed:
    """Return the core's input for a snapshot whose copy or write raised `error`."""
    return ev.SaveFailed(effect.job, effect.generation, effect.step, reason_of(error), is_out_of_space(error))
