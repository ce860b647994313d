"""Steps of one or two jobs through the same real planes, in a random order of everything that may come in any order.

A router of the aggregator for each job decides on what arrives; the planes add, stage, update and encode. What they
make of each job is compared with plain numpy, bit by bit. So it does not depend on the other job either.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
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
from plane.update_rules import UpdateRule, build_rule
from plane.waiting_payloads import MAX_WAITING_CHUNKS
from protos import plane_pb2 as pb
from protos.tensors_pb2 import FLOAT32, GRADIENT, INITIAL_WEIGHTS, WEIGHTS, ChunkHeader, ChunkKind
from services.config.job import JobConfig
from services.config.load import load_job
from services.protocol.versions import Version
from services.tensors.chunk_messages import TensorChunk, cut_piece, deserialize_chunk, pack_chunk
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import CHUNK_ELEMENTS, Layout, chunk_range
from services.tensors.layout_parts import read_piece
from services.tensors.reduction_tree import Node, children
from services.tensors.stripes import Stripe
from tests.plane.driven_planes import DrivenPlanes, require
from tests.support.block_sums import norm_squared_blocks
from tests.support.cluster.bits import sized_config, write_config

ROOM_SECONDS = 5.0
MOST_TURNS = 2000
"""Turns of the event loop in which a job waits for another one's update."""
ADAMW = {"type": "AdamW", "lr": 0.01}
GENERATION = 1


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
    """A job of one seed: its router, and the tensors that it must have.

    Args:
        job: id of the job.
        seed: seed of all choices.
        planes: the planes, which other jobs may have, too.
        worker: session of its worker.
        folder: folder for the job's config.
    """

    def __init__(self, job: str, seed: int, planes: DrivenPlanes, worker: int, folder: Path) -> None:
        self.job = job
        self.planes = planes
        self.worker = worker
        self.rng = random.Random(f"{seed} {job}")
        self.numbers = np.random.default_rng([seed, worker])
        self.others: list[WholeSteps] = []
        count = len(planes.planes)
        elements = CHUNK_ELEMENTS * self.rng.randint(count - 1, count) + self.rng.randint(1, CHUNK_ELEMENTS)
        self.layout = planes.layouts[job] = Layout.build([("w", (elements,), True, "w", False)])
        self.micro_batches = self.rng.randint(1, 6)
        settings = {
            "project_name": job,
            "gradient_accumulation_steps": self.micro_batches,
            "use_clip_grad_norm": True,
            "optimizer": ADAMW,
            "wire_dtype": self.rng.choice(["float32", "bfloat16"]),
        }
        self.config: JobConfig = load_job(write_config(folder, sized_config(8, 4, **settings)), [])[0]
        self.wire = self.config.plan().wire
        self.outbox = Outbox()
        self.router: ChunkRouter
        self.weights: Float32Array
        self.rule: UpdateRule
        self.unstaged: list[pb.StageChunks] = []
        self.last_lease = 0

    # ---- orders ----

    def order(self, *orders: PlaneOrder | Message) -> None:
        """Queue orders to the planes that they are for; some of the queues are handed over."""
        if self.rng.random() < 0.5:
            self.stage_finished()
        for order in orders:
            self.planes.order([order])
            if isinstance(order, pb.FinishSum):
                initial = order.header.kind == INITIAL_WEIGHTS
                self.unstaged.append(pb.StageChunks(job=self.job, chunks=order.chunks, initial=initial))
        if self.rng.random() < 0.5:
            self.planes.hand_over()

    def stage_finished(self) -> None:
        """Queue the orders to stage sums that are finished, as the optimizer's core gives them."""
        self.planes.order(self.unstaged)
        self.unstaged.clear()

    def decide(self) -> None:
        """Give the planes what the router has decided."""
        self.order(*(each for each in self.outbox.take() if isinstance(each, PlaneOrder)))

    async def settle(self) -> None:
        """Hand over all orders, and wait until the job's are carried out and reported."""
        self.stage_finished()
        await self.planes.settle(self.job)

    async def pause(self) -> None:
        """Let another job go on, or not."""
        if self.rng.random() < 0.5:
            await asyncio.sleep(0)

    def take_reports(self, kind: type[Message]) -> list[Any]:
        """Return the job's reports of a type since the last call."""
        return [body for _, body in self.planes.take_reports(self.job, kind)]

    # ---- arrivals ----

    def arrive(self, pieces: Sequence[TensorChunk]) -> Iterator[tuple[ChunkHeader, list[int]]]:
        """Let data streams bring pieces of a lease, and let the router keep or discard them.

        Yields:
            For each plane, the header of a piece and the chunks that are whole.
        """
        for arrived in self.planes.arrive(self.worker, pieces):
            run = [read_piece(each) for each in arrived.pieces]
            self.router.keep_pieces(arrived.header, run, arrived.arrival)
            chunks = list(dict.fromkeys(piece.chunk for piece in run))
            whole = self.router.take_whole(arrived.header.lease, chunks, self.layout.elements)
            if whole:
                yield arrived.header, whole

    def take_some(self, pieces: list[TensorChunk]) -> list[TensorChunk]:
        """Remove from 1 to 4 pieces, or all that are left, and return them."""
        count = min(self.rng.randint(1, 4), len(pieces))
        taken, pieces[:] = pieces[:count], pieces[count:]
        return taken

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
        """Open the job, store its initial weights, take some steps, and drop it."""
        self.router = ChunkRouter(self.job, 1, self.wire, self.outbox)
        self.weights = self.numbers.standard_normal(self.layout.elements, np.float32)
        self.rule = build_rule(self.config.optimizer, self.layout)
        opening, spec = self.planes.draw_number(), self.config.to_json()
        self.order(pb.WorkerAttends(session=self.worker, incarnation=f"w{self.worker}", name="w"))
        self.order(pb.OpenPart(opening=opening, job=self.job, spec_json=spec))
        await self.settle()
        opened = [each.opening for each in self.take_reports(pb.PartOpened)]
        require(opened == [opening] * len(self.planes.planes), f"openings {opened} of job {self.job}")
        await self._send_initial_weights()
        self.stage_finished()
        for step in range(steps):
            await self.take_step(step)
        await self.settle()
        for plane in self.planes.planes:
            # The threads have nothing left to do.
            await asyncio.wait_for(plane.wait_for_room(self.job, self.worker), ROOM_SECONDS)
            waiting = plane._waiting._pieces[self.worker]._waiting
            require(not waiting, f"{waiting} elements count as waiting after the last step")
            require(self.job not in plane._sums._jobs, "sums are left after the last step")
            left = [each for each in plane._waiting._arrived.values() if each.piece.header.job == self.job]
            require(not left, "arrived pieces are left after the last step")
        self.order(pb.DropPart(job=self.job))
        await self.settle()
        for plane in self.planes.planes:
            kept = [*plane.jobs, *plane._tensors._tensors, *plane.newest._jobs]
            require(self.job not in kept, "the job is dropped, but something of it is kept")

    async def _send_initial_weights(self) -> None:
        header = self._header(INITIAL_WEIGHTS, lease=99)
        pieces = self.pieces(header, self.weights)
        while pieces:
            for first, chunks in self.arrive(self.take_some(pieces)):
                self.router.route_initial_weights(first, chunks, self.layout.elements)
            self.decide()
            await self.pause()

    def _header(self, kind: ChunkKind, *, lease: int = 0, step: int = 0) -> ChunkHeader:
        """Return what the headers of the job's chunks share."""
        dtype = self.wire.dtype_of(kind)
        return ChunkHeader(
            job=self.job, epoch=1, lease=lease, generation=GENERATION, step=step, kind=kind, dtype=dtype
        )

    async def fill_room(self) -> None:
        """Let as many pieces wait as may; other jobs must have room all the same."""
        plane, one = self.planes.planes[0], np.ones(CHUNK_ELEMENTS, np.float32)
        chunks = [pack_chunk(self._header(GRADIENT), 0, one) for _ in range(MAX_WAITING_CHUNKS)]
        (arrived,) = self.planes.arrive(self.worker, chunks)
        for other in self.others:
            await asyncio.wait_for(plane.wait_for_room(other.job, other.worker), ROOM_SECONDS)
        arrivals = range(arrived.arrival, arrived.arrival + len(arrived.pieces))
        self.order(pb.DiscardPieces(job=self.job, arrivals=arrivals))

    async def take_step(self, step: int) -> None:
        """Take one step: gradients in any order, its COMMIT, the update, a checkpoint's copy, and the new weights."""
        if self.worker == 1 and self.rng.random() < 0.3:  # one of the jobs: two would wait for each other
            await self.fill_room()
        leaves = self._draw_leaves()
        step_sum = StepSum(Version(GENERATION, step), self.micro_batches, self.layout.chunks, 0.0)
        await self._gather(step_sum, leaves)
        if self.rng.random() < 0.5:
            await self._wait_for_another_update()
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
        self.order(send_version(self.job, self.worker, Version(GENERATION, step + 1), None))
        update = pb.UpdatePart(
            job=self.job, epoch=1, generation=GENERATION, step=step, applied=applied, grad_norm=norm
        )
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
            await self._make_weights_again(step + 1)

    async def _wait_for_another_update(self) -> None:
        """Stage what is finished behind the next update of another job, unless that takes too long."""
        self.planes.hand_over()
        before = self.planes.updates
        for _ in range(MOST_TURNS):
            if self.planes.updates > before:
                return
            await asyncio.sleep(0)

    def _draw_leaves(self) -> NDArray[np.float32]:
        """Return the gradients of all micro-batches; their sums are exact in the wire type."""
        shape = self.micro_batches, self.layout.elements
        if self.wire.gradients == FLOAT32:
            return self.numbers.standard_normal(shape, np.float32)
        return self.numbers.integers(-8, 9, shape).astype(np.float32)

    async def _make_weights_again(self, step: int) -> None:
        planes = self.planes.planes
        for chunk in range(self.layout.chunks):
            if self.rng.random() < 0.5:
                self.planes.of_chunk(chunk).newest.drop_message(ChunkHeader(job=self.job, index=chunk))
        there = [dict(plane.newest._jobs[self.job].stored) for plane in planes]
        self.order(pb.MakeWeights(job=self.job, epoch=1, generation=GENERATION, step=step))
        self.order(send_version(self.job, self.worker, Version(GENERATION, step), None))
        self.planes.hand_over()
        for plane in planes:
            early = plane.next_weights(self.worker)
            require(early is None, f"{early} is to be sent, but may not be there")
        await self.settle()
        for plane, before_order in zip(planes, there, strict=True):
            stored = plane.newest._jobs[self.job].stored
            kept = all(stored[each] is before_order[each] for each in before_order)
            require(kept, "weights are written again that workers may be reading")
        await self._check_sent(step)

    async def _gather(self, step_sum: StepSum, leaves: NDArray[np.float32]) -> None:
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
                again = self.rng.random() < 0.1
                pieces = [self.rng.choice(lease.unsent)] if again else self.take_some(lease.unsent)
                self._send(step_sum, lease, pieces)
                if not lease.unsent:
                    leases.remove(lease)
            self.decide()
            await self.pause()

    def _grant(self, step_sum: StepSum, assignment: Assignment, leaves: NDArray[np.float32]) -> Lease:
        self.last_lease += 1
        step_sum.grant(assignment, self.last_lease, 0.0)
        header = self._header(GRADIENT, lease=self.last_lease, step=step_sum.version.step)
        return Lease(assignment, self.pieces(header, _tree_sum(leaves, assignment.node)))

    def _send(self, step_sum: StepSum, lease: Lease, pieces: Sequence[TensorChunk]) -> None:
        for _, chunks in self.arrive(pieces):
            self.router.route_gradient(step_sum, lease.assignment, chunks, self.layout.elements)

    def _check_staged(self, mean: Float32Array) -> float:
        """Check the block sums of a step's gradient, and return its norm."""
        staged = {
            each.chunk: np.array(each.block_sums, np.float64)
            for report in self.take_reports(pb.StagedChunks)
            for each in report.chunks
        }
        chunks = range(self.layout.chunks)
        require(sorted(staged) == list(chunks), f"chunks {sorted(staged)} are staged, expected {chunks}")
        expected = [norm_squared_blocks(mean[slice(*chunk_range(mean.size, each))]) for each in chunks]
        for chunk in chunks:
            require(np.array_equal(staged[chunk], expected[chunk]), f"other block sums of chunk {chunk}")
        return gradient_norm(np.concatenate(expected))

    def _check_updated(self, step: int) -> None:
        """Check that each plane has reported the update of each of its chunks."""
        counts = [0] * len(self.planes.planes)
        for index, body in self.planes.take_reports(self.job, pb.UpdatedPart):
            require(body.step == step and body.chunks > counts[index], f"plane {index} reports {body}")
            counts[index] = body.chunks
        expected = [
            Stripe(each, len(counts)).chunk_count(self.layout.elements) for each in range(len(counts))
        ]
        require(counts == expected, f"updates of {counts} chunks, expected {expected}")

    def _copy(self) -> int:
        copy = self.planes.draw_number()
        self.order(pb.CopyPart(job=self.job, copy=copy))
        return copy

    def _check_copy(self, copy: int, weights: Float32Array) -> None:
        """Check that the planes' copies have the weights of the moment of their order."""
        for index, plane in enumerate(self.planes.planes):
            found = self.planes.copies.pop((index, self.job, copy))["weights"]
            expected = [weights[whole] for whole, _ in plane._stripe.ranges(self.layout.elements)]
            require(np.array_equal(found, np.concatenate(expected)), "other weights in the copy")

    async def _check_sent(self, step: int) -> None:
        """Check that a worker is sent all new weights, each chunk once."""
        sent: list[int] = []
        link: Any = SimpleNamespace(shares=False)  # a worker on another host
        for plane in self.planes.planes:
            while (header := plane.next_weights(self.worker)) is not None:
                messages: list[Any] = []
                await plane.newest.send(link, [header], _appender(messages))
                require(len(messages) == 1, f"{len(messages)} messages for chunk {header.index}")
                chunk = deserialize_chunk(messages[0])
                found = (chunk.header.job, chunk.header.step, header.step)
                require(
                    found == (self.job, step, step), f"weights of {found}, not of step {step} of {self.job}"
                )
                values = self.weights[slice(*chunk_range(self.layout.elements, header.index))]
                expected = pack_chunk(self._header(WEIGHTS), header.index, values).values()
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
