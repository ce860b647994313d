"""Clients of the HTTP API in a process of their own, by the package `tiermesh`: some follow a job, one reads metrics.

Each line of standard input is an order, and each is answered by a line:

    follow JOB      all clients follow a job; answered once each has had an event
    read JOB        one more reads a job's whole history; answered with the number of its steps
    leave           all stop following
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack

import tiermesh

CLIENTS = 50
LIMIT_SECONDS = 60.0


async def follow(client: tiermesh.AsyncClient, job: str, begun: asyncio.Event) -> None:
    """Take a job's events."""
    async for _ in client.follow(job):
        begun.set()


async def serve(url: str, token: str) -> None:
    """Carry out orders until standard input ends."""
    following: list[asyncio.Task[None]] = []
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(tiermesh.AsyncClient(url, token=token))
            for _ in range(CLIENTS + 1)
        ]
        while words := (await asyncio.to_thread(sys.stdin.readline)).split():
            answer = "done"
            if words[0] == "follow":
                events = [asyncio.Event() for _ in range(CLIENTS)]
                following = [
                    asyncio.create_task(follow(client, words[1], begun))
                    for client, begun in zip(clients[1:], events, strict=True)
                ]
                for begun in events:
                    await asyncio.wait_for(begun.wait(), LIMIT_SECONDS)
            elif words[0] == "read":
                answer = str(len((await clients[0].metrics(words[1]))["step"]))
            else:
                for task in following:
                    task.cancel()
                await asyncio.gather(*following, return_exceptions=True)
            print(answer, flush=True)


if __name__ == "__main__":
    asyncio.run(serve(*sys.argv[1:]))
