"""Requests that can't be parsed are refused in a line; all others are served as before."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from protos import jobs_pb2 as jobs
from services.transport.security import Security
from services.transport.server import open_channel
from tests.support.fake_aggregator import FakeAggregator, serving


@pytest.mark.parametrize("method", ["Get", "Logs"])
def test_bytes_that_are_no_request_are_refused_in_a_line(method: str) -> None:
    async def scenario(address: str) -> None:
        async with open_channel(address, Security()) as channel:
            path = f"/tiermesh.Jobs/{method}"
            whole = jobs.JobRequest(job="job-1").SerializeToString()
            for content in (whole[:4], b"\xff\xff"):
                call = channel.unary_stream(path)(content, timeout=20)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call.read()
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                said = f"{path}: {len(content)} bytes that are no request; were they damaged"
                assert str(refused.value.details()).startswith(said)
            assert isinstance(await channel.unary_stream(path)(whole, timeout=20).read(), bytes)

    fake = FakeAggregator()
    fake.jobs["job-1"] = jobs.Job(id="job-1")
    with serving(fake):
        asyncio.run(scenario(fake.address))
