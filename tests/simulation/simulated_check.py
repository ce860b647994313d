"""A person's check of meshes and links in a simulated aggregator: orders to workers, their answers, and its end.

As in the service, a check asks idle workers for their meshes and then one after another for its link, waits for each
answer with a limit, and ends early if the person hangs up.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import TYPE_CHECKING

from aggregator.cluster_check import ANSWER_SECONDS, MESH_SECONDS
from aggregator.core.events import ClusterCheckBegan, ClusterCheckEnded
from protos import cluster_pb2 as pb
from services.protocol.envelope import CheckOrder, CheckReport
from tests.simulation.job_model import require

if TYPE_CHECKING:
    from tests.simulation.simulated_aggregator import SimulatedAggregator

FREEZES_SECONDS = 120.0
"""Time by which freezes of the aggregator may delay the end of a check."""


class SimulatedCheck:
    """A check from its beginning to its end.

    Args:
        aggregator: the aggregator.
        sessions: the sessions of idle workers.
        hangs_up_after_seconds: time after which the person hangs up.
    """

    def __init__(
        self, aggregator: SimulatedAggregator, sessions: Iterable[int], hangs_up_after_seconds: float
    ) -> None:
        self._aggregator = aggregator
        self.sessions = frozenset(sessions)
        self._numbers = count(1)
        self._awaited: dict[int, int] = {}  # session by number of the order
        self._links_left = sorted(self.sessions)
        limit_seconds = MESH_SECONDS + ANSWER_SECONDS * len(self._links_left) + FREEZES_SECONDS
        self._ends_before_seconds = aggregator.cluster.loop.now + limit_seconds
        self._over = False
        aggregator.later(hangs_up_after_seconds, self._end)

    def begin(self) -> None:
        """Begin. Without workers it ends at once."""
        self._aggregator.feed(ClusterCheckBegan(tuple(sorted(self.sessions))))
        for session in list(self._links_left):
            self._ask(session, pb.CheckMesh(number=next(self._numbers)), MESH_SECONDS)
        self._go_on()

    def require_an_end(self) -> None:
        """Check that the check has not outlived its limits."""
        now = self._aggregator.cluster.loop.now
        require(now < self._ends_before_seconds, f"a check waits for the answers {self._awaited}")

    def take_report(self, report: CheckReport) -> None:
        """Take a worker's answer. It may come late, or twice."""
        self._awaited.pop(report.number, None)
        self._go_on()

    def worker_lost(self, session: int) -> None:
        """Expect no more of a worker."""
        self._awaited = {number: each for number, each in self._awaited.items() if each != session}
        self._go_on()

    def _ask(self, session: int, order: CheckOrder, limit_seconds: float) -> None:
        link = self._aggregator.sessions.get(session)
        if link is not None:
            self._awaited[order.number] = session
            link.down_control.send(self._aggregator.epoch, order)
            self._aggregator.later(limit_seconds, self._give_up, order.number)

    def _give_up(self, number: int) -> None:
        if self._awaited.pop(number, None) is not None:
            self._go_on()

    def _go_on(self) -> None:
        """Ask for the next link once nothing is awaited, and end after the last one."""
        while not self._over and not self._awaited:
            if not self._links_left:
                self._end()
                return
            order = pb.CheckLink(number=next(self._numbers))
            self._ask(self._links_left.pop(0), order, ANSWER_SECONDS)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            self._aggregator.check = None
            self._aggregator.feed(ClusterCheckEnded())
