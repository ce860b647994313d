"""Methods of one request: served as the .proto file declares them; requests that can't be parsed are refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import grpc
import pytest

from protos import jobs_pb2 as jobs
from services.transport.request_handlers import service_handler
from services.transport.security import Security
from services.transport.server import open_channel
from tests.support.fake_aggregator import FakeAggregator, serving

JOBS = jobs.DESCRIPTOR.services_by_name["Jobs"]


def test_each_method_has_its_name_and_message_types() -> None:
    servicer = SimpleNamespace(**{method.name: object() for method in JOBS.methods})
    served = service_handler(JOBS, servicer)
    streams = set()
    for method in JOBS.methods:
        handler = served.service(SimpleNamespace(method=f"/tiermesh.Jobs/{method.name}"))
        assert not handler.request_streaming
        call = handler.unary_stream if handler.response_streaming else handler.unary_unary
        assert call is getattr(servicer, method.name)
        if handler.response_streaming:
            streams.add(method.name)
    assert streams == {"Watch", "Logs", "Metrics", "Prune", "Check"}
    handler = served.service(SimpleNamespace(method="/tiermesh.Jobs/Get"))
    assert handler.request_deserializer(jobs.JobRequest(job="a").SerializeToString()) == jobs.JobRequest(
        job="a"
    )
    assert handler.response_serializer(jobs.Job(id="a")) == jobs.Job(id="a").SerializeToString()
    assert served.service(SimpleNamespace(method="/tiermesh.Jobs/Other")) is None


def test_a_missing_method_is_an_error_before_the_server_starts() -> None:
    with pytest.raises(AttributeError, match="Submit"):
        service_handler(JOBS, SimpleNamespace())


@pytest.mark.parametrize("method", ["Get", "Logs"])
def test_bytes_that_are_no_request_are_refused(method: str) -> None:
    async def scenario(address: str) -> None:
        async with open_channel(address, Security()) as channel:
            path = f"/tiermesh.Jobs/{method}"
            whole = jobs.JobRequest(job="job-1").SerializeToString()
            for content in (whole[:4], b"\xff\xff"):
                call = channel.unary_stream(path)(content, timeout=20)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call.read()
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                details = str(refused.value.details())
                assert details.startswith(f"{path}: {len(content)} bytes")
            assert isinstance(await channel.unary_stream(path)(whole, timeout=20).read(), bytes)

    fake = FakeAggregator()
    fake.jobs["job-1"] = jobs.Job(id="job-1")
    with serving(fake):
        asyncio.run(scenario(fake.address))
