"""The aggregator as the web daemon sees it: a client for each caller, and whether it is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from fastapi import Depends, Request

from protos import jobs_pb2
from services.jobs.client import JobsClient
from services.jobs.connection import Unreachable
from services.jobs.target import AggregatorTarget
from web.problems import away
from web.values import rfc3339

log = logging.getLogger("tiermesh.web")

LOOK_SECONDS = 1.0
"""Time between looks for an aggregator that is away."""
ANSWERS_OF_CONNECTION = 15
"""Largest number of answers that share a connection to the aggregator. It takes 32 calls at once on each, and further
ones wait there; an answer may make two at once."""


class Aggregator:
    """The aggregator that leads the cluster, among those that were named.

    Args:
        target: the aggregator, and its standbys; its token is not used.
        tell: called with whether an aggregator is reachable, when that changes.
        clock: Unix time in seconds.

    Attributes:
        away_since: Unix time since when none answers; None if one does, as far as is known.
    """

    def __init__(
        self, target: AggregatorTarget, tell: Callable[[bool], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._target = target
        self._connections = [_Connection(JobsClient(target))]
        self._client = self._connections[0].client
        self._tell = tell
        self._clock = clock
        self._lost = asyncio.Event()
        self._lost.set()
        self.away_since: float | None = clock()
        tell(False)

    async def close(self) -> None:
        """Close all connections."""
        for each in self._connections:
            await each.client.close()

    @contextmanager
    def connection(self) -> Iterator[JobsClient]:
        """Give a client without a token, for as long as an answer lasts."""
        found = min(self._connections, key=lambda each: each.answers)
        if found.answers >= ANSWERS_OF_CONNECTION:
            found = _Connection(JobsClient(self._target, own_connection=True))
            self._connections.append(found)
        found.answers += 1
        found.client.prefer(self._client.address)
        try:
            yield found.client
        finally:
            found.answers -= 1

    @contextmanager
    def calls(self, connection: JobsClient, token: str) -> Iterator[JobsClient]:
        """Give the client of a caller for one request, and note whether an aggregator answers (Problem if none)."""
        client = connection.for_caller(token)
        try:
            yield client
        except Unreachable as lost:
            raise away(str(lost), since=rfc3339(self.note_away())) from None
        self._client.prefer(client.address)

    async def check_token(self, token: str) -> None:
        """Check that the aggregator lets the owner of a token in.

        Raises:
            TiermeshError: it does not.
            Problem: none answers.
        """
        with self.connection() as connection, self.calls(connection, token) as client:
            await client.page(jobs_pb2.ListRequest(limit=1))

    def note_away(self) -> float:
        """Note that no aggregator answers, and return since when."""
        if self.away_since is None:
            self.away_since = self._clock()
            log.warning("aggregator %s: away; callers are told so until it is back", self._client.address)
            self._tell(False)
        self._lost.set()
        return self.away_since

    async def watch(self) -> None:
        """Look for an aggregator while none answers, until cancelled."""
        while True:
            await self._lost.wait()
            if self._client.is_connected():
                self._lost.clear()
                self.away_since = None
                log.info("aggregator: reachable")
                self._tell(True)
            else:
                await asyncio.sleep(LOOK_SECONDS)


@dataclass
class _Connection:
    """A connection to each address of the aggregator, and the number of answers that use it."""

    client: JobsClient
    answers: int = 0


async def _connection(request: Request) -> AsyncIterator[JobsClient]:
    aggregator: Aggregator = request.app.state.aggregator
    with aggregator.connection() as client:
        yield client


Connection: TypeAlias = Annotated[JobsClient, Depends(_connection, scope="request")]


async def _client(request: Request, connection: Connection) -> AsyncIterator[JobsClient]:
    aggregator: Aggregator = request.app.state.aggregator
    with aggregator.calls(connection, request.state.token) as client:
        yield client


Client: TypeAlias = Annotated[JobsClient, Depends(_client, scope="function")]
"""Client of a request's caller. An outage that ends the request is noted; what streams notes none."""
