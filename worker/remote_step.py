"""The training step of the job, which a compute process has: what it tells is checked, and arrays are shared memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from protos import compute_pb2 as pb
from services.corpora.token_file import TokenFileDamaged
from services.errors import Failed
from services.instrumentation import timeline
from services.pipeline.exchange import (
    EXACT_TYPES,
    AddLeaf,
    ArraySizes,
    ExactArray,
    FinishedPass,
    Float32Array,
    PassExchange,
    ReceivedKind,
    WrongArray,
)
from services.pipeline.schedule import Pass
from services.printable import FAILURE_CHARACTERS, printable
from services.tensors.layout import Layout
from worker.compute_process import Call, ComputeProcess, ComputeProcesses, MeshUnfit, RequestFailed
from worker.job_order import BuildWatch, JobOrder, PassWatch, SharedMemory, check_built

_PASSES = ("need_weights", "send_array", "take_array", "non_finite", "pass_ended", "memory_measured")
_KINDS: Mapping[str, ReceivedKind] = {
    "activation": "activation",
    "gradient": "gradient",
    "tied part": "tied part",
}
MAX_PHASES = 1 << 16
"""Number of phases of memory that a process may tell."""


class RemoteStep:
    """A job, or some stages of it, in a compute process.

    Building it asks the process to open the mesh and to build the job. `revive` builds it again in another process.

    Args:
        processes: gives it a compute process.
        order: what to build.
        build: called while it is built.
        passes: called while passes run.

    Attributes:
        layout: layout of the whole model's parameters.
        ranges: the part of the layout that each range here has, by its index, in order.
        all_ranges: number of ranges of the whole model.
        loaded: indices of the layout's entries that are loaded, in order.
        array_sizes: largest arrays that are exchanged with other ranges.
        activation_bytes: memory that forward passes kept on a chip in the newest lease, by stage; empty without stages.
        evaluation_batches: number of held-out batches.
        tokens_per_micro_batch: tokens (samples, for a regression) in one micro-batch.
        vocabulary: number of tokens that the model knows; 0 for a model without tokens.
        fingerprint: what the bits of gradients depend on.
        weights: [elements of the loaded entries] float32, which `load` puts on the mesh.

    Raises:
        MeshUnfit: the mesh can't be opened.
        TokenFileDamaged: a file of token ids has changed.
        RequestFailed: the job can't be built.
        ProcessLost: the process has ended, or told what can't be.
    """

    def __init__(
        self, processes: ComputeProcesses, order: JobOrder, build: BuildWatch, passes: PassWatch
    ) -> None:
        self._processes = processes
        self._order = order
        self._watch = build
        self._passes = passes
        self._pass_seconds = [0.0, 0.0]
        self.activation_bytes: dict[int, int] = {}
        self._is_clean = True
        self._process: ComputeProcess = processes.take()
        try:
            self._take(self._open())
            elements = [sum(self.layout.entries[each].size for each in self.loaded), self._places[-1][1]]
            sizes = self.array_sizes
            array_bytes = max(sizes.activation_elements, sizes.tied_elements) * sizes.dtype.itemsize
            self._memory = tuple(
                SharedMemory(each) for each in (4 * elements[0], 4 * elements[1], array_bytes)
            )
        except BaseException as error:
            self._end(f"its job can't be built: {error}")
            raise
        self.weights: Float32Array = self._memory[0].values[: 4 * elements[0]].view(np.float32)
        self._gradient: Float32Array = self._memory[1].values[: 4 * elements[1]].view(np.float32)
        self._array = self._memory[2].values
        self._share_memory()

    # ---- building ----

    @property
    def is_lost(self) -> bool:
        """Whether the process has ended."""
        return self._process.is_lost

    def revive(self) -> None:
        """Build the job in a new process, which has no weights yet; the memory that is shared stays.

        Raises:
            Failed: it can't be built, or is another one now.
        """
        before = (self.layout.hash, self.ranges, self.loaded, self.fingerprint, self.array_sizes)
        self._processes.note_lost(self._process)
        self._process = self._processes.take()
        self._take(self._open())
        if (self.layout.hash, self.ranges, self.loaded, self.fingerprint, self.array_sizes) != before:
            self._process.end("it has built another model than the process before")
            raise Failed(
                f"job {self._order.job}: its code or its files have changed since it was built here; submit it again"
            )
        self._share_memory()

    def close(self) -> None:
        """Free the weights; the process is kept if all went well, else it ends."""
        try:
            if self._is_clean and not self._process.is_lost:
                self._is_clean = False
                self._process.request(close_job=pb.CloseJob(keep_mesh=True))
                self._processes.keep(self._process)
            else:
                self._end("the job is over")
        except BaseException:
            self._end("its job did not close")
            raise
        finally:
            for each in self._memory:
                each.close()

    def _end(self, because: str) -> None:
        """Close the mesh, and end the process."""
        if self._process.is_lost:
            self._processes.note_lost(self._process)
        self._processes.end(self._process, because)

    def _share_memory(self) -> None:
        self._process.request([each.descriptor for each in self._memory], use_memory=pb.UseMemory())

    def _open(self) -> pb.JobBuilt:
        try:
            return self._open_in_process()
        except RequestFailed as error:
            if error.failed.kind != pb.Failed.OTHER_PROCESS:
                raise
        self._processes.end(self._process, "the next job needs another mesh")
        self._process = self._processes.take()
        return self._open_in_process()

    def _open_in_process(self) -> pb.JobBuilt:
        try:
            with self._process.call(open_job=self._order.to_message()) as call:
                while not (message := call.next(("mesh_opened", "file_read"))).HasField("job_built"):
                    if message.HasField("mesh_opened"):
                        self._process.mesh = message.mesh_opened
                        self._watch.mesh_opened(message.mesh_opened)
                    else:
                        read = message.file_read
                        self._watch.file_read(Path(read.path), read.read_bytes, read.size_bytes)
                        call.answer()
                return message.job_built
        except RequestFailed as error:
            raise self._translate(error) from None

    def _take(self, built: pb.JobBuilt) -> None:
        """Take what was built, if it can be."""
        try:
            layout = Layout.loads(built.layout_json)
            ranges = {each.index: slice(each.start, each.stop) for each in built.ranges}
            check_built(built, layout, ranges)
        except ValueError as error:
            raise self._process.refuse(f"JobBuilt: {error}") from None
        self.layout, self.ranges, self.all_ranges = layout, ranges, built.all_ranges
        self.loaded = tuple(built.loaded)
        self.array_sizes = ArraySizes(
            np.dtype(EXACT_TYPES.get(built.element_bytes, np.float32)),
            built.activation_elements,
            built.tied_elements,
        )
        self.evaluation_batches = built.evaluation_batches
        self.tokens_per_micro_batch = built.tokens_per_micro_batch
        self.vocabulary = built.vocabulary
        self.fingerprint = dict(built.fingerprint)
        sizes = (each.stop - each.start for each in ranges.values())
        self._places = list(pairwise(accumulate(sizes, initial=0)))  # of ranges in the gradient memory

    # ---- weights ----

    def load(self, entries: int, *, is_new: bool) -> None:
        """Put the first entries of `loaded` on the mesh that are not there yet. Their values are in `weights`.

        Args:
            entries: number of entries.
            is_new: whether they are of another version than those before.
        """
        order = pb.LoadWeights(entries=entries, is_new=is_new)
        self._process.request(load_weights=order)

    def initial_weights(self) -> Float32Array:
        """Return the weights that training starts from, flat, one range after another."""
        self._request(make_weights=pb.MakeWeights())
        return self._gradient.copy()

    def checkpoint_files(self) -> dict[str, bytes]:
        """Return the files of a checkpoint that describe the model."""
        return dict(self._request(describe_model=pb.DescribeModel()).model_described.files)

    def _request(self, **body: Any) -> pb.FromProcess:
        try:
            return self._process.request(**body)
        except RequestFailed as error:
            raise self._translate(error) from None

    # ---- passes ----

    def micro_batches(
        self, step: int, first: int, count: int, add_leaf: AddLeaf, exchange: PassExchange
    ) -> list[float]:
        """Give `add_leaf` the gradients of micro-batches, range by range, and return the mean losses.

        A step with one range is asked for one micro-batch at a time.
        """
        order = pb.ComputeGradients(step=step, first=first, count=count)
        due = dict.fromkeys(self.ranges, first)  # the next micro-batch of each range
        losses: list[float] = []
        try:
            with self._process.call(compute_gradients=order) as call:
                while True:
                    message = self._next(call, exchange, "begin_gradient")
                    if call.has_ended:
                        break
                    begun = message.begin_gradient
                    if due.get(begun.range) != begun.micro_batch:
                        raise call.refuse(
                            f"BeginGradient of range {begun.range}, micro-batch {begun.micro_batch}"
                        )
                    due[begun.range] += 1
                    place = list(self.ranges).index(begun.range)

                    def compute(
                        out: Float32Array, ready: Callable[[int], None], place: int = place
                    ) -> FinishedPass:
                        call.answer()
                        return self._read_gradient(call, exchange, self._places[place], out, ready)

                    finished = add_leaf(begun.range, begun.micro_batch, compute)
                    losses += [] if finished.loss is None else [finished.loss]
                if any(each != first + count for each in due.values()):
                    raise call.refuse("the end of ComputeGradients without all gradients")
                kept = message.gradients_computed.activation_bytes
                self.activation_bytes = {each: kept[each] for each in kept if each < self.all_ranges}
                return losses
        except RequestFailed as error:
            raise self._translate(error) from None

    def evaluate(self, index: int, exchange: PassExchange) -> tuple[float, int] | None:
        """Return the sum of the losses of one held-out batch, and its number of rows; None without the last range."""
        try:
            with self._process.call(evaluate_batch=pb.EvaluateBatch(index=index)) as call:
                found = self._next(call, exchange).batch_evaluated
                return (found.loss, found.rows) if found.HasField("loss") else None
        except RequestFailed as error:
            raise self._translate(error) from None

    def take_pass_seconds(self) -> tuple[float, float]:
        """Return the time of forward and of backward passes since the last call."""
        forward, backward = self._pass_seconds
        self._pass_seconds = [0.0, 0.0]
        return forward, backward

    def _read_gradient(
        self,
        call: Call,
        exchange: PassExchange,
        place: tuple[int, int],
        out: Float32Array,
        ready: Callable[[int], None],
    ) -> FinishedPass:
        """Copy a range's gradient out of the shared memory as it becomes ready."""
        values = self._gradient[place[0] : place[1]]
        complete = values.size
        while True:
            message = self._next(call, exchange, "gradient_ready", "gradient_done")
            if message.HasField("gradient_ready"):
                offset = message.gradient_ready.offset
                if offset >= complete:
                    raise call.refuse(f"GradientReady from {offset} on, expected less than {complete}")
                out[offset:complete] = values[offset:complete]
                complete = offset
                ready(offset)
                continue
            if call.has_ended or complete:
                raise call.refuse(f"a gradient's end with {complete} elements missing")
            done = message.gradient_done
            loss = done.loss if done.HasField("loss") else None
            name = printable(done.non_finite, FAILURE_CHARACTERS)
            if loss is not None and math.isnan(loss) and not name:
                raise call.refuse("a loss of NaN with a finite gradient")
            return FinishedPass(None, None, loss, done.count, name)

    def _next(self, call: Call, exchange: PassExchange, *expected: str) -> pb.FromProcess:
        """Return the next message of some kinds or the result. All else that passes say and ask is seen to here."""
        while True:
            message = call.next((*_PASSES, *expected))
            match message.WhichOneof("body"):
                case "need_weights":
                    entry = message.need_weights.entry
                    if entry not in self.loaded:
                        raise call.refuse(f"NeedWeights of entry {entry}, which is not loaded here")
                    self._passes.fetch(entry)
                    call.answer()
                case "send_array":
                    self._send(call, message.send_array, exchange)
                case "take_array":
                    self._hand_over(call, message.take_array.to, exchange)
                case "non_finite":
                    found = message.non_finite
                    self._passes.non_finite(found.micro_batch, printable(found.parameter, FAILURE_CHARACTERS))
                case "pass_ended":
                    self._note_pass(message.pass_ended)
                case "memory_measured":
                    if len(message.memory_measured.phases) > MAX_PHASES:
                        raise call.refuse(f"MemoryMeasured of {len(message.memory_measured.phases)} phases")
                    self._passes.memory_measured(message.memory_measured)
                case _:
                    return message

    def _note_pass(self, ended: pb.PassEnded) -> None:
        began, ended_seconds = ended.began_seconds, ended.ended_seconds
        self._pass_seconds[ended.is_backward] += max(0.0, ended_seconds - began)
        facts: dict[str, Any] = (
            {"range": ended.range, "micro_batch": ended.micro_batch} if ended.HasField("range") else {}
        )
        if ended.is_backward:
            timeline.add("device", "backward", began, ended_seconds=ended_seconds, **facts)
        else:
            timeline.add("device", "forward", began, ended_seconds=ended_seconds, **facts)

    # ---- arrays of other ranges ----

    def _send(self, call: Call, sent: pb.SendArray, exchange: PassExchange) -> None:
        dtype: np.dtype[Any] = np.dtype(EXACT_TYPES.get(sent.element_bytes, np.float32))
        size = math.prod(sent.shape) * dtype.itemsize
        if size > self._array.size or len(sent.shape) > 8:
            raise call.refuse(
                f"SendArray of {list(sent.shape)[:8]}, expected at most {self._array.size} bytes"
            )
        array: ExactArray = self._array[:size].view(dtype).reshape(tuple(sent.shape)).copy()
        if sent.to.is_tied:
            exchange.send_tied(sent.to.micro_batch, array)
        else:
            exchange.send(_pass(sent.to), array)
        call.answer()

    def _hand_over(self, call: Call, place: pb.Place, exchange: PassExchange) -> None:
        tied = place.is_tied
        array = exchange.receive_tied(place.micro_batch) if tied else exchange.receive(_pass(place))
        if array.nbytes > self._array.size:
            kind: ReceivedKind = "tied part" if tied else "gradient" if place.is_backward else "activation"
            raise WrongArray(kind, f"{kind} of {array.nbytes} bytes, expected at most {self._array.size}")
        self._array[: array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
        call.answer(pb.Answer(shape=array.shape, element_bytes=array.dtype.itemsize))

    def _translate(self, error: RequestFailed) -> Exception:
        """Return the error that a failure in the compute process stands for."""
        failed, reason = error.failed, str(error)
        if failed.kind == pb.Failed.OTHER_PROCESS:
            return error
        self._is_clean = False
        if failed.kind == pb.Failed.UNFIT:
            return MeshUnfit(reason)
        if failed.kind == pb.Failed.DAMAGED_FILE:
            return TokenFileDamaged(reason, Path(failed.path), failed.inode)
        if failed.kind == pb.Failed.WRONG_ARRAY and failed.array_kind in _KINDS:
            return WrongArray(_KINDS[failed.array_kind], reason)
        return error


def _pass(place: pb.Place) -> Pass:
    return Pass(place.is_backward, place.range, place.micro_batch)
