"""Waits until all daemons of a launch take part in its cluster, as the aggregator sees it.

A daemon's ready file says that it listens, and its gRPC health says no more. Who has joined tells more: each daemon has
answered, on the link that the job will use. So one that hangs after its start is found, and one that can't be reached.
"""

from __future__ import annotations

import asyncio

from cli.jobs import retry_unreachable
from cli.launch.plan import LaunchPlan
from cli.launch.sites import THIS_MACHINE
from services.errors import Failed
from services.jobs.client import JobsClient
from services.runtime.launcher import READY_SECONDS

_POLL_SECONDS = 0.1


async def wait_until_joined(
    client: JobsClient, plan: LaunchPlan, limit_seconds: float = READY_SECONDS
) -> None:
    """Wait until the aggregator answers and has its optimizer and all workers.

    Args:
        client: calls the aggregator.
        plan: ranks of the launch.
        limit_seconds: longest wait.

    Raises:
        Failed: a daemon has not joined in time; the first one is named.
    """
    missing = plan.aggregator
    found = "no answer"

    async def wait() -> None:
        nonlocal missing, found
        while True:
            status = await retry_unreachable(client.status)
            joined = {status.leader, status.optimizer, *(worker.name for worker in status.workers)}
            absent = [rank for rank in plan.ranks if rank.name not in joined and rank.role != "web"]
            if not absent:
                return
            missing = absent[-1]  # workers come first, and wait for the other roles
            found = status.optimizer if missing.role == "optimizer" else "not connected"
            await asyncio.sleep(_POLL_SECONDS)

    try:
        await asyncio.wait_for(wait(), limit_seconds)
    except asyncio.TimeoutError:
        raise Failed(
            f"host {missing.host or THIS_MACHINE}: rank {missing.number}, {missing.role}: has not joined aggregator "
            f"{client.address} within {limit_seconds:g} s ({found}); see its log, and that the hosts reach each other "
            "there"
        ) from None
