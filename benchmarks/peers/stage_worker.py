"""Worker of one stage of a pipeline whose passes are pauses: it exchanges arrays with the others, and nothing else.

It prints the port that it listens on. Standard input then has one line of JSON: the fields of `StageWork`. After each
lease it prints, as JSON, the moments of each pass's start and end on the monotonic clock, in the schedule's order.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from dataclasses import asdict, dataclass

import numpy as np

from protos import cluster_pb2 as pb
from protos.tensors_pb2 import FLOAT32
from services.pipeline.exchange import ArraySizes
from services.pipeline.schedule import Schedule
from services.pipeline.split import Split
from services.runtime import process
from services.transport.http2.server import StreamServer
from services.transport.security import Security
from worker.pipeline.array_plan import ArrayPlan
from worker.pipeline.row_links import RowLinks

_EPOCH = 1
_ROW = _EPOCH << 32 | 1


@dataclass(frozen=True)
class StageWork:
    """Work of a stage.

    Attributes:
        stage: the stage.
        addresses: `HOST:PORT` of all stages' workers.
        micro_batches: micro-batches of each lease.
        leases: number of leases.
        elements: float32 elements of an activation.
        forward_seconds: pause of a forward pass.
        backward_seconds: pause of a backward pass.
    """

    stage: int
    addresses: list[str]
    micro_batches: int
    leases: int
    elements: int
    forward_seconds: float
    backward_seconds: float

    @property
    def schedule(self) -> Schedule:
        """Schedule of the passes."""
        return Schedule("1f1b", len(self.addresses), self.micro_batches, hides_transfers=True)

    def to_json(self) -> str:
        """Return the line for the worker's standard input."""
        return json.dumps(asdict(self)) + "\n"


def main() -> None:
    """Serve, and run the leases."""
    process.tune_allocator()  # as daemons do
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="loop", daemon=True).start()
    incarnation = sys.argv[1]
    links = RowLinks(incarnation, incarnation, Security())

    async def serve() -> int:
        return (await StreamServer.start("0.0.0.0:0", Security(), links.handlers())).port

    print(asyncio.run_coroutine_threadsafe(serve(), loop).result(), flush=True)
    work = StageWork(**json.loads(sys.stdin.readline()))

    async def form_row() -> None:
        row = pb.Row(job="benchmark", row=_ROW)
        for stage, address in enumerate(work.addresses):
            name = f"stage-{stage}"
            row.seats.add(name=name, incarnation=name, address=address, first_stage=stage, stages=1)
        links.set_row(row, _EPOCH)

    asyncio.run_coroutine_threadsafe(form_row(), loop).result()
    for number in range(work.leases):
        print(json.dumps(_run_lease(links, work, _EPOCH << 32 | 1 + number)), flush=True)
    sys.stdin.readline()  # the others may still take arrays


def _run_lease(links: RowLinks, work: StageWork, number: int) -> list[tuple[float, float]]:
    stages = len(work.addresses)
    sizes = ArraySizes(np.dtype(np.float32), work.elements, 0)
    plan = ArrayPlan(Split((1,) * stages), "1f1b", sizes, FLOAT32)
    lease = pb.Lease(job="benchmark", generation=1, step=1, lease=number, phase=pb.TRAIN, row=_ROW)
    exchange = links.open_lease(lease, plan)
    array = np.ones(work.elements, np.float32)
    schedule = work.schedule
    spans = []
    for one in schedule.passes(work.stage):
        if schedule.is_fed(one):
            exchange.receive(one)
        started = time.monotonic()
        time.sleep(work.backward_seconds if one.is_backward else work.forward_seconds)
        spans.append((started, time.monotonic()))
        successor = schedule.successor(one)
        if successor is not None:
            exchange.send(successor, array)
    exchange.close()
    return spans


if __name__ == "__main__":
    main()
