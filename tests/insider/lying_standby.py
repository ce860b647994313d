"""A standby as an insider: an aggregator's daemon without workers, which calls whom it can reach.

It has an aggregator's certificate. It reads the queue that standbys share with the leader, so it knows the cluster's
identity and epoch. It lies to the optimizer and to shards, which take orders of aggregators, and tries every call at
the others.
Two things are left out, since a holder of such a certificate may do them: to describe a job's layout, and to remove
checkpoints. A file next to its state folder, `peers.json`, has the addresses of the others, by name.
"""

from __future__ import annotations

import json
import random
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import Message

from cli.main import main
from protos import cluster_pb2 as pb
from protos import files_pb2, jobs_pb2, pipeline_pb2
from protos import plane_pb2 as plane
from services.protocol.hello import Role, make_hello
from services.protocol.versions import LAST_EPOCH
from services.transport.links import INCARNATION_KEY
from tests.insider.calls import call
from tests.insider.lies import Liar, shown
from tests.insider.lives import Log
from tests.insider.processes import HEARTBEAT_SECONDS

PEERS = "peers.json"
PAUSE_SECONDS = 0.3
"""Time between two lies."""
MOST_ORDERS = 8
ANSWER_SECONDS = 0.5
"""Longest wait for an answer to Hello, which may never come."""
SESSION_SECONDS = (0.0, 0.2, 1.0)
"""How long it stays connected after its orders."""
LEAPS = (1, 1, 100)
"""How far its epochs are ahead of the leader's when it takes over."""
OTHER_LEAPS = (-1, 0, LAST_EPOCH)
TAKEOVER_SECONDS = 10.0
"""Least time between two takeovers. Each may cost a step, and the holder of such a certificate may do it."""
CLUSTER, OPTIMIZER = (pb.DESCRIPTOR.services_by_name[name] for name in ("Cluster", "Optimizer"))
SHARD = plane.DESCRIPTOR.services_by_name["Shard"]
FILES = files_pb2.DESCRIPTOR.services_by_name["Files"]
SERVICES = {
    "aggregator": (CLUSTER, jobs_pb2.DESCRIPTOR.services_by_name["Jobs"], FILES),
    "optimizer": (OPTIMIZER, FILES),
    "shard": (SHARD, CLUSTER, FILES),
    "worker": (pipeline_pb2.DESCRIPTOR.services_by_name["Pipeline"],),
}
"""Services of each role."""
TOOK_OVER = "aggregator {} of epoch "
"""Begin of what an optimizer or a shard logs that obeys it in place of the leader."""


class LyingStandby(threading.Thread):
    """Calls of one standby, one after the other.

    Args:
        name: its name, which ends in the seed.
        folder: folder with the log of its lies and with `peers.json`.
        queue: the leader's queue.
        credentials: its certificate, and the authority that it trusts.
    """

    def __init__(self, name: str, folder: Path, queue: Path, credentials: grpc.ChannelCredentials) -> None:
        super().__init__(daemon=True)
        self._name, self._queue = name, queue
        self._seed = name.rpartition("-")[2]
        self._log = Log(self._seed, folder / f"{name}.lies")
        self._takes_over_at = 0.0
        peers: dict[str, str] = json.loads((folder / PEERS).read_text())
        self._channels = {
            peer: grpc.secure_channel(address, credentials, (("grpc.use_local_subchannel_pool", 1),))
            for peer, address in peers.items()
        }

    def run(self) -> None:
        draw = random.Random(self._seed)
        number = 0
        while True:
            time.sleep(PAUSE_SECONDS)
            number += 1
            liar = Liar(f"{self._seed}.{number}")
            above = [each for each in self._channels if each.startswith(("optimizer", "shard"))]
            if draw.random() < 0.4:
                told = self._attend(liar, draw.choice(above))
            else:
                told = self._call(liar, draw.choice(list(self._channels)))
            self._log.note(number, told)

    def _attend(self, liar: Liar, peer: str) -> str:
        """Say Hello as an aggregator, and give orders; make other calls as the aggregator that is obeyed."""
        cluster, epoch = self._read_queue()
        takes_over = time.monotonic() > self._takes_over_at
        if takes_over:
            self._takes_over_at = time.monotonic() + TAKEOVER_SECONDS
        epoch = min(max(0, epoch + liar.draw.choice(LEAPS if takes_over else OTHER_LEAPS)), LAST_EPOCH)
        is_shard, shard_count = (
            peer.startswith("shard"),
            sum(each.startswith("shard") for each in self._channels),
        )
        hello = make_hello(
            Role.AGGREGATOR,
            self._name,
            incarnation=uuid.uuid4().hex,
            epoch_seen=epoch,
            cluster=cluster,
            heartbeat_seconds=HEARTBEAT_SECONDS,
        )
        first: Any = pb.OptimizerCommand(epoch=epoch, hello=hello)
        if is_shard:
            hello.shard_index, hello.shard_count = int(peer.rpartition("-")[2]), shard_count
            first = plane.PlaneOrders(epoch=epoch, orders=[plane.PlaneOrder(hello=hello)])
        lie = None if takes_over else liar.tell_now(first)
        hellos = [first] if lie is None else list(lie.messages)
        orders = [self._make_order(liar, type(first), epoch) for _ in range(liar.draw.randrange(MOST_ORDERS))]

        answered = threading.Event()

        def messages() -> Iterator[Message]:
            yield from hellos
            answered.wait(ANSWER_SECONDS)
            yield from orders
            if not is_shard and liar.draw.random() < 0.5:
                self._call(liar, peer, hello.incarnation)
            time.sleep(liar.draw.choice(SESSION_SECONDS))

        service = SHARD if is_shard else OPTIMIZER
        call(self._channels[peer], service.methods_by_name["Attend"], messages(), answered=answered)
        return f"to {peer}: {'; '.join(map(shown, [*hellos, *orders]))}"

    def _make_order(self, liar: Liar, kind: type[Message], epoch: int) -> Message:
        order: Any = liar.make_up(kind.DESCRIPTOR)
        if isinstance(order, pb.OptimizerCommand):
            order.ClearField("initialise")
        if liar.draw.random() < 0.7:
            order.epoch = epoch
        return order

    def _call(self, liar: Liar, peer: str, incarnation: str = "") -> str:
        """Call any method with a message that is made up, as an aggregator that has said Hello or not."""
        service = OPTIMIZER if incarnation else liar.draw.choice(SERVICES[peer.partition("-")[0]])
        method = liar.draw.choice(
            [each for each in service.methods if not incarnation or each.name != "RemoveCheckpoints"]
        )
        request = liar.make_up(method.input_type)
        metadata = ((INCARNATION_KEY, incarnation),) if incarnation else ()
        call(self._channels[peer], method, [request], metadata=metadata, seconds=1.0)
        return f"to {peer}: {method.name} {shown(request)}"

    def _read_queue(self) -> tuple[str, int]:
        """Return the cluster's identity and epoch."""
        with closing(sqlite3.connect(f"file:{self._queue}?mode=ro", uri=True, timeout=10)) as queue:
            identity, epoch = queue.execute("SELECT identity, epoch FROM cluster").fetchone()
            return str(identity), int(epoch)


def _option(flag: str) -> Path:
    return Path(sys.argv[sys.argv.index(flag) + 1])


if __name__ == "__main__":
    certificate = (_option(flag).read_bytes() for flag in ("--tls-ca", "--tls-key", "--tls-cert"))
    own = _option("--state-dir")
    credentials = grpc.ssl_channel_credentials(*certificate)
    queue = own.parent / "aggregator-state" / "queue.sqlite"
    LyingStandby(str(_option("--name")), own.parent, queue, credentials).start()
    sys.exit(main())
