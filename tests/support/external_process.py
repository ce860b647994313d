"""A process of a user that joins a worker: a small perceptron in numpy, and what such processes do wrong.

    python -m tests.support.external_process SOCKET JOB [--fault NAME] [--hidden 16] [--fingerprint TEXT]

It speaks the protocol by protobuf, so that the package in sdk/ is not needed to test the daemon.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import socket
import sys
from collections.abc import Mapping
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from protos import compute_pb2 as pb
from services.runtime.compute_channel import (
    MEMORIES,
    PROTOCOL_VERSION,
    Channel,
    ChannelEnded,
    ProcessChannel,
    close_all,
)
from services.tensors.layout import Layout

Array = npt.NDArray[np.float32]
INPUTS, OUTPUTS = 8, 4


class RefusedHere(Exception):
    """The daemon has refused the process.

    Attributes:
        refused: what it said.
    """

    def __init__(self, refused: pb.Refused) -> None:
        super().__init__(refused.reason)
        self.refused = refused


class Abandoned(Exception):
    """The lease was revoked."""


class ExternalProcess:
    """A process that joins, until its job is over.

    Args:
        path: path of the worker's socket.
        job: id of the job.
        hidden: width of the perceptron's hidden layer.
        fingerprint: what it says of its code.
        fault: what it does wrong; empty for nothing. See `_gradient`.
        version: version of the protocol that it speaks.

    Attributes:
        micro_batches: the (step, index) of each micro-batch that it has computed.
        evaluated: indices of the held-out batches that it has evaluated.
        opened: how often it has opened the job.
    """

    def __init__(
        self,
        path: Path,
        job: str,
        *,
        hidden: int = 16,
        fingerprint: str = "code 1",
        fault: str = "",
        version: int = PROTOCOL_VERSION,
    ) -> None:
        self._fingerprint = fingerprint
        self._fault = fault
        self.micro_batches: list[tuple[int, int]] = []
        self.evaluated: list[int] = []
        self.opened = 0
        self._call = 0
        self._config: dict[str, Any] = {}
        self._loaded = 0
        shapes = {
            "first.weight": (hidden, INPUTS),
            "first.bias": (hidden,),
            "second.weight": (OUTPUTS, hidden),
        }
        self.layout = Layout.build(
            (name, shape, len(shape) > 1, name, False) for name, shape in shapes.items()
        )
        self._end = socket.socket(socket.AF_UNIX)
        self._end.connect(str(path))
        self._channel: ProcessChannel = Channel(self._end, pb.ToProcess, MEMORIES)
        name = f"external_process {os.getpid()}"
        self._tell(hello=pb.Hello(version=version, job=job, name=name))

    def serve(self) -> None:
        """Carry out requests until the job has succeeded.

        Raises:
            RefusedHere: the daemon refuses it.
            ChannelEnded: the daemon has ended.
        """
        with self._end:
            while True:
                request, descriptors = self._channel.receive()
                if request.HasField("finished"):
                    return
                if request.HasField("refused"):
                    raise RefusedHere(request.refused)
                self._carry_out(request, descriptors)

    def _carry_out(self, request: pb.ToProcess, descriptors: list[int]) -> None:
        amid, self._call = self._call, request.call
        try:
            result = self._perform(request, descriptors)
        except Abandoned:
            result = {"failed": pb.Failed(kind=pb.Failed.ABANDONED, reason="abandoned")}
        except ValueError as error:
            self._tell(failed=pb.Failed(reason=f"ValueError: {error}"))
            raise
        finally:
            close_all(descriptors)
        self._tell(**result)
        self._call = amid

    def _perform(self, request: pb.ToProcess, descriptors: list[int]) -> dict[str, Any]:
        match getattr(request, request.WhichOneof("body") or "close_job"):
            case pb.OpenJob() as order:
                return {"job_built": self._open(order)}
            case pb.UseMemory():
                weights, gradient, _ = (np.frombuffer(mmap.mmap(each, 0), np.uint8) for each in descriptors)
                size = 4 * self.layout.elements
                self._weights, self._gradient = (each[:size].view(np.float32) for each in (weights, gradient))
            case pb.LoadWeights() as order:
                self._loaded = order.entries
            case pb.MakeWeights():
                draw = np.random.default_rng(self._config["seed"])
                self._gradient[:] = 0.1 * draw.standard_normal(self.layout.elements, np.float32)
            case pb.DescribeModel():
                return {"model_described": pb.ModelDescribed()}
            case pb.ComputeGradients() as order:
                self._compute(order.step, order.first)
                return {"gradients_computed": pb.GradientsComputed()}
            case pb.EvaluateBatch() as order:
                return {"batch_evaluated": self._evaluate(order.index)}
        return {"done": pb.Done()}

    def _open(self, order: pb.OpenJob) -> pb.JobBuilt:
        self._config = json.loads(order.spec_json)
        self._loaded = 0
        self.opened += 1
        self._tell(mesh_opened=pb.MeshOpened(rows=1, columns=1, backend="external", arch="cpu"))
        return pb.JobBuilt(
            layout_json=self.layout.dumps(),
            ranges=[pb.Range(index=0, start=0, stop=self.layout.elements)],
            all_ranges=1,
            loaded=range(len(self.layout.entries)),
            element_bytes=4,
            evaluation_batches=self._config["validation_batches"],
            tokens_per_micro_batch=self._config["batch_size"] * self._config["model"]["max_sequence_length"],
            fingerprint={"fingerprint": self._fingerprint, "adapter": "numpy"},
        )

    # ---- passes ----

    def _parameters(self) -> Mapping[str, Array]:
        """Return the parameters, once they are loaded."""
        found = {}
        for index, entry in enumerate(self.layout.entries):
            if index >= self._loaded:
                self._ask(need_weights=pb.NeedWeights(entry=index))
            found[entry.name] = self._weights[entry.offset : entry.stop].reshape(entry.shape)
        return found

    def _pass(self, *key: int) -> tuple[float, dict[str, Array], int]:
        """Return the sum of the squared errors of a batch, its gradient, and the number of samples."""
        parameters = self._parameters()
        size = self._config["batch_size"]
        inputs = np.random.default_rng((self._config["seed"], *key)).standard_normal(
            (size, INPUTS), np.float32
        )
        targets = np.sin(inputs[:, :OUTPUTS])
        hidden = np.tanh(inputs @ parameters["first.weight"].T + parameters["first.bias"])
        error = hidden @ parameters["second.weight"].T - targets
        back = (error @ parameters["second.weight"]) * (1 - hidden * hidden)
        gradients = {
            "first.weight": back.T @ inputs,
            "first.bias": back.sum(0),
            "second.weight": error.T @ hidden,
        }
        loss = float(np.sum(error.astype(np.float64) ** 2)) / 2
        return loss, {name: (each / np.float32(size)) for name, each in gradients.items()}, size

    def _compute(self, step: int, index: int) -> None:
        self.micro_batches.append((step, index))
        loss, gradients, size = self._pass(step, index)
        is_due = len(self.micro_batches) > 5
        if self._fault == "an exception" and is_due:
            raise ValueError("the user's loop failed")
        if self._fault == "killed" and is_due:
            self._ask(begin_gradient=pb.BeginGradient(range=0, micro_batch=index))
            os._exit(1)
        if self._fault == "other bits" or (self._fault == "other bits later" and index == 1):
            gradients["first.bias"] = gradients["first.bias"] + np.float32(1e-3 * len(self.micro_batches))
        if self._fault == "another loss later" and index == 1:
            loss += 1e-9 * len(self.micro_batches)
        if self._fault == "not finite" and step == 1:
            gradients["first.bias"][0] = np.inf
        self._ask(begin_gradient=pb.BeginGradient(range=0, micro_batch=index))
        non_finite = ""
        for entry in reversed(self.layout.entries):
            values = gradients[entry.name].reshape(-1)
            self._gradient[entry.offset : entry.stop] = values
            if not np.isfinite(values).all():
                non_finite = entry.name
                self._tell(non_finite=pb.NonFinite(micro_batch=index, parameter=entry.name))
            beyond = self._fault == "an offset beyond" and is_due
            if not (self._fault == "a gradient missing" and is_due and entry.offset == 0):
                self._tell(gradient_ready=pb.GradientReady(offset=entry.stop if beyond else entry.offset))
        mean = nan if self._fault == "a loss of NaN" and is_due else loss / size
        self._tell(gradient_done=pb.GradientDone(loss=mean, count=size, non_finite=non_finite))

    def _evaluate(self, index: int) -> pb.BatchEvaluated:
        self.evaluated.append(index)
        loss, _, size = self._pass(1 << 40, index)
        return pb.BatchEvaluated(loss=loss, rows=size)

    # ---- messages ----

    def _tell(self, **body: Any) -> None:
        try:
            self._channel.send(pb.FromProcess(call=self._call, **body))
        except ChannelEnded:
            while True:  # the daemon may have said why before
                message, _ = self._channel.receive()
                if message.HasField("refused"):
                    raise RefusedHere(message.refused) from None

    def leave(self, reason: str) -> None:
        """Say between requests that the process leaves, and end the conversation."""
        self._channel.send(pb.FromProcess(call=0, failed=pb.Failed(reason=reason)))
        self._end.close()

    def _ask(self, **body: Any) -> None:
        self._tell(**body)
        while True:
            message, descriptors = self._channel.receive()
            if message.HasField("answer"):
                if message.answer.abandon:
                    raise Abandoned
                return
            self._carry_out(message, descriptors)


def main() -> int:
    """Join, and print how it ended; the exit code is 0 if the job has succeeded."""
    parser = argparse.ArgumentParser()
    parser.add_argument("socket", type=Path)
    parser.add_argument("job")
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--fingerprint", default="code 1")
    parser.add_argument("--fault", default="")
    options = parser.parse_args()
    settings = {"hidden": options.hidden, "fingerprint": options.fingerprint, "fault": options.fault}
    try:
        ExternalProcess(options.socket, options.job, **settings).serve()
    except RefusedHere as refused:
        print(f"refused: {refused}")
        return 3
    except ChannelEnded:
        print("the daemon has ended")
        return 4
    except ValueError as error:
        print(f"failed: {error}")
        return 5
    print("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
