"""The insider as a standby: it has an aggregator's certificate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protos import cluster_pb2 as pb
from services.protocol.envelope import unwrap
from services.protocol.versions import PROTOCOL_VERSION
from tests.insider.lies import Afterwards
from tests.insider.ports import Refused, passed_on
from tests.simulation.job_model import CLUSTER
from tests.simulation.links import Link, is_end
from tests.simulation.process import Process
from tests.simulation.simulated_cluster import SimulatedCluster
from tests.simulation.simulated_optimizer import SimulatedOptimizer

if TYPE_CHECKING:
    from tests.insider.simulated import InsiderCluster


class LyingStandby(Process):
    """The insider as a standby: with an aggregator's certificate, it gives orders to the optimizer now and then."""

    MOST_ORDERS = 8

    cluster: InsiderCluster

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster, "standby")
        self.epoch = 0
        self.later(20 * self.cluster.liar.draw.random(), self._dial)

    def _dial(self) -> None:
        optimizer, leader, draw = self.cluster.optimizer, self.cluster.aggregator, self.cluster.liar.draw
        if self.cluster.liar.told and self.cluster.liar.afterwards is not Afterwards.AGAIN:
            return
        if (
            optimizer is None
            or not optimizer.alive
            or leader is None
            or self.cluster.commits < draw.randrange(4)
        ):
            self.later(1.0, self._dial)
            return
        link = Link(self.cluster, 0)
        link.connect(
            up_control=lambda epoch, body: self._arrive(optimizer, link, epoch, body),
            up_data=lambda header, payload: None,
            down_control=lambda epoch, body: (
                link.closed(body) if is_end(epoch) else self.cluster.liar.learn(body)
            ),
            down_data=lambda header, payload: None,
            lost_above=lambda reason: optimizer.link_lost(link),
            lost_below=lambda reason: None,
            ends=(optimizer, self),
        )
        self.cluster.links.append(link)
        self.epoch = min(max(0, leader.epoch + draw.choice((-1, 0, 1, 1, 1, 100))), (1 << 64) - 1)
        hello = pb.Hello(
            protocol=PROTOCOL_VERSION, role="aggregator", name="standby", incarnation="standby", shard_count=1,
            epoch_seen=self.epoch, cluster=CLUSTER,
        )  # fmt: skip
        liar = self.cluster.liar
        liar.learn(pb.Open(job=next(iter(self.cluster.jobs)), generation=1))
        liar.told.append(f"as a standby: {hello}")
        self.cluster.injected["standby: connects"] += 1
        link.up_control.send(self.epoch, hello)
        for _ in range(draw.randrange(self.MOST_ORDERS)):
            order: Any = liar.make_up(pb.OptimizerCommand.DESCRIPTOR)
            if order.HasField("initialise"):
                continue  # a holder of an aggregator's certificate can make a job fail by it
            liar.told.append(str(order))
            link.up_control.send(self.epoch, unwrap(order))
        self.later(draw.choice((0.5, 30.0)), self._hang_up, link)

    def _hang_up(self, link: Link) -> None:
        link.abandon("its time is over")
        self.later(10.0 + 60 * self.cluster.liar.draw.random(), self._dial)

    @staticmethod
    def _arrive(optimizer: SimulatedOptimizer, link: Link, epoch: int, body: Any) -> None:
        if not is_end(epoch):
            if body is None or (isinstance(body, pb.Hello) and link is optimizer.link):
                return
            try:
                body = passed_on(body)
            except Refused as refused:
                link.close(str(refused))
                optimizer.link_lost(link)
                return
        optimizer.ordered(link, epoch, body)
