"""A detached agent's watch over the job of its run: it stops the daemons when the job has ended, which frees the hosts.

Each agent asks the aggregator by itself, so none depends on another one.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from google.protobuf import json_format

from cli.jobs import ENDED, OUTAGE_SECONDS, retry_unreachable
from cli.launch.agent.protocol import RunOver, WatchJob
from protos import jobs_pb2
from services.errors import Refused, TiermeshError
from services.jobs.client import JobsClient
from services.jobs.connection import Unreachable
from services.jobs.target import AggregatorTarget
from services.printable import one_line
from services.protocol.plain_text import make_printable
from services.transport.security import Security

POLL_SECONDS = 5.0
_ANSWER_SECONDS = 10.0


class JobWatch:
    """Watch over the job of a run.

    Args:
        request: names the job and its aggregator.

    Raises:
        Refused: the certificate can't be used.
    """

    def __init__(self, request: WatchJob) -> None:
        cert, key, ca = map(Path, request.credentials) if request.credentials else (None, None, None)
        security = Security(cert, key, ca)
        self._target = AggregatorTarget(request.aggregator, security, _ANSWER_SECONDS)
        self._job, self._optimizer = request.job, request.optimizer

    async def check(self) -> None:
        """Ask for the job once.

        Raises:
            TiermeshError: this host can't reach the aggregator, or there is no such job.
        """
        async with JobsClient(self._target) as client:
            await client.job(self._job)

    async def wait(self) -> RunOver:
        """Return how the job has ended; or why it can't go on, after a limit, since daemons are not restarted."""
        could_go_on = time.monotonic()
        try:
            async with JobsClient(self._target) as client:
                while True:
                    job = await retry_unreachable(lambda: client.job(self._job))
                    if job.state in ENDED:
                        return RunOver(json_format.MessageToJson(job, indent=None), "")
                    missing = self._find_missing(await retry_unreachable(client.status))
                    now = time.monotonic()
                    if not missing:
                        could_go_on = now
                    elif now - could_go_on > OUTAGE_SECONDS:
                        return RunOver("", f"{missing} for {OUTAGE_SECONDS:g} s")
                    await asyncio.sleep(POLL_SECONDS)
        except Unreachable:
            address = self._target.address
            return RunOver("", f"aggregator {address} has not answered for {OUTAGE_SECONDS:g} s")
        except TiermeshError as error:
            return RunOver("", one_line(str(error)))

    def _find_missing(self, status: jobs_pb2.ClusterStatus) -> str:
        """Return what the job can't go on without; empty if nothing is missing."""
        if status.optimizer != self._optimizer:
            return f"no optimizer ({status.optimizer})"
        return "" if status.workers else "no workers"


def read_ended_job(text: str) -> jobs_pb2.Job:
    """Return the job in `RunOver.job`.

    Raises:
        Refused: the text has none.
    """
    try:
        job = json_format.Parse(text, jobs_pb2.Job())
    except json_format.ParseError as error:
        raise Refused(
            f"result of the run: {one_line(str(error), 150)}; install the same Tiermesh there"
        ) from None
    make_printable(job)
    return job
