"""`tiermesh.join`: a training loop of the caller's own becomes a worker of a job."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tiermesh.errors import error_of
from tiermesh.gradient import Gradient
from tiermesh.numpy_adapter import NumpyAdapter
from tiermesh.parameters import Adapter, Float32Array
from tiermesh.session import Kind, Order, Session, Settings, derive_seed
from tiermesh.wire import connect

if TYPE_CHECKING:
    import torch

MAX_REASON_CHARACTERS = 500


@dataclass(frozen=True)
class Hint:
    """A micro-batch that may come.

    Attributes:
        step: step of the job.
        index: index in the step.
        seed: seed that its `Work` would have.
    """

    step: int
    index: int
    seed: int


class Work:
    """A micro-batch whose gradient is wanted, or a held-out batch whose loss is.

    Attributes:
        kind: `train` or `evaluate`.
        step: step of the job; 0 for a held-out batch, which is the same in every evaluation.
        index: index of the micro-batch in its step, or of the held-out batch.
        seed: number for everything random in it: data, dropout. It follows from the job's seed, step and index.
        weights: the weights by parameter, read-only float32 arrays. They are valid until `done`.
        is_done: whether `done` was called.
    """

    def __init__(self, session: Session, order: Order, seed: int) -> None:
        self._session = session
        self._order = order
        self._gradient: Gradient | None = session.begin(order)
        self.is_done = False
        self.kind: Kind = order.kind
        self.step = order.step
        self.index = order.index
        self.seed = seed
        self.weights: Mapping[str, Float32Array] = session.weights

    def __str__(self) -> str:
        return str(self._order)

    def done(
        self, loss: float, *, gradients: Mapping[str, Any] | None = None, count: int | None = None
    ) -> bool:
        """End the work.

        Args:
            loss: mean loss of a micro-batch; sum of the losses of a held-out batch.
            gradients: gradient of each parameter of a micro-batch, in numpy; PyTorch's were taken by `backward`.
            count: number of targets whose losses were summed, for a held-out batch.

        Returns:
            False if the cluster has given the work to another worker meanwhile, else True.

        Raises:
            Refused: a gradient is missing or wrong, the model was changed, or the work was done before.
            Unreachable: the worker's daemon has ended.
        """
        self._session.check_process()
        if self.is_done:
            raise error_of("done", "called twice", f"one call for {self._order}", "take the next work")
        try:
            loss = float(loss)
        except (TypeError, ValueError):
            raise error_of("loss", type(loss).__name__, "a number", "pass loss.item()") from None
        if self._gradient is None:
            if gradients is not None:
                raise error_of("gradients", "a mapping", f"none for {self._order}", "leave it out")
            if count is None or count < 1:
                expected = f"the number of targets in {self._order}"
                raise error_of("count", count, expected, "pass the sum of losses and count=")
            self._session.finish_evaluation(loss, count)
            is_wanted = True
        else:
            if count is not None:
                raise error_of("count", count, f"none for {self._order}", "pass the mean loss alone")
            is_wanted = self._session.finish(self._order, self._gradient, loss, gradients)
        self.is_done = True
        return is_wanted


class Run:
    """A worker's part in a job: an iterator over the work that the cluster gives it.

    Attributes:
        job: id of the job.
        config: the job's settings, such as `seed`, `batch_size` and `steps`.
    """

    def __init__(self, session: Session, job: str) -> None:
        assert session.config is not None
        self._session = session
        self._work: Work | None = None
        self._step = -1
        self._indices: list[int] = []  # of this step
        self._before: list[int] = []  # of the step before
        self.job = job
        self.config: Mapping[str, Any] = session.config

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Work:
        if self._work is not None and not self._work.is_done:
            expected = f"a call for {self._work}"
            raise error_of("done", "not called", expected, "call work.done(...) before the next one")
        order = self._session.next_order()
        if order is None:
            raise StopIteration
        if order.kind == "train":
            self._note(order)
        self._work = Work(self._session, order, derive_seed(self.config["seed"], order))
        return self._work

    def _note(self, order: Order) -> None:
        if order.step != self._step:
            self._step, self._before, self._indices = order.step, self._indices, []
        if order.index not in self._indices:  # a process's first lease is computed twice, to compare its bits
            self._indices.append(order.index)

    def upcoming(self, count: int) -> list[Hint]:
        """Return micro-batches that this worker may get next, for prefetching their data.

        They are guessed from those of the step before. A wrong guess costs time alone, if what is prefetched is looked
        up by step and index.

        Args:
            count: most of them.
        """
        rest = [each for each in self._before if each not in self._indices]
        orders = [Order("train", self._step, each) for each in rest]
        orders += [Order("train", self._step + 1, each) for each in self._indices + rest]
        seed = self.config["seed"]
        return [Hint(each.step, each.index, derive_seed(seed, each)) for each in orders[:count]]


@contextmanager
def join(
    socket_path: str | os.PathLike[str],
    *,
    job: str,
    parameters: Mapping[str, Any] | torch.nn.Module,
    fingerprint: str = "",
    unused: Literal["refuse", "zero"] = "refuse",
    buffers: Literal["refuse", "local"] = "refuse",
) -> Iterator[Run]:
    """Compute gradients for a job of `model_type: external`, with code of the caller's own.

        with tiermesh.join("/run/tiermesh/worker.sock", job=job.id, parameters=model, fingerprint="my-code-1") as run:
            for work in run:
                loss = compute(model, batch(work.step, work.index, work.seed))
                if work.kind == "train":
                    loss.backward()
                    work.done(loss.item())
                else:
                    work.done(loss_sum, count=targets)

    The iteration waits while the cluster has no work, and ends with the job. An exception in the loop gives the
    work back to the cluster, and goes to the job's log. A process may join again after anything. Threads other than the
    one that iterates, and forks, must not use the run.

    Args:
        socket_path: socket of a `tiermesh worker --external` on this host.
        job: id of the job.
        parameters: a PyTorch module; or the parameters by name, all PyTorch's or all numpy arrays. Their order should
            be that of their use in the forward pass. The values that they have now are the initial weights of a new
            job. Buffers are watched only of a module.
        fingerprint: version of the caller's code, which must be the same on all workers of a job with `exact: true`.
        unused: whether a parameter without a gradient is refused, or its gradient is zero.
        buffers: whether a module's buffer that changes in training is refused, or changes on each worker for itself,
            which a job with `exact: true` does not allow.

    Raises:
        Refused: an argument is wrong, or the worker or the cluster does not want this program, and says why.
        NotAllowed: this user may not use the socket.
        Unreachable: the worker's daemon is not there, or has ended.
    """
    for name, value, allowed in (
        ("unused", unused, ("refuse", "zero")),
        ("buffers", buffers, ("refuse", "local")),
    ):
        if value not in allowed:
            raise error_of(name, value, " or ".join(map(repr, allowed)), "correct it")
    if not isinstance(job, str) or not job:
        raise error_of("job", job, "a job's id", "pass job.id")
    adapter = _choose_adapter(parameters, watches_buffers=buffers == "refuse")
    try:
        session = Session(connect(socket_path), adapter, Settings(job, fingerprint, unused, buffers))
    except BaseException:
        adapter.end()
        raise
    reason: str | None = None
    try:
        session.open()
        yield Run(session, job)
    except BaseException as error:
        reason = _describe(error)
        raise
    finally:
        session.close(reason)


def _choose_adapter(parameters: Any, *, watches_buffers: bool) -> Adapter:
    """Return the adapter of what the caller has; PyTorch is imported only if the caller has done so."""
    if "torch" in sys.modules:
        from tiermesh.torch_adapter import TorchAdapter, is_torch

        if is_torch(parameters):
            return TorchAdapter(parameters, watches_buffers=watches_buffers)
    if not isinstance(parameters, Mapping):
        kind = type(parameters).__name__
        raise error_of("parameters", kind, "a mapping from names to parameters, or a module", "convert it")
    return NumpyAdapter(parameters)


def _describe(error: BaseException) -> str:
    """Return an exception of the caller's in one line, with the place where it was raised."""
    place, trace = "", error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        place = f" ({Path(code.co_filename).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    text = " ".join(str(error).split())[:MAX_REASON_CHARACTERS]
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"
