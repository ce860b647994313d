"""Steps of a job through real planes, in a random order of everything that may come in any order.

The aggregator's own router decides on what arrives; the planes add, stage, update and encode. What they make is
compared with plain numpy, bit by bit.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from aggregator.core.events import Outbox, PlaneOrder
from aggregator.core.sums.chunk_router import ChunkRouter
from aggregator.core.sums.plane_orders import send_version
from aggregator.core.sums.step_sum import Assignment, StepSum
from optimizer.schedules import clip_coefficient, gradient_norm
from plane.plane import Plane, PlaneOwner
from plane.update_rules import build_rule
from protos import plane_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, INITIAL_WEIGHTS, ChunkHeader
from services.config.job import JobConfig
from services.config.load import load_job
from services.protocol.plan import WireTypes
from services.protocol.versions import Version
from services.tensors.chunk_messages import TensorChunk, cut_piece, deserialize_chunk, pack_chunk
from services.tensors.kernels.arithmetic import Float32Array, norm_squared_blocks
from services.tensors.layout import CHUNK_ELEMENTS, Layout, chunk_range
from services.tensors.reduction_tree import Node, children
from services.tensors.stripes import Stripe
from tests.support.cluster.bits import sized_config, write_config

WORKER = 1
LIMIT_SECONDS = 20.0
ROOM_SECONDS = 2.0
ADAMW = {"type": "AdamW", "lr": 0.01}
WIRE = WireTypes(FLOAT32, FLOAT32)


class WrongResult(AssertionError):
    """A plane has not made what plain numpy makes."""


def require(holds: bool, text: str) -> None:
    """Fail unless a condition holds."""
    if not holds:
        raise WrongResult(text)


@dataclass
class Lease:
    """What a worker has yet to send of the sum of a node.

    Attributes:
        assignment: the node, and the id of its lease.
        unsent: pieces that were not sent, in a random order.
    """

    assignment: Assignment
    unsent: list[TensorChunk] = field(default_factory=list)


class WholeSteps:
    """A job of one seed: its planes, its router, and the tensors that it must have.

    Args:
        seed: seed of all choices.
        folder: folder for the job's config.
    """

    def __init__(self, seed: int, folder: Path) -> None:
        self.rng = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        planes = self.rng.choice([1, 1, 2, 3])
        elements = CHUNK_ELEMENTS * self.rng.randint(planes - 1, planes) + self.rng.randint(1, CHUNK_ELEMENTS)
        self.layout = Layout.build([("w", (elements,), True, "w", False)])
        self.micro_batches = self.rng.randint(1, 6)
        settings = {
            "gradient_accumulation_steps": self.micro_batches,
            "use_clip_grad_norm": True,
            "optimizer": ADAMW,
        }
        self.config: JobConfig = load_job(write_config(folder, sized_config(8, 4, **settings)), [])[0]
        self.outbox = Outbox()
        self.router = ChunkRouter("j", 1, WIRE, self.outbox)
        self.reports: list[tuple[int, Message]] = []
        self.failures: list[Exception] = []
        self.copies: list[dict[int, Any]] = [{} for _ in range(planes)]  # by plane and copy: arrays
        self.planes = [self._make_plane(index, planes) for index in range(planes)]
        self.waiting: list[list[Message]] = [[] for _ in range(planes)]
        self.weights = self.numbers.standard_normal(elements, np.float32)
        self.rule = build_rule(self.config.optimizer, self.layout)
        self.last_lease = self.last_copy = 0

    def _make_plane(self, index: int, count: int) -> Plane:
        owner = PlaneOwner(
            report=lambda body: self.reports.append((index, body)),
            fail=self.failures.append,
            read_layout=lambda order: self.layout,
            fill=lambda order, tensors: None,
            copied=lambda copy, arrays: self.copies[index].__setitem__(copy, arrays),
            drop_copy=lambda copy: None,
        )
        return Plane(
            owner,
            epoch=1,
            stripe=Stripe(index, count),
            incarnation="p",
            metrics=None,
            update_metrics=None,
            shared_memory=False,
        )

    def close(self) -> None:
        """Stop the planes' threads."""
        for plane in self.planes:
            plane.close("over")

    # ---- orders ----

    def order(self, *orders: PlaneOrder | Message) -> None:
        """Queue orders to the planes that they are for; some of the queues are handed over."""
        for order in orders:
            chunk = getattr(order, "chunk", None)
            for index, queue in enumerate(self.waiting):
                if chunk is None or chunk % len(self.planes) == index:
                    queue.append(order)
            if isinstance(order, pb.FinishSum):
                initial = order.header.kind == INITIAL_WEIGHTS
                self.order(pb.StageChunk(job="j", chunk=order.chunk, initial=initial))
        if self.rng.random() < 0.5:
            self.hand_over()

    def decide(self) -> None:
        """Give the planes what the router has decided."""
        self.order(*(each for each in self.outbox.take() if isinstance(each, PlaneOrder)))

    def hand_over(self) -> None:
        """Hand over all queued orders."""
        for plane, queue in zip(self.planes, self.waiting, strict=True):
            orders, queue[:] = list(queue), []
            plane.carry_out(orders)

    async def settle(self) -> None:
        """Hand over all orders, and wait until they are carried out and reported."""
        self.hand_over()
        for plane in self.planes:
            await plane._sums_thread.call(lambda: None)
            await plane._kernel.call(lambda: None)
        for _ in range(3):
            await asyncio.sleep(0)
        require(not self.failures, f"a plane failed: {self.failures}")

    def take_reports(self, kind: type[Message]) -> list[Any]:
        """Return the reports of a type since the last call."""
        found = [body for _, body in self.reports if isinstance(body, kind)]
        self.reports = [each for each in self.reports if not isinstance(each[1], kind)]
        return found

    # ---- arrivals ----

    def arrive(self, piece: TensorChunk) -> None:
        """Let a data stream bring a piece, and let the router keep or discard it."""
        plane = self.planes[piece.header.index % len(self.planes)]
        plane._piece_arrived(WORKER, piece)
        (arrived,) = self.take_reports(pb.ArrivedPiece)
        self.router.keep_piece(arrived.header, arrived.arrival)

    def pieces(self, header: ChunkHeader, values: Float32Array) -> list[TensorChunk]:
        """Return a model's values as chunks, some of them cut into pieces, in a random order."""
        found: list[TensorChunk] = []
        for chunk in range(self.layout.chunks):
            start, stop = chunk_range(self.layout.elements, chunk)
            whole = pack_chunk(header, chunk, values[start:stop].copy())
            cuts = sorted(
                {start, stop, *(self.rng.randint(start, stop) for _ in range(self.rng.choice([0, 0, 2])))}
            )
            found += [cut_piece(whole, a, b - a) for a, b in itertools.pairwise(cuts)]
        self.rng.shuffle(found)
        return found

    # ---- a job ----

    async def run(self, steps: int) -> None:
        """Open the job, store its initial weights, and take some steps."""
        self.order(pb.WorkerAttends(session=WORKER, incarnation="w", name="w"))
        self.order(pb.OpenPart(opening=1, job="j", spec_json=self.config.to_json()))
        await self.settle()
        require(
            len(self.take_reports(pb.PartOpened)) == len(self.planes), "not all planes have opened the job"
        )
        header = ChunkHeader(job="j", epoch=1, lease=99, generation=1, kind=INITIAL_WEIGHTS, dtype=FLOAT32)
        for piece in self.pieces(header, self.weights):
            self.arrive(piece)
            whole = self.router.take_whole(piece.header, self.layout.elements)
            if whole is not None:
                self.router.route_initial_weights(whole)
            self.decide()
        for step in range(steps):
            await self.take_step(step)
        await self.settle()
        for plane in self.planes:
            await asyncio.wait_for(plane.wait_for_room(), ROOM_SECONDS)  # the threads have nothing left to do
            require(not plane._sums._jobs, "sums are left after the last step")
            require(not plane._arrived, "arrived pieces are left after the last step")

    async def take_step(self, step: int) -> None:
        """Take one step: gradients in any order, its COMMIT, the update, a checkpoint's copy, and the new weights."""
        leaves = self.numbers.standard_normal((self.micro_batches, self.layout.elements), np.float32)
        step_sum = StepSum(Version(1, step), self.micro_batches, self.layout.chunks, 0.0)
        self._gather(step_sum, leaves)
        await self.settle()
        total = _tree_sum(leaves, Node(0, self.micro_batches))
        mean = total * np.float32(np.float32(1.0) / np.float32(self.micro_batches))
        norm = self._check_staged(mean)
        applied = self.rng.random() < 0.8
        rate, clip = self.rng.uniform(0.001, 0.1), clip_coefficient(norm, self.config.clip_grad_norm)
        beta1 = self.rng.choice([None, 0.5])
        copy = self._copy()  # before the update in the sequence of orders, so of the weights before it
        before = self.weights.copy()
        self.router.drop_all()
        self.decide()
        self.order(send_version("j", WORKER, Version(1, step + 1), None))
        update = pb.UpdatePart(job="j", epoch=1, generation=1, step=step, applied=applied, grad_norm=norm)
        update.learning_rate, update.clip = rate, clip
        if beta1 is not None:
            update.beta1 = beta1
        self.order(update)
        if applied:
            self.rule.begin(rate, clip, beta1=beta1)
            for chunk in range(self.layout.chunks):
                self.rule.update(self.weights, mean, *chunk_range(self.layout.elements, chunk))
        await self.settle()
        self._check_updated(step)
        self._check_copy(copy, before)
        await self._check_sent(step + 1)
        if self.rng.random() < 0.5:  # to an aggregator that has restarted
            for chunk in range(self.layout.chunks):
                if self.rng.random() < 0.5:
                    self.planes[chunk % len(self.planes)].newest.drop_message(chunk)
            there = [dict(plane.newest._stored) for plane in self.planes]
            self.order(pb.MakeWeights(job="j", epoch=1, generation=1, step=step + 1))
            self.order(send_version("j", WORKER, Version(1, step + 1), None))
            self.hand_over()
            for plane in self.planes:
                early = plane.next_weights(WORKER)
                require(early is None, f"{early} is to be sent, but may not be there")
            await self.settle()
            for plane, before_order in zip(self.planes, there, strict=True):
                kept = all(plane.newest._stored[each] is before_order[each] for each in before_order)
                require(kept, "weights are written again that workers may be reading")
            await self._check_sent(step + 1)

    def _gather(self, step_sum: StepSum, leaves: NDArray[np.float32]) -> None:
        """Let leases be granted, sent, repeated and revoked until the step's sum is complete."""
        leases: list[Lease] = []
        speeds = {worker: self.rng.uniform(1, 3) for worker in range(1, self.rng.randint(2, 4))}
        while not step_sum.coverage.complete:
            step_sum.distribute(speeds, 0.0)
            for each in step_sum.assignments:
                if not each.lease and each.session is not None:
                    leases.append(self._grant(step_sum, each, leaves))
            lease = self.rng.choice(leases)
            if self.rng.random() < 0.02:
                step_sum.release(lease.assignment, 0.0)
                self.router.drop_pieces(lease.unsent[0].header.lease)
                leases.remove(lease)
            else:
                piece = lease.unsent.pop() if self.rng.random() < 0.9 else self.rng.choice(lease.unsent)
                self._send(step_sum, lease, piece)
                if not lease.unsent:
                    leases.remove(lease)
            self.decide()

    def _grant(self, step_sum: StepSum, assignment: Assignment, leaves: NDArray[np.float32]) -> Lease:
        self.last_lease += 1
        step_sum.grant(assignment, self.last_lease, 0.0)
        header = ChunkHeader(
            job="j",
            epoch=1,
            lease=self.last_lease,
            generation=1,
            step=step_sum.version.step,
            kind=GRADIENT,
            dtype=FLOAT32,
        )
        return Lease(assignment, self.pieces(header, _tree_sum(leaves, assignment.node)))

    def _send(self, step_sum: StepSum, lease: Lease, piece: TensorChunk) -> None:
        self.arrive(piece)
        whole = self.router.take_whole(piece.header, self.layout.elements)
        if whole is not None:
            self.router.route_gradient(step_sum, lease.assignment, whole, self.layout.elements)

    def _check_staged(self, mean: Float32Array) -> float:
        """Check the block sums of a step's gradient, and return its norm."""
        staged = {
            each.chunk: np.array(each.block_sums, np.float64) for each in self.take_reports(pb.StagedChunk)
        }
        chunks = range(self.layout.chunks)
        require(sorted(staged) == list(chunks), f"chunks {sorted(staged)} are staged, expected {chunks}")
        expected = [norm_squared_blocks(mean[slice(*chunk_range(mean.size, each))]) for each in chunks]
        for chunk in chunks:
            require(np.array_equal(staged[chunk], expected[chunk]), f"other block sums of chunk {chunk}")
        return gradient_norm(np.concatenate(expected))

    def _check_updated(self, step: int) -> None:
        """Check that each plane has reported the update of each of its chunks."""
        counts = [0] * len(self.planes)
        for index, body in self.reports:
            if isinstance(body, pb.UpdatedPart):
                require(
                    body.step == step and body.chunks == counts[index] + 1, f"plane {index} reports {body}"
                )
                counts[index] = body.chunks
        self.take_reports(pb.UpdatedPart)
        expected = [
            Stripe(each, len(counts)).chunk_count(self.layout.elements) for each in range(len(counts))
        ]
        require(counts == expected, f"updates of {counts} chunks, expected {expected}")

    def _copy(self) -> int:
        self.last_copy += 1
        self.order(pb.CopyPart(job="j", copy=self.last_copy))
        return self.last_copy

    def _check_copy(self, copy: int, weights: Float32Array) -> None:
        """Check that the planes' copies have the weights of the moment of their order."""
        for plane, copies in zip(self.planes, self.copies, strict=True):
            found = copies.pop(copy)["weights"]
            expected = [weights[whole] for whole, _ in plane._stripe.ranges(self.layout.elements)]
            require(np.array_equal(found, np.concatenate(expected)), "other weights in the copy")

    async def _check_sent(self, step: int) -> None:
        """Check that a worker is sent all new weights, each chunk once."""
        sent: list[int] = []
        link: Any = SimpleNamespace(shares=False)  # a worker on another host
        for plane in self.planes:
            while (header := plane.next_weights(WORKER)) is not None:
                messages: list[Any] = []
                await plane.newest.send(link, [header], _appender(messages))
                require(len(messages) == 1, f"{len(messages)} messages for chunk {header.index}")
                chunk = deserialize_chunk(messages[0])
                require(
                    chunk.header.step == header.step == step,
                    f"weights of step {chunk.header.step}, not {step}",
                )
                expected = self.weights[slice(*chunk_range(self.layout.elements, header.index))]
                require(np.array_equal(chunk.values(), expected), f"other weights of chunk {header.index}")
                sent.append(header.index)
        require(sorted(sent) == list(range(self.layout.chunks)), f"chunks {sorted(sent)} are sent")


def _appender(messages: list[Any]) -> Callable[..., Any]:
    async def write(*parts: Any) -> None:
        messages.append(b"".join(parts))

    return write


def _tree_sum(leaves: NDArray[np.float32], node: Node) -> Float32Array:
    if node.is_leaf:
        return leaves[node.first]
    left, right = children(node)
    return np.add(_tree_sum(leaves, left), _tree_sum(leaves, right))


def run_seed(seed: int, folder: Path, steps: int = 2) -> None:
    """Run the job of a seed.

    Raises:
        WrongResult: a plane has made something else than plain numpy, or failed.
    """

    async def run() -> None:
        job = WholeSteps(seed, folder)
        try:
            await asyncio.wait_for(job.run(steps), LIMIT_SECONDS)
        finally:
            job.close()

    asyncio.run(run())
