"""A job's events as server-sent events, across outages of the aggregator and of the reader.

The id of an event is its time in milliseconds, and its number among the events of that millisecond. Each event is one
line of the job's log, so the lines behind an id are what its reader has missed.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from typing import NamedTuple, TypeVar

from protos import jobs_pb2
from services.errors import TiermeshError
from services.jobs.client import JobsClient
from services.jobs.connection import Unreachable
from services.tasks import start_awaited
from web.problems import problem_of, refused
from web.values import finite, job_values, rfc3339

HEARTBEAT_SECONDS = 15.0
RETRY_SECONDS = 1.0
"""Pause before an aggregator that is away is called again."""
MOST_MISSED_LINES = 10_000
"""Largest number of lines that a reader gets of what it has missed: the newest ones."""
HEARTBEAT = b": heartbeat\n\n"

_ENDED = frozenset({jobs_pb2.SUCCEEDED, jobs_pb2.FAILED, jobs_pb2.CANCELLED})
_ID = re.compile(r"([0-9]{1,15})\.([0-9]{1,9})", re.ASCII)
Item = TypeVar("Item")


class EventId(NamedTuple):
    """Place of an event among those of its job.

    Attributes:
        milliseconds: its time.
        number: its number among those of that millisecond, from 1; 0 for before all of them.
    """

    milliseconds: int
    number: int

    @classmethod
    def parse(cls, text: str) -> EventId:
        """Return the id in a Last-Event-ID header.

        Raises:
            Problem: it is none.
        """
        found = _ID.fullmatch(text.strip())
        if found is None:
            raise refused("Last-Event-ID", text, "an id of this stream", "send the last one, or leave it out")
        return cls(int(found[1]), int(found[2]))

    def following(self, unix_seconds: float) -> EventId:
        """Return the id of the next event, by its time."""
        milliseconds = round(unix_seconds * 1000)
        return EventId(milliseconds, self.number + 1 if milliseconds == self.milliseconds else 1)

    def __str__(self) -> str:
        return f"{self.milliseconds}.{self.number}"


async def follow(client: JobsClient, job: str, last: EventId | None) -> AsyncGenerator[bytes, None]:
    """Yield a job's events until it ends; before them those that a reader has missed since its last one.

    Nothing is yielded if the job has ended and there was nothing since.

    Raises:
        TiermeshError: there was no first event.
    """
    away = begun = False
    while True:
        try:
            async with aclosing(client.watch(job)) as events:
                first = True
                async for event in with_heartbeats(events):
                    if event is None:
                        yield HEARTBEAT
                        continue
                    if first:
                        first, away, job = False, False, event.job.id
                        missed = [each async for each in _missed(client, job, last)] if last else []
                        if event.job.state in _ENDED and last and not missed and not begun:
                            return
                        for identifier, text in missed:
                            last = identifier
                            yield text
                        # The state is no line of the log, so its id stands before the events of its millisecond.
                        last = max(last or EventId(0, 0), EventId(round(event.seconds * 1000), 0))
                    else:
                        assert last is not None
                        last = last.following(event.seconds)
                    begun = True
                    yield _format(event.kind, _values(event), str(last))
                    if event.job.state in _ENDED:
                        return
        except Unreachable as lost:
            if not begun:
                raise
            if not away:
                away = True
                yield _format("away", {"since": rfc3339(time.time()), "detail": str(lost)})
        except TiermeshError as error:
            if not begun:
                raise
            yield b"event: problem\ndata: " + problem_of(error).body() + b"\n\n"
            return
        async for _ in with_heartbeats(_pause()):
            yield HEARTBEAT


async def _pause() -> AsyncGenerator[None, None]:
    await asyncio.sleep(RETRY_SECONDS)
    return
    yield


async def with_heartbeats(
    items: AsyncGenerator[Item, None], seconds: float | None = None
) -> AsyncGenerator[Item | None, None]:
    """Yield items as they come, and None after each `HEARTBEAT_SECONDS` without one."""
    coming = None
    try:
        while True:
            coming = coming or start_awaited(anext(items))
            done, _ = await asyncio.wait({coming}, timeout=seconds or HEARTBEAT_SECONDS)
            if not done:
                yield None
                continue
            try:
                item = coming.result()
            except StopAsyncIteration:
                return
            coming = None
            yield item
    finally:
        if coming is not None:
            coming.cancel()
            await asyncio.wait({coming})


async def _missed(client: JobsClient, job: str, last: EventId) -> AsyncIterator[tuple[EventId, bytes]]:
    """Yield the newest lines of a job's log behind an event, with their ids."""
    seen = EventId(0, 0)
    async with aclosing(client.logs(jobs_pb2.LogsRequest(job=job, tail=MOST_MISSED_LINES))) as lines:
        async for line in lines:
            seen = seen.following(line.seconds)
            if seen > last:
                fields = {"time": rfc3339(line.seconds), "text": line.text}
                yield seen, _format("missed", fields, str(seen))


def _values(event: jobs_pb2.JobEvent) -> dict[str, object]:
    """Return an event as JSON values."""
    values: dict[str, object] = {
        "time": rfc3339(event.seconds),
        "text": event.text,
        "job": job_values(event.job),
    }
    values |= {
        name: getattr(event, name)
        for name in ("grad_norm", "learning_rate", "step_seconds")
        if event.HasField(name)
    }
    if event.HasField("split"):
        parts = ("compute_seconds", "wire_seconds", "update_seconds", "wait_seconds")
        values |= {name: getattr(event.split, name) for name in parts}
    if event.waited_for:
        values["waited_for"] = event.waited_for
    return finite(values)


def _format(kind: str, values: Mapping[str, object], event_id: str = "") -> bytes:
    # JSON text has no line ends, so nothing in it can begin a field of its own.
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {kind}\ndata: {json.dumps(values)}\n\n".encode()
