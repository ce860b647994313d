"""The part of a compute process that a caller's program plays for a worker's daemon.

docs/internals/compute-protocol.md has the messages. The daemon asks, and this end replies to one request at a time. Two
kinds of requests become work of the caller's loop; all others are seen to here.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import sys
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tiermesh.errors import Failed, Refused, TiermeshError, Unreachable, error_of
from tiermesh.gradient import Gradient
from tiermesh.parameters import Adapter, Float32Array, dump_layout
from tiermesh.wire import MEMORIES, VERSION, Channel, Message, close_all

ABANDONED = 1
"""Kind of Failed: the daemon does not want the request any longer."""

Kind = Literal["train", "evaluate"]


@dataclass(frozen=True)
class Settings:
    """What a caller has told `join`, besides the parameters.

    Attributes:
        job: id of the job.
        fingerprint: name of the caller's code.
        unused: what is done if a parameter has no gradient.
        buffers: what is done if a buffer changes.
    """

    job: str
    fingerprint: str
    unused: str
    buffers: str


@dataclass(frozen=True)
class Order:
    """A micro-batch or held-out batch that the daemon wants computed.

    Attributes:
        kind: which of the two.
        step: step of the job; 0 for a held-out batch, which is the same in every evaluation.
        index: index of the micro-batch in its step, or of the held-out batch.
    """

    kind: Kind
    step: int
    index: int

    def __str__(self) -> str:
        return (
            f"micro-batch {self.index} of step {self.step}"
            if self.kind == "train"
            else f"held-out batch {self.index}"
        )


class Session:
    """A conversation with a worker's daemon.

    Args:
        channel: connection to the daemon.
        adapter: has the model's parameters.
        settings: what the caller has told.

    Attributes:
        config: config of the job; None until the daemon has opened it.
        weights: read-only views of the weights by parameter; they change between micro-batches.
    """

    def __init__(self, channel: Channel, adapter: Adapter, settings: Settings) -> None:
        self._channel = channel
        self._adapter = adapter
        self._settings = settings
        self._process = os.getpid()
        self._call = 0  # the request under way; 0 for none
        self._is_over = False  # whether the daemon needs to hear no more
        self.config: Mapping[str, Any] | None = None
        self.weights: Mapping[str, Float32Array] = {}
        self._gradient_memory: Float32Array = np.empty(0, np.float32)
        self._loaded = 0
        self._began_seconds = 0.0
        _sessions.add(self)
        name = f"{Path(sys.argv[0] or sys.executable).name} (process {self._process})"
        self._tell(hello={"version": VERSION, "job": settings.job, "name": name})

    # ---- requests ----

    def open(self) -> None:
        """Wait until the job gets this worker, and tell the daemon what the model is."""
        while self.config is None:
            message, descriptors = self._receive()
            if "finished" in message:
                self._is_over = True
                raise error_of("job", self._settings.job, "a job that goes on", "it has ended; see its log")
            self._carry_out(message, descriptors)

    def next_order(self) -> Order | None:
        """Carry out requests until one is work of the caller's; return None if the job has ended well."""
        self.check_process()
        self._adapter.check()  # before the next weights come
        while True:
            message, descriptors = self._receive()
            if "finished" in message:
                self._is_over = True
                return None
            order = _read_order(message)
            if order is None:
                self._carry_out(message, descriptors)
                continue
            self._call = message["call"]
            missing = self._loaded < len(self._adapter.entries)
            if missing and not self._ask(need_weights={"entry": len(self._adapter.entries) - 1}):
                self.abandon()
                continue
            self._began_seconds = time.monotonic()
            return order

    def _receive(self) -> tuple[Message, list[int]]:
        """Return the daemon's next message, with its descriptors.

        Raises:
            Refused: the daemon wants nothing of this process any more, and says why.
            Unreachable: the daemon has ended.
        """
        try:
            message, descriptors = self._channel.receive()
        except TiermeshError:
            self._is_over = True
            raise
        told = message.get("refused")
        if told is not None:
            self._is_over = True
            parts = {name: told[name] or None for name in ("field", "value", "expected", "fix")}
            raise Refused(told["reason"], **parts)
        return message, descriptors

    def _carry_out(self, message: Message, descriptors: Sequence[int]) -> None:
        """Carry out a request, perhaps amid another one. What goes wrong ends the session, which tells the daemon."""
        amid, self._call = self._call, message["call"]
        try:
            result = self._perform(message, descriptors)
        finally:
            close_all(descriptors)
        self._tell(**result)
        self._call = amid

    def _perform(self, message: Message, descriptors: Sequence[int]) -> Message:
        match message:
            case {"open_job": order}:
                return {"job_built": self._open_job(order["spec_json"])}
            case {"use_memory": _}:
                self._use_memory(descriptors)
            case {"load_weights": order}:
                self._adapter.load(0 if order["is_new"] else self._loaded, order["entries"])
                self._loaded = order["entries"]
            case {"make_weights": _}:
                self._adapter.write_initial(self._gradient_memory)
            case {"describe_model": _}:
                return {"model_described": {}}
            case {"close_job": _}:
                self._loaded = 0
            case _:
                raise Failed(
                    "the worker's daemon asks for what this version can't; upgrade the package tiermesh"
                )
        return {"done": {}}

    def _open_job(self, spec_json: str) -> Message:
        config = json.loads(spec_json)
        if config["exact"] and not self._settings.fingerprint:
            fix = "name your code's version, or submit the job with exact: false"
            raise error_of("fingerprint", "", "a text, as the job has exact: true", fix)
        if config["exact"] and self._settings.buffers == "local":
            fix = "submit it with exact: false, or use layers without running statistics"
            raise error_of("buffers", "local", '"refuse", as the job has exact: true', fix)
        self.config = config
        self._loaded = 0
        entries, device = self._adapter.entries, self._adapter.facts["device"]
        self._tell(
            mesh_opened={
                "rows": 1,
                "columns": 1,
                "backend": "external",
                "arch": device.split()[0],
                "board": device,
            }
        )
        return {
            "layout_json": dump_layout(entries),
            "ranges": [{"index": 0, "start": 0, "stop": entries[-1].stop}],
            "all_ranges": 1,
            "loaded": range(len(entries)),
            "element_bytes": 4,
            "evaluation_batches": config["validation_batches"],
            "tokens_per_micro_batch": self.tokens,
            "fingerprint": {"fingerprint": self._settings.fingerprint, **self._adapter.facts},
        }

    @property
    def tokens(self) -> int:
        """Tokens (samples, where there are none) in one micro-batch, by the job's config."""
        assert self.config is not None
        return int(self.config["batch_size"] * self.config["model"]["max_sequence_length"])

    def _use_memory(self, descriptors: Sequence[int]) -> None:
        entries = self._adapter.entries
        elements = entries[-1].stop
        if len(descriptors) != MEMORIES or any(
            os.fstat(each).st_size < 4 * elements for each in descriptors[:2]
        ):
            raise Failed(f"the worker's daemon shares less memory than {elements} weights and gradients need")
        weights, self._gradient_memory = (
            np.frombuffer(mmap.mmap(each, 4 * elements), np.float32) for each in descriptors[:2]
        )
        views = {each.name: weights[each.start : each.stop].reshape(each.shape) for each in entries}
        for view in views.values():
            view.flags.writeable = False
        self.weights = views
        self._adapter.use(weights, self._gradient_memory)

    # ---- a micro-batch ----

    def begin(self, order: Order) -> Gradient | None:
        """Begin an order, and return what takes its gradient; None for a held-out batch."""
        gradient = None
        if order.kind == "train":
            gradient = Gradient(
                str(order),
                self._gradient_memory,
                self._adapter.entries,
                ask=lambda: self._ask(begin_gradient={"micro_batch": order.index}),
                tell=lambda offset: self._tell(gradient_ready={"offset": offset}),
            )
        self._adapter.begin(gradient)
        return gradient

    def finish(
        self, order: Order, gradient: Gradient, loss: float, gradients: Mapping[str, Any] | None
    ) -> bool:
        """End a micro-batch, and return whether its gradient was wanted."""
        self._adapter.finish(gradients)
        self._adapter.check()
        gradient.fill(self._settings.unused)
        if gradient.is_abandoned:
            self.abandon()
            return False
        if np.isnan(loss) and not gradient.non_finite:
            raise error_of("loss", loss, "a number, as the gradient is finite", "give the mean loss")
        self._tell_pass(is_backward=False, until=gradient.begun_seconds)
        self._tell_pass(is_backward=True)
        if gradient.non_finite:
            self._tell(non_finite={"micro_batch": order.index, "parameter": gradient.non_finite})
        self._tell(gradient_done={"loss": loss, "count": self.tokens, "non_finite": gradient.non_finite})
        self._end(gradients_computed={})
        return True

    def finish_evaluation(self, loss: float, count: int) -> None:
        """End a held-out batch."""
        self._adapter.finish(None)
        self._adapter.check()
        self._tell_pass(is_backward=False)
        self._end(batch_evaluated={"loss": loss, "rows": count})

    def _tell_pass(self, *, is_backward: bool, until: float | None = None) -> None:
        began_seconds, self._began_seconds = self._began_seconds, until or time.monotonic()
        self._tell(
            pass_ended={
                "is_backward": is_backward,
                "began_seconds": began_seconds,
                "ended_seconds": self._began_seconds,
            }
        )

    def abandon(self) -> None:
        """End the request under way, which the daemon does not want any longer."""
        self._end(failed={"kind": ABANDONED, "reason": "abandoned"})

    # ---- messages ----

    def _tell(self, **body: Any) -> None:
        self.check_process()
        try:
            self._channel.send({"call": self._call, **body})
        except Unreachable:
            while not self._is_over:  # the daemon may have said why before
                self._receive()
            raise

    def _end(self, **body: Any) -> None:
        self._tell(**body)
        self._call = 0

    def _ask(self, **body: Any) -> bool:
        """Ask the daemon something, and return whether the request is still wanted. Weights may come before it."""
        self._tell(**body)
        while True:
            message, descriptors = self._receive()
            if "answer" in message:
                close_all(descriptors)
                return not message["answer"]["abandon"]
            self._carry_out(message, descriptors)

    # ---- the end ----

    def close(self, reason: str | None) -> None:
        """Leave the job, and give the model weights of its own.

        Args:
            reason: what went wrong, in one line; None if the caller wants no more work.
        """
        if os.getpid() != self._process:
            return
        if reason is None and self._call:
            reason = "the loop was left amid a micro-batch"
        try:
            if reason is not None and not self._is_over:
                self._tell(failed={"reason": reason})
        except TiermeshError:
            pass  # the daemon has ended, too
        finally:
            self._channel.close()
            self._adapter.end()

    def check_process(self) -> None:
        """Check that this is the process that has joined.

        Raises:
            Refused: it is a fork of that.
        """
        if os.getpid() != self._process:
            raise error_of(
                "run",
                f"used in process {os.getpid()}",
                f"use in process {self._process} alone, which has joined job {self._settings.job}",
                "call join after the fork",
            )

    def leave_fork(self) -> None:
        """Close the connection in a fork, so that the daemon sees the end of the process that has joined."""
        self._channel.close()


_sessions: weakref.WeakSet[Session] = weakref.WeakSet()


def _leave_fork() -> None:
    for each in list(_sessions):
        each.leave_fork()


os.register_at_fork(after_in_child=_leave_fork)


def _read_order(message: Message) -> Order | None:
    match message:
        case {"compute_gradients": order}:
            return Order("train", order["step"], order["first"])
        case {"evaluate_batch": order}:
            return Order("evaluate", 0, order["index"])
    return None


def derive_seed(seed: int, order: Order) -> int:
    """Return a number of 63 bits that follows from the job's seed and what is to be computed, alike on all workers."""
    place = str(order.step) if order.kind == "train" else order.kind
    digest = hashlib.sha256(f"{seed}/{place}/{order.index}".encode("ascii")).digest()
    return int.from_bytes(digest[:8], "little") & (1 << 63) - 1
