"""The aggregator as the web daemon sees it: a client for each caller, and whether it is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, TypeAlias

from fastapi import Depends, Request

from services.jobs.client import JobsClient
from services.jobs.connection import Unreachable

log = logging.getLogger("tiermesh.web")

LOOK_SECONDS = 1.0
"""Time between looks for an aggregator that is away."""


class Aggregator:
    """The aggregator that leads the cluster, among those that were named.

    Args:
        client: client without a token, whose connections all callers share.
        tell: called with whether an aggregator is reachable, when that changes.
        clock: Unix time in seconds.

    Attributes:
        away_since: Unix time since when none answers; None if one does, as far as is known.
    """

    def __init__(
        self, client: JobsClient, tell: Callable[[bool], None], clock: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._tell = tell
        self._clock = clock
        self._lost = asyncio.Event()
        self._lost.set()
        self.away_since: float | None = clock()
        tell(False)

    @contextmanager
    def calls(self, token: str) -> Iterator[JobsClient]:
        """Give the client of a caller for one request, and note whether an aggregator answered."""
        client = self._client.for_caller(token)
        try:
            yield client
        except Unreachable:
            self.note_away()
            raise
        self._client.prefer(client.address)

    def note_away(self) -> None:
        """Note that no aggregator answers."""
        if self.away_since is None:
            self.away_since = self._clock()
            log.warning("aggregator %s: away; callers are told so until it is back", self._client.address)
            self._tell(False)
        self._lost.set()

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


async def _client(request: Request) -> AsyncIterator[JobsClient]:
    aggregator: Aggregator = request.app.state.aggregator
    with aggregator.calls(request.state.token) as client:
        yield client


Client: TypeAlias = Annotated[JobsClient, Depends(_client, scope="function")]
"""Client of a request's caller. An outage that ends the request is noted; what streams notes none."""
