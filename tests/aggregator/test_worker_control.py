"""The address at which workers of other stages reach a worker."""

from __future__ import annotations

import pytest

from aggregator.worker_control import find_pipeline_address
from protos.cluster_pb2 import Hello
from services.errors import Refusal


@pytest.mark.parametrize(
    ("port", "host", "caller", "expected"),
    [
        (0, "", "10.0.0.7:5000", ""),
        (0, "box", "10.0.0.7:5000", ""),
        (7080, "", "10.0.0.7:5000", "10.0.0.7:7080"),
        (7080, "box-1.example", "10.0.0.7:5000", "box-1.example:7080"),
        (7080, "", "[fd00::7]:5000", "[fd00::7]:7080"),
        (7080, "fd00::8", "10.0.0.7:5000", "[fd00::8]:7080"),
        (7080, "127.0.0.1", "10.0.0.7:5000", ""),
        (7080, "127.0.0.1", "[::1]:5000", "127.0.0.1:7080"),
        (7080, "", "unix-abstract:tiermesh", ""),
        (7080, "box", "unix-abstract:tiermesh", "box:7080"),
    ],
)
def test_the_host_is_the_one_that_a_worker_names_or_else_the_one_it_comes_from(
    port: int, host: str, caller: str, expected: str
) -> None:
    assert find_pipeline_address(Hello(name="w", pipeline_host=host, pipeline_port=port), caller) == expected


@pytest.mark.parametrize(
    ("port", "host", "shown"),
    [(70000, "box", "box:70000"), (7080, "a\nb", "a\\nb")],
)
def test_what_is_no_address_is_refused_with_its_text(port: int, host: str, shown: str) -> None:
    found = find_pipeline_address(Hello(name="w", pipeline_host=host, pipeline_port=port), "10.0.0.7:5000")
    assert isinstance(found, Refusal)
    assert "worker w" in str(found)
    assert shown in str(found)
