"""`tiermesh check --cluster` at the aggregator: it orders each check, one link at a time, and collects the results.

Only idle workers and their links are checked, and they serve no job until the check has ended. The aggregator's own
links are checked while no job runs. The bytes take streams of their own (plane/link_check), so no core but the queue's
knows of a check.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeAlias

import grpc

from aggregator.core.events import ClusterCheckBegan, ClusterCheckEnded
from aggregator.core.membership.members import Member
from plane.link_check.measure import LINK_SECONDS, LinkPeer, check_link
from plane.link_check.serve import serve_link_check
from plane.streams.data_streams import DataStreamConnector
from plane.streams.exchange_server import read_incarnation
from plane.streams.worker_sessions import WorkerSession, WorkerSessions
from protos import cluster_pb2 as pb
from protos.checks_pb2 import LinkReport, MeshReport
from protos.jobs_pb2 import CheckedLink, CheckedMesh, CheckPlan, CheckRequest, CheckResult
from services.config.device import check_backend
from services.errors import Failed, NotYet, Refused
from services.printable import counted
from services.protocol.envelope import CheckOrder, CheckReport
from services.tasks import start_awaited
from services.transport.access.enforcement import check_daemon
from services.transport.links import LinkClosed, run_until_first_ends
from services.transport.security import Security

log = logging.getLogger("tiermesh.aggregator")

CHECK_SECONDS = 1800.0
"""Longest check; links that are not done by then are reported as not checked."""
MESH_SECONDS = 180.0
"""Longest wait for the check of a worker's mesh, which includes opening its devices."""
ANSWER_SECONDS = LINK_SECONDS + 15.0
"""Longest wait for a worker's report of a link, which it measures within `LINK_SECONDS`."""

MOST_NEIGHBOURS = 63
"""Maximum number of other workers to which a worker's links are tried: in a row of that many, each to each."""

_MAX_SIDE = 1024  # rows or columns of a mesh


LinkMeasure: TypeAlias = tuple[CheckedLink, Callable[[], Awaitable[LinkReport]]]
"""A link, without a report, and what measures it."""


class PeerLink(Protocol):
    """A link of this process to an optimizer or a shard."""

    def peer(self) -> LinkPeer:
        """Return the other end.

        Raises:
            Failed: it is not connected.
        """


@dataclass(frozen=True)
class OwnLink:
    """A link that this process opens.

    Attributes:
        link: the link.
        label: the other end, for people.
        role: role of the other end: optimizer or shard.
        method: method that the other end serves rounds by.
    """

    link: PeerLink
    label: str
    role: str
    method: str


class ClusterCheck:
    """Checks of an aggregator's cluster, one at a time.

    Args:
        name: name of the aggregator.
        sessions: the sessions of the connected workers.
        shards: `HOST:PORT` of each shard; empty if workers exchange tensors with this process.
        own_links: links that this process opens.
        security: the certificates to use.
        shared_memory: whether payloads may go through memory shared with a peer.
        members: the core's workers by session, which say which job they serve.
        feed: tells the core that a check begins or ends.
    """

    def __init__(
        self,
        *,
        name: str,
        sessions: WorkerSessions,
        shards: Sequence[str],
        own_links: Sequence[OwnLink],
        security: Security,
        shared_memory: bool,
        members: Mapping[int, Member],
        feed: Callable[[ClusterCheckBegan | ClusterCheckEnded], None],
    ) -> None:
        self._name = name
        self._sessions = sessions
        self._shards = shards
        self._own_links = own_links
        self._security = security
        self._shared_memory = shared_memory
        self._members = members
        self._feed = feed
        self._over: asyncio.Event | None = None  # set at the end of the check that is under way
        self._numbers = count(1)
        self._awaited: dict[int, asyncio.Future[CheckReport]] = {}  # by number of the order

    # ---- a check ----

    async def run(self, request: CheckRequest) -> AsyncGenerator[CheckResult, None]:
        """Check the meshes of idle workers at once, then one link after another; yield each result.

        Workers that a process has joined have no mesh.

        The check ends with the iterator.

        Raises:
            Refused: the request asks for an impossible mesh or backend.
            NotYet: all workers serve jobs, or another check is under way.
        """
        _check_request(request)
        serving = {session: member.job for session, member in self._members.items() if member.job}
        joined = {session for session, member in self._members.items() if member.external_job}
        sessions = [each for each in self._sessions.all() if each.number not in serving.keys() | joined]
        if serving and not sessions:
            jobs = ", ".join(sorted(set(serving.values())))
            raise NotYet(
                f"all workers serve jobs ({jobs}), and a check would take their bandwidth; check again when some are "
                "idle"
            )
        if self._over is not None:
            raise NotYet("another check of this cluster is under way; check again when it has ended")
        self._over = asyncio.Event()
        self._feed(ClusterCheckBegan(tuple(each.number for each in sessions)))
        own_links = () if serving else self._own_links
        log.info("a check of %s begins", counted(len(sessions), "idle worker"))
        results: asyncio.Queue[CheckResult | None] = asyncio.Queue()
        links = list(self._links(sessions, own_links))
        plan = CheckPlan(meshes=len(sessions), links=len(links), busy=len(serving))
        results.put_nowait(CheckResult(plan=plan))
        task = start_awaited(self._check_all(request, sessions, links, results.put_nowait))
        task.add_done_callback(lambda _: results.put_nowait(None))
        try:
            while (result := await results.get()) is not None:
                yield result
            await task  # raises its error
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._over.set()
            self._over = None
            log.info("the check has ended")
            self._feed(ClusterCheckEnded())

    async def _check_all(
        self,
        request: CheckRequest,
        sessions: Sequence[WorkerSession],
        links: Sequence[LinkMeasure],
        tell: Callable[[CheckResult], None],
    ) -> None:
        deadline = asyncio.get_running_loop().time() + CHECK_SECONDS
        order = partial(pb.CheckMesh, rows=request.rows, columns=request.columns, backend=request.backend)
        meshes = [start_awaited(self._check_mesh(session, order)) for session in sessions]
        try:
            for mesh in asyncio.as_completed(meshes):
                tell(CheckResult(mesh=await mesh))
        finally:
            for each in meshes:
                each.cancel()
        for found, measure in links:
            left_seconds = deadline - asyncio.get_running_loop().time()
            try:
                found.report.CopyFrom(await asyncio.wait_for(measure(), max(left_seconds, 0)))
            except asyncio.TimeoutError:
                found.report.problem = f"not checked: the check has taken {CHECK_SECONDS:g} s; check again"
            tell(CheckResult(link=found))

    def _links(
        self, sessions: Sequence[WorkerSession], own_links: Sequence[OwnLink]
    ) -> Iterator[LinkMeasure]:
        """Yield each link, without a report, and what measures it."""
        ends = [
            (f"{index} of {len(self._shards)} ({each})", "shard") for index, each in enumerate(self._shards)
        ]
        for session in sessions:
            for index, (peer, role) in enumerate(ends or [(self._name, "aggregator")]):
                found = CheckedLink(name=session.name, role="worker", peer=peer, peer_role=role)
                yield found, partial(self._check_worker_link, session, index)
        reachable = [each for each in sessions if each.pipeline_address]
        for index, session in enumerate(reachable):
            for other in (reachable[index + 1 :] + reachable[:index])[:MOST_NEIGHBOURS]:
                found = CheckedLink(name=session.name, role="worker", peer=other.name, peer_role="worker")
                yield found, partial(self._check_neighbours_link, session, other)
        for own in own_links:
            found = CheckedLink(name=self._name, role="aggregator", peer=own.label, peer_role=own.role)
            yield found, partial(self._check_own_link, own)

    async def _check_mesh(self, session: WorkerSession, order: Callable[..., pb.CheckMesh]) -> CheckedMesh:
        try:
            answer = await self._ask(session, order(number=next(self._numbers)), MESH_SECONDS)
            report = answer.report if isinstance(answer, pb.MeshChecked) else MeshReport()
        except Failed as failed:
            report = MeshReport(problem=str(failed))
        return CheckedMesh(name=session.name, report=report)

    async def _check_worker_link(self, session: WorkerSession, index: int) -> LinkReport:
        return await self._order_link(session, pb.CheckLink(shard=index))

    async def _check_neighbours_link(self, session: WorkerSession, other: WorkerSession) -> LinkReport:
        return await self._order_link(session, pb.CheckLink(peer=other.name, address=other.pipeline_address))

    async def _order_link(self, session: WorkerSession, order: pb.CheckLink) -> LinkReport:
        order.number = next(self._numbers)
        try:
            answer = await self._ask(session, order, ANSWER_SECONDS)
        except Failed as failed:
            return LinkReport(problem=str(failed))
        return answer.report if isinstance(answer, pb.LinkChecked) else LinkReport()

    async def _check_own_link(self, own: OwnLink) -> LinkReport:
        try:
            peer = own.link.peer()
        except Failed as failed:
            return LinkReport(problem=str(failed))
        connector = DataStreamConnector(own.method, self._security)
        return await check_link(connector, peer, shared_memory=self._shared_memory)

    async def _ask(self, session: WorkerSession, order: CheckOrder, limit_seconds: float) -> CheckReport:
        """Send a worker an order and return its report.

        Raises:
            Failed: it is lost, or is late.
        """
        report: asyncio.Future[CheckReport] = asyncio.get_running_loop().create_future()
        lost = start_awaited(session.mailbox.wait_closed())
        self._awaited[order.number] = report
        session.send_order(order)
        try:
            await asyncio.wait((report, lost), timeout=limit_seconds, return_when=asyncio.FIRST_COMPLETED)
            if report.done():
                return report.result()
            if lost.done():
                raise Failed(f"worker {session.name} was lost during the check: {lost.exception()}")
            raise Failed(
                f"worker {session.name} has not answered within {limit_seconds:g} s; look at its log, and reset its "
                "devices if they hang"
            )
        finally:
            lost.cancel()
            del self._awaited[order.number]

    def take_report(self, report: CheckReport) -> None:
        """Take a worker's report; a late one is dropped."""
        awaited = self._awaited.get(report.number)
        if awaited is not None and not awaited.done():
            awaited.set_result(report)

    # ---- streams of rounds from workers ----

    async def serve(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serve `tiermesh.Cluster/MeasureLink`."""
        session = self._sessions.of_incarnation(read_incarnation(context))
        if session is None or self._over is None:
            text = "no check of the cluster is under way; start one with `tiermesh check --cluster`"
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, text)
            return
        check_daemon("worker", session.name)
        await serve_link_check(
            context,
            f"worker {session.name}",
            shared_memory=self._shared_memory,
            until=run_until_first_ends(session.mailbox.wait_closed(), _end_with(self._over)),
        )


async def _end_with(over: asyncio.Event) -> None:
    await over.wait()
    raise LinkClosed("the check is over")


def _check_request(request: CheckRequest) -> None:
    """Check that a request asks for a possible mesh.

    Raises:
        Refused: it does not.
    """
    check_backend(request.backend)
    sides = request.rows, request.columns
    if any(sides) and not all(1 <= side <= _MAX_SIDE for side in sides):
        raise Refused(f"mesh_shape {list(sides)}: expected rows and columns of 1 to {_MAX_SIDE}, or 0 and 0")
