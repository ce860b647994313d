"""A service's methods are served as its .proto file has them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from protos import jobs_pb2 as jobs
from services.transport.rpc_handlers import handlers_of

JOBS = jobs.DESCRIPTOR.services_by_name["Jobs"]


def test_each_method_is_served_by_its_name_with_its_messages() -> None:
    servicer = SimpleNamespace(**{method.name: object() for method in JOBS.methods})
    served = handlers_of(JOBS, servicer)
    several = set()
    for method in JOBS.methods:
        handler = served.service(SimpleNamespace(method=f"/tiermesh.Jobs/{method.name}"))
        assert not handler.request_streaming
        call = handler.unary_stream if handler.response_streaming else handler.unary_unary
        assert call is getattr(servicer, method.name)
        if handler.response_streaming:
            several.add(method.name)
    assert several == {"Watch", "Logs", "Download"}
    handler = served.service(SimpleNamespace(method="/tiermesh.Jobs/Get"))
    assert handler.request_deserializer(jobs.JobRequest(job="a").SerializeToString()) == jobs.JobRequest(
        job="a"
    )
    assert handler.response_serializer(jobs.Job(id="a")) == jobs.Job(id="a").SerializeToString()
    assert served.service(SimpleNamespace(method="/tiermesh.Jobs/Other")) is None


def test_a_method_that_nothing_serves_is_missed_before_the_server_starts() -> None:
    with pytest.raises(AttributeError, match="Submit"):
        handlers_of(JOBS, SimpleNamespace())
