"""Links to planes: what every link does, and the link to a plane in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol, TypeVar

from google.protobuf.message import Message

from plane.checkpoint_files import GatheredTensors
from plane.master_tensors import MasterTensors
from plane.plane import Plane, PlaneOwner
from plane.plane_tensors import Arrays
from protos import plane_pb2 as pb
from protos.files_pb2 import FileRef
from protos.tensors_pb2 import ChunkHeader
from services.checkpoints.format import Checkpoint
from services.errors import Failed, Refused
from services.files.memory_file import MemoryFile
from services.tensors.chunk_messages import Message as ChunkMessage
from services.tensors.chunk_messages import TensorChunk
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout
from services.tensors.stripes import Stripe

Result = TypeVar("Result")


class CheckpointPart(NamedTuple):
    """A plane's part of a checkpoint.

    Attributes:
        ref: reference of its file, for OpenPart.
        file: the file.
    """

    ref: FileRef
    file: MemoryFile


class PlaneLinks(Protocol):
    """What a link calls, on the event loop: the group that it is in."""

    def link_up(self, link: PlaneLink) -> None:
        """Note that a link has come up."""

    def link_down(self, link: PlaneLink, reason: str) -> None:
        """Note that a link which was up has gone down."""

    def report_waiting(self) -> None:
        """Note that an attempt to connect failed for another reason than the one before."""

    def take_report(self, link: PlaneLink, body: Message) -> None:
        """Take a report."""


class PlaneLink(Protocol):
    """A link to one plane.

    Attributes:
        stripe: chunks of the plane.
        down_reason: reason why the link is down; empty while it is up.
        local: the plane, if it is in this process.
    """

    stripe: Stripe
    down_reason: str
    local: Plane | None

    @property
    def is_up(self) -> bool:
        """Whether orders reach the plane."""

    def describe(self, reason: str) -> str:
        """Return what a plane says, with its name if there are several."""

    def join(self, links: PlaneLinks) -> None:
        """Take the group that this link is in, before anything else."""

    async def run(self) -> None:
        """Keep the link up until cancelled."""

    def beat(self) -> None:
        """Send a heartbeat, and end the link of a plane that has been silent for too long."""

    def send_order(self, body: Message) -> None:
        """Queue an order; drop it while the link is down, since the plane has no tensors then."""

    def close(self, reason: str) -> None:
        """End the connection; `run` opens another one."""

    async def wait_for(self, awaited: Awaitable[Result], what: str) -> Result:
        """Wait for the plane's work on its tensors, at most as long as the `stall` timeout of another process.

        Raises:
            PlaneLost: the time is over; the link ends too.
        """

    def expect(self, job: str, what: str, is_pending: Callable[[], bool]) -> None:
        """End the link to another process if its work for a job's step is still pending after the `stall` timeout."""

    async def prepare(
        self, job: str, layout: Layout, text: bytes, checkpoint: Checkpoint | None
    ) -> CheckpointPart | None:
        """Give the plane the layout that a job's next OpenPart refers to, and the checkpoint that it begins with.

        Args:
            job: id of the job.
            layout: layout of the whole model.
            text: the layout's file.
            checkpoint: checkpoint that the job continues from; None for zeros.

        Returns:
            The plane's part of the checkpoint, for OpenPart; None if there is no checkpoint, or the plane is here.

        Raises:
            Refused: the plane does not accept the layout.
            Failed: it arrives damaged again and again.
            PlaneLost: the link went down.
        """

    async def restore(self, job: str, part: CheckpointPart | None) -> None:
        """Send the plane what `prepare` has returned, once it has opened the job (Refused, Failed, PlaneLost)."""

    async def gather(self, copied: pb.CopiedPart, into: GatheredTensors) -> None:
        """Add the plane's part of a copy, which it has reported.

        Raises:
            Refused: the plane has it no longer, or it does not fit.
            Failed: it arrives damaged again and again.
            PlaneLost: the link went down.
        """


class _Prepared(NamedTuple):
    """What a job's next OpenPart begins with."""

    layout: Layout
    checkpoint: Checkpoint | None


class LocalPlane:
    """A `PlaneLink` to a plane in this process, which is always up and has all chunks.

    Orders are handed over once in a turn of the event loop, so that the kernel thread gets many at once.

    Args:
        make_plane: makes the plane for its owner.
        on_failure: called with an unexpected error of the plane; it ends the process.
        send_sum, wait_to_send: see `PlaneOwner`.
    """

    def __init__(
        self,
        make_plane: Callable[[PlaneOwner], Plane],
        on_failure: Callable[[Exception], None],
        *,
        send_sum: Callable[[ChunkHeader, Float32Array], None] | None = None,
        wait_to_send: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self.stripe = Stripe(0, 1)
        self.down_reason = ""
        owner = PlaneOwner(
            report=self._report,
            fail=on_failure,
            read_layout=lambda order: self._to_open[order.opening].layout,
            fill=self._fill,
            copied=self._copied,
            drop_copy=self._drop_copy,
            send_sum=send_sum,
            wait_to_send=wait_to_send,
        )
        self.local: Plane | None = make_plane(owner)
        self._plane = self.local
        self._prepared: dict[str, _Prepared] = {}  # by job, until its OpenPart is sent
        self._to_open: dict[int, _Prepared] = {}  # by opening, until its tensors are filled
        self._copies: dict[str, tuple[int, Arrays]] = {}  # newest of each job, with its number
        self._loop = asyncio.get_running_loop()
        self._orders: list[Message] = []
        self._links: PlaneLinks

    def __str__(self) -> str:
        return "the plane in this process"

    def describe(self, reason: str) -> str:
        """Return the reason: there is one plane."""
        return reason

    @property
    def is_up(self) -> bool:
        """Return True."""
        return True

    def join(self, links: PlaneLinks) -> None:
        """Take the group that this link is in."""
        self._links = links

    async def run(self) -> None:
        """Wait until cancelled."""
        await asyncio.Event().wait()

    def beat(self) -> None:
        """Do nothing: what ends this process ends its plane."""

    def send_order(self, body: Message) -> None:
        """Queue an order for the next turn of the event loop."""
        if isinstance(body, pb.OpenPart):  # now: an earlier DropPart of the job may not be carried out yet
            self._to_open[body.opening] = self._prepared.pop(body.job)
        elif isinstance(body, pb.DropPart):
            self._prepared.pop(body.job, None)
        if not self._orders:
            self._loop.call_soon(self._hand_over)
        self._orders.append(body)

    def _hand_over(self) -> None:
        orders, self._orders = self._orders, []
        self._plane.carry_out(orders)

    def put_weights(self, chunk: TensorChunk, message: ChunkMessage | None, elements: int) -> None:
        """Give the plane a chunk of weights from an optimizer's process, behind all orders; see `Plane.put_weights`."""
        self._hand_over()
        self._plane.put_weights(chunk, message, elements)

    def _report(self, body: Message) -> None:
        if isinstance(body, pb.PartBroke):
            self._to_open.pop(body.opening, None)
        self._links.take_report(self, body)

    def close(self, reason: str) -> None:
        """Fail: a plane in this process reports nothing that it must be closed for."""
        raise Failed(reason)

    async def wait_for(self, awaited: Awaitable[Result], what: str) -> Result:
        """Wait without a limit."""
        return await awaited

    def expect(self, job: str, what: str, is_pending: Callable[[], bool]) -> None:
        """Do nothing: a thread of this process that hangs can't be replaced."""

    async def prepare(self, job: str, layout: Layout, text: bytes, checkpoint: Checkpoint | None) -> None:
        """Keep layout and checkpoint for the job's next OpenPart."""
        self._prepared[job] = _Prepared(layout, checkpoint)

    def _fill(self, order: pb.OpenPart, tensors: MasterTensors) -> None:
        """Copy the checkpoint's arrays into the tensors."""
        checkpoint = self._to_open.pop(order.opening).checkpoint
        if checkpoint is not None:
            tensors.restore(checkpoint.weights, checkpoint.optimizer_state)

    async def restore(self, job: str, part: CheckpointPart | None) -> None:
        """Do nothing: the plane has taken the checkpoint as it opened the job."""

    def _copied(self, order: pb.CopyPart, arrays: Arrays) -> None:
        self._copies[order.job] = order.copy, arrays
        self._report(pb.CopiedPart(job=order.job, copy=order.copy))

    def _drop_copy(self, order: pb.DropCopy) -> None:
        if self._copies.get(order.job, (0, {}))[0] == order.copy:
            del self._copies[order.job]

    async def gather(self, copied: pb.CopiedPart, into: GatheredTensors) -> None:
        """Give the copy itself (Refused)."""
        copy, arrays = self._copies.get(copied.job, (0, {}))
        if copy != copied.copy:
            raise Refused(f"copy {copied.copy} of the tensors of job {copied.job}: dropped for copy {copy}")
        into.adopt(arrays)
