"""Carries out a daemon's requests: one thread, one request after another, on one mesh."""

from __future__ import annotations

import mmap
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from compute.chip_memory import ChipMemoryShort
from compute.job_on_mesh import JobOnMesh, JobSettings, OpenMesh, choose_mesh
from compute.mesh_check import check_mesh
from compute.step_interface import StepFactory
from mesh.device import Mesh, open_mesh
from mesh.fingerprint import find_board_type
from mesh.ttnn_errors import explain_known_error, is_memory_full
from protos import compute_pb2 as pb
from services.config.models import find_own_module
from services.corpora.reading_progress import watch_reading
from services.corpora.token_file import TokenFileDamaged
from services.errors import Failed, TiermeshError, describe_internal_error
from services.pipeline.exchange import (
    EXACT_TYPES,
    Compute,
    ExactArray,
    FinishedPass,
    Float32Array,
    WrongArray,
)
from services.pipeline.schedule import Pass
from services.pipeline.split import StageRun
from services.runtime.compute_channel import (
    MEMORIES,
    PROTOCOL_VERSION,
    ChannelEnded,
    ProcessChannel,
    close_all,
)
from services.tensors.layout import Entry
from training.step import TrainingStep

Bytes = npt.NDArray[np.uint8]


class Abandoned(BaseException):
    """The daemon does not want the request any longer. No code of a model catches it by accident."""


class Stopped(BaseException):
    """The process is asked to end, by a signal amid anything. It alone passes through what catches all of a job."""


class Unfit(Failed):
    """The mesh can't be opened, which may change."""


class OtherProcess(Failed):
    """A job needs a process of its own."""


@dataclass(frozen=True)
class _OpenMesh:
    """The mesh that is open, and how it was opened."""

    mesh: Mesh
    settings: dict[str, Any]
    has_own_code: bool  # of the job for which it was opened


class Server:
    """The process's end of the conversation.

    Args:
        channel: its end of the socket pair.
        make_step: factory of a job's training step.
        open_mesh: opens a mesh.
    """

    def __init__(
        self, channel: ProcessChannel, make_step: StepFactory = TrainingStep, open_mesh: OpenMesh = open_mesh
    ) -> None:
        self._channel = channel
        self._make_step = make_step
        self._open_mesh = open_mesh
        self._call = 0  # the request under way
        self._job: _ServedJob | None = None
        self._mesh: _OpenMesh | None = None

    def serve(self) -> None:
        """Carry out requests until the daemon closes its end; then close the mesh, as after any exception."""
        self._tell(hello=pb.Hello(version=PROTOCOL_VERSION))
        try:
            while True:
                request, descriptors = self._channel.receive()
                self._carry_out(request, descriptors)
        except ChannelEnded:
            pass
        finally:
            self._close_job(keep_mesh=False)
            self._channel.close()

    def _carry_out(self, request: pb.ToProcess, descriptors: Sequence[int] = ()) -> None:
        amid, self._call = self._call, request.call
        try:
            result = self._perform(request, descriptors)
        except Stopped:
            raise
        except BaseException as error:  # a model may raise anything: SystemExit, KeyboardInterrupt
            result = {"failed": describe_failure(error)}
        finally:
            close_all(descriptors)
        self._tell(**result)
        self._call = amid

    def _perform(self, request: pb.ToProcess, descriptors: Sequence[int]) -> dict[str, Any]:
        """Carry out a request, and return the message of its end by its field."""
        body = getattr(request, request.WhichOneof("body") or "close_job")
        match body:
            case pb.OpenJob():
                return {"job_built": self._open_job(body)}
            case pb.UseMemory():
                self._built.use(descriptors)
            case pb.LoadWeights():
                self._built.load(body, self)
            case pb.MakeWeights():
                self._built.gradient[:] = self._built.on_mesh.step.initial_weights()
            case pb.DescribeModel():
                files = self._built.on_mesh.step.checkpoint_files()
                return {"model_described": pb.ModelDescribed(files=files)}
            case pb.ComputeGradients():
                return {"gradients_computed": self._built.compute(body, self)}
            case pb.EvaluateBatch():
                found = self._built.on_mesh.step.evaluate(body.index, _Exchange(self, self._built.array))
                loss, rows = (None, 0) if found is None else found
                return {"batch_evaluated": pb.BatchEvaluated(loss=loss, rows=rows)}
            case pb.CheckMesh():
                self._close_job(keep_mesh=False)
                return {"mesh_checked": pb.MeshChecked(report=check_mesh(body))}
            case pb.CloseJob():
                self._close_job(keep_mesh=body.keep_mesh)
        return {"done": pb.Done()}

    @property
    def _built(self) -> _ServedJob:
        if self._job is None:
            raise Failed("the compute process has no job; open one first")
        return self._job

    def _open_job(self, order: pb.OpenJob) -> pb.JobBuilt:
        stages = StageRun(order.first_stage, order.stages) if order.stages else None
        settings = JobSettings.read(
            order.spec_json,
            order.places,
            stages,
            Path(order.data_dir) if order.data_dir else None,
            tuple(order.allowed_models),
            Path(order.code_folder) if order.code_folder else None,
        )
        mesh, seconds = self._choose_mesh(settings)
        self._tell(
            mesh_opened=pb.MeshOpened(
                rows=mesh.shape[0],
                columns=mesh.shape[1],
                backend=mesh.backend,
                arch=mesh.arch,
                board=find_board_type(mesh),
                cores=mesh.cores or 0,
                seconds=seconds,
            )
        )
        with watch_reading(self._watch_reading):
            built = JobOnMesh.build(
                settings,
                mesh,
                make_step=self._make_step,
                pass_ended=lambda ended: self._tell(pass_ended=ended),
                on_non_finite=lambda index, name: self._tell(
                    non_finite=pb.NonFinite(micro_batch=index, parameter=name)
                ),
            )
        self._job = _ServedJob(built)
        return self._job.describe()

    def _choose_mesh(self, settings: JobSettings) -> tuple[Mesh, float]:
        """Return the mesh of a job, and how long it took to open; 0 if it was open.

        Raises:
            OtherProcess: the open mesh does not suit the job, and ttnn reads one descriptor per process.
            Unfit: the mesh can't be opened.
        """
        wanted = choose_mesh(settings.config, settings.stages)
        has_own_code = find_own_module(settings.config.model) is not None
        found = self._mesh
        if found is not None:
            suits = found.settings == wanted and found.mesh.is_open and not found.mesh.is_divided
            if self._job is not None or not suits or found.has_own_code or has_own_code:
                raise OtherProcess("the job needs another compute process")
            return found.mesh, 0.0
        began_seconds = time.monotonic()
        try:
            mesh = self._open_mesh(**wanted)
        except Failed as error:
            raise Unfit(str(error)) from error
        self._mesh = _OpenMesh(mesh, wanted, has_own_code)
        return mesh, time.monotonic() - began_seconds

    def _close_job(self, *, keep_mesh: bool) -> None:
        job, self._job = self._job, None
        try:
            if job is not None:
                job.on_mesh.close()
        finally:
            if not keep_mesh and self._mesh is not None:
                opened, self._mesh = self._mesh, None
                opened.mesh.close()

    def _watch_reading(self, path: Path, read_bytes: int, size_bytes: int) -> None:
        self.ask(file_read=pb.FileRead(path=str(path), read_bytes=read_bytes, size_bytes=size_bytes))

    def _tell(self, **body: Any) -> None:
        self._channel.send(pb.FromProcess(call=self._call, **body))

    def tell(self, **body: Any) -> None:
        """Tell the daemon something of the request under way, a message by its field."""
        self._tell(**body)

    def ask(self, **body: Any) -> pb.Answer:
        """Ask the daemon something, a message by its field, and wait for its answer. Weights may come before it.

        Raises:
            Abandoned: the request is not wanted any longer.
        """
        self._tell(**body)
        while True:
            message, descriptors = self._channel.receive()
            if message.HasField("answer"):
                close_all(descriptors)
                if message.answer.abandon:
                    raise Abandoned
                return message.answer
            self._carry_out(message, descriptors)


@dataclass
class _ServedJob:
    """The job on the mesh, and the daemon's memory for it.

    Attributes:
        on_mesh: the job.
        gradient: gradients of the ranges, one after another.
        array: an array that another range sends or takes.
    """

    on_mesh: JobOnMesh
    gradient: Float32Array
    array: Bytes
    _weights: Float32Array
    _loaded: int  # number of entries on the mesh

    def __init__(self, on_mesh: JobOnMesh) -> None:
        step = on_mesh.step
        self.on_mesh = on_mesh
        self.gradient = self._weights = np.empty(0, np.float32)
        self.array = np.empty(0, np.uint8)
        self._loaded = 0
        sizes = [own.stop - own.start for own in step.ranges.values()]
        self._ranges = dict(zip(step.ranges, pairwise(accumulate(sizes, initial=0)), strict=True))
        entries: list[Entry] = [step.layout.entries[index] for index in step.loaded]
        self._entries = list(pairwise(accumulate((each.size for each in entries), initial=0)))

    def describe(self) -> pb.JobBuilt:
        step = self.on_mesh.step
        sizes = step.array_sizes
        return pb.JobBuilt(
            layout_json=step.layout.dumps(),
            ranges=[
                pb.Range(index=each, start=own.start, stop=own.stop) for each, own in step.ranges.items()
            ],
            all_ranges=step.all_ranges,
            loaded=step.loaded,
            element_bytes=sizes.dtype.itemsize,
            activation_elements=sizes.activation_elements,
            tied_elements=sizes.tied_elements,
            evaluation_batches=step.evaluation_batches,
            tokens_per_micro_batch=step.tokens_per_micro_batch,
            vocabulary=step.vocabulary,
            fingerprint=self.on_mesh.fingerprint,
        )

    def use(self, descriptors: Sequence[int]) -> None:
        """Map the daemon's memory."""
        if len(descriptors) != MEMORIES:
            raise Failed(f"UseMemory: {len(descriptors)} descriptors came, expected {MEMORIES}")
        weights, gradient, self.array = (np.frombuffer(mmap.mmap(each, 0), np.uint8) for each in descriptors)
        elements = self._entries[-1][1], sum(stop - start for start, stop in self._ranges.values())
        for name, memory, count in zip(("weights", "gradient"), (weights, gradient), elements, strict=True):
            if memory.size < 4 * count:
                raise Failed(f"UseMemory: {memory.size} bytes for the {name}, expected {4 * count}")
        self._weights = weights[: 4 * elements[0]].view(np.float32)
        self.gradient = gradient[: 4 * elements[1]].view(np.float32)

    def load(self, order: pb.LoadWeights, server: Server) -> None:
        """Put the weights on the mesh that the daemon has."""
        step = self.on_mesh.step
        if order.is_new:
            self._loaded = 0
            step.expect(lambda entry: _drop(server.ask(need_weights=pb.NeedWeights(entry=entry))))
        while self._loaded < order.entries:
            start, stop = self._entries[self._loaded]
            step.load(step.loaded[self._loaded], self._weights[start:stop])
            self._loaded += 1
        if self._loaded == len(self._entries):
            self.on_mesh.first_iteration.note_weights()

    def compute(self, order: pb.ComputeGradients, server: Server) -> pb.GradientsComputed:
        """Compute gradients, range by range, in the gradient memory."""
        step, lowest = self.on_mesh.step, min(self._ranges)

        def add_leaf(range_index: int, index: int, compute: Compute) -> FinishedPass:
            server.ask(begin_gradient=pb.BeginGradient(range=range_index, micro_batch=index))
            start, stop = self._ranges[range_index]
            finished = compute(
                self.gradient[start:stop],
                lambda offset: server.tell(gradient_ready=pb.GradientReady(offset=offset)),
            )
            done = pb.GradientDone(loss=finished.loss, count=finished.count, non_finite=finished.non_finite)
            server.tell(gradient_done=done)
            if range_index == lowest:
                self._end_first_iteration(server)
            return finished

        exchange = _Exchange(server, self.array)
        step.micro_batches(order.step, order.first, order.count, add_leaf, exchange)
        return pb.GradientsComputed(activation_bytes=step.activation_bytes)

    def _end_first_iteration(self, server: Server) -> None:
        if self.on_mesh.first_iteration.is_under_way:
            phases = self.on_mesh.first_iteration.end(self.gradient.size)
            server.tell(
                memory_measured=pb.MemoryMeasured(
                    phases=[
                        pb.MemoryMeasured.Phase(
                            name=each.name,
                            device_bytes=each.device_bytes,
                            device_peak_bytes=each.device_peak_bytes,
                            host_bytes=each.host_bytes,
                        )
                        for each in phases
                    ]
                )
            )


@dataclass(frozen=True)
class _Exchange:
    """A `PassExchange` through the daemon."""

    server: Server
    memory: Bytes

    def send(self, to: Pass, array: ExactArray) -> None:
        self._send(_place(to), array)

    def receive(self, one: Pass) -> ExactArray:
        return self._take(_place(one))

    def send_tied(self, micro_batch: int, array: ExactArray) -> None:
        self._send(pb.Place(is_tied=True, micro_batch=micro_batch), array)

    def receive_tied(self, micro_batch: int) -> ExactArray:
        return self._take(pb.Place(is_tied=True, micro_batch=micro_batch))

    def _send(self, to: pb.Place, array: ExactArray) -> None:
        if array.nbytes > self.memory.size:
            raise Failed(f"an array of {array.nbytes} bytes for another range, expected {self.memory.size}")
        self.memory[: array.nbytes].view(array.dtype).reshape(array.shape)[...] = array
        self.server.ask(send_array=pb.SendArray(to=to, shape=array.shape, element_bytes=array.dtype.itemsize))

    def _take(self, to: pb.Place) -> ExactArray:
        answer = self.server.ask(take_array=pb.TakeArray(to=to))
        dtype: np.dtype[Any] = np.dtype(EXACT_TYPES[answer.element_bytes])
        size = prod(answer.shape) * dtype.itemsize
        return self.memory[:size].view(dtype).reshape(answer.shape).copy()


def _place(one: Pass) -> pb.Place:
    return pb.Place(is_backward=one.is_backward, range=one.range_index, micro_batch=one.micro_batch)


def _drop(_: object) -> None:
    pass


def describe_failure(error: BaseException) -> pb.Failed:
    """Return what went wrong, in one line for people, and what the daemon does about it."""
    if isinstance(error, Abandoned):
        return pb.Failed(kind=pb.Failed.ABANDONED, reason="abandoned")
    known = explain_known_error(error) if isinstance(error, RuntimeError) else None
    reason = str(error) if isinstance(error, TiermeshError) else known or describe_internal_error(error)
    match error:
        case TokenFileDamaged():
            return pb.Failed(
                kind=pb.Failed.DAMAGED_FILE, reason=reason, path=str(error.path), inode=error.inode
            )
        case WrongArray():
            return pb.Failed(kind=pb.Failed.WRONG_ARRAY, reason=reason, array_kind=error.kind)
        case OtherProcess():
            return pb.Failed(kind=pb.Failed.OTHER_PROCESS, reason=reason)
        case Unfit():
            return pb.Failed(kind=pb.Failed.UNFIT, reason=reason)
    is_memory = isinstance(error, ChipMemoryShort) or is_memory_full(error)
    return pb.Failed(kind=pb.Failed.MEMORY if is_memory else pb.Failed.KIND_UNSPECIFIED, reason=reason)
