"""A worker with a valid certificate that describes a layout of 2^40 elements, again and again, until it is killed.

python overstating_worker.py HOST:PORT FILE

It speaks the protocol as the .proto files say. In its first life it builds the job like an honest worker, and lies in
the Description of its model, if it gets the lease to make the initial weights. Later it lies in Ready. It writes what
it is told to FILE, a line for each refusal.
"""

from __future__ import annotations

import queue
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import google_crc32c
import grpc

from protos import cluster_pb2 as pb
from protos import files_pb2 as files
from protos.cluster_pb2_grpc import ClusterStub
from protos.files_pb2_grpc import FilesStub
from services.config.job import JobConfig
from services.protocol.file_refs import make_ref
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.layout import MAX_ELEMENTS, Layout

PAUSE_SECONDS = 0.5
"""Time between two lives: a liar that comes as often as a worker that reconnects."""
LAYOUT = Layout.build([("w", (MAX_ELEMENTS,), True, "w", False)]).dumps().encode()
LAYOUT_REF = make_ref(LAYOUT)


class Life:
    """One connection to the aggregator.

    Args:
        address: address of the aggregator.
        lies_in_ready: whether it lies in Ready; otherwise in Description.
    """

    def __init__(self, address: str, *, lies_in_ready: bool) -> None:
        self._channel = grpc.insecure_channel(address, options=(("grpc.use_local_subchannel_pool", 1),))
        self._lies_in_ready = lies_in_ready
        self._said: queue.Queue[pb.WorkerMessage | None] = queue.Queue()
        self._epoch = 0
        self.incarnation = uuid.uuid4().hex

    def run(self) -> str:
        """Join, lie, and return why it was refused; the error if the connection ended before."""
        stub: Any = ClusterStub
        hello = pb.Hello(
            protocol=PROTOCOL_VERSION, role="worker", name="liar", incarnation=self.incarnation, shard_count=1
        )
        self._said.put(pb.WorkerMessage(hello=hello))
        try:
            for command in stub(self._channel).Attend(iter(self._said.get, None)):
                if (refusal := self._obey(stub, command)) is not None:
                    return refusal
            return "the aggregator ended the stream"
        except grpc.RpcError as error:
            return str(error.details())
        finally:
            self._said.put(None)
            self._channel.close()

    def _obey(self, stub: Any, command: pb.WorkerCommand) -> str | None:
        match command.WhichOneof("body"):
            case "welcome":
                self._epoch = command.epoch
                metadata = (("tiermesh-incarnation", self.incarnation),)
                self._chunks = stub(self._channel).Exchange(iter(queue.Queue().get, None), metadata=metadata)
                print("joined", flush=True)
            case "heartbeat":
                self._say(heartbeat=pb.Heartbeat())
            case "join":
                config = JobConfig.from_json(command.join.spec_json)
                self._say(
                    ready=pb.Ready(
                        job=command.join.job,
                        build=command.join.build,
                        layout_hash=LAYOUT_REF.sha256,
                        elements=MAX_ELEMENTS if self._lies_in_ready else config.parameters.number,
                        evaluation_batches=config.evaluation_batches,
                    )
                )
            case "lease":
                lease = command.lease
                if lease.phase == pb.INITIALISE:
                    layout = self._upload()
                    self._say(description=pb.Description(job=lease.job, lease=lease.lease, layout=layout))
            case "leave":
                return str(command.leave.reason)
        return None

    def _say(self, **body: Any) -> None:
        self._said.put(pb.WorkerMessage(epoch=self._epoch, **body))

    def _upload(self) -> files.FileRef:
        def pieces() -> Iterator[files.FilePiece]:
            yield files.FilePiece(file=LAYOUT_REF, offset=0, crc32c=google_crc32c.value(LAYOUT), data=LAYOUT)

        stub: Any = FilesStub
        if stub(self._channel).Missing(files.MissingRequest(files=[LAYOUT_REF])).missing:
            stub(self._channel).Write(pieces())
        return LAYOUT_REF


def main(address: str, log: Path) -> None:
    """Live again and again."""
    lies_in_ready = False
    with log.open("a", buffering=1) as lines:
        while True:
            print(Life(address, lies_in_ready=lies_in_ready).run(), file=lines)
            lies_in_ready = True
            time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
