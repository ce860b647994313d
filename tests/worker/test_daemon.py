"""The host that a worker names to the workers of other stages."""

from __future__ import annotations

import pytest

from services.errors import Refused
from services.transport.security import Security
from worker.daemon import WorkerOptions


def options(listen: str, advertise: str = "") -> WorkerOptions:
    return WorkerOptions(
        "w", listen, "127.0.0.1:0", Security(insecure=True), aggregator="a:1", advertise=advertise
    )


@pytest.mark.parametrize(
    ("listen", "advertise", "expected"),
    [
        ("127.0.0.1:0", "", "127.0.0.1"),
        ("10.0.0.7:7072", "", "10.0.0.7"),
        ("0.0.0.0:7072", "", ""),
        ("[::]:7072", "", ""),
        ("0.0.0.0:7072", "box-1.example", "box-1.example"),
        ("[::]:7072", "fd00::8", "fd00::8"),
    ],
)
def test_the_host_is_the_advertised_or_else_the_one_of_listen(
    listen: str, advertise: str, expected: str
) -> None:
    assert options(listen, advertise).pipeline_host == expected


@pytest.mark.parametrize("advertise", ["box 1", "box:7072:1", "a/b", "0.0.0.0", "::"])
def test_what_is_no_host_is_refused(advertise: str) -> None:
    with pytest.raises(Refused, match="--advertise"):
        assert options("0.0.0.0:7072", advertise).pipeline_host
