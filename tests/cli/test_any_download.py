"""Downloads of any content write nothing outside the folder, and no more bytes than announced."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cli.client import JobsClient
from cli.download import MAX_FILES, _receive
from cli.options import AggregatorTarget
from protos.cluster_pb2 import FilePart
from services.errors import TiermeshError
from services.transport.security import Security
from tests.support.anything import is_one_line

NAMES = st.sampled_from(
    [
        "a",
        "./a",
        "a/b",
        "..",
        "../x",
        "/etc/x",
        "a/../../x",
        "",
        ".",
        "a\\b",
        "\0",
        "~",
        "n" * 300,
        "a//b",
        "\n",
    ]
) | st.text(alphabet="ab./\\", max_size=8)
PARTS = st.lists(
    st.builds(
        FilePart,
        path=NAMES,
        data=st.binary(max_size=20),
        size=st.integers(0, 20) | st.just((1 << 64) - 1),
        step=st.sampled_from([5, (1 << 64) - 1]),
    ),
    max_size=5,
)


class Sender(JobsClient):
    """Client whose aggregator sends these parts for every request."""

    def __init__(self, parts: Sequence[FilePart]) -> None:
        super().__init__(AggregatorTarget("127.0.0.1:1", Security(), 1.0))
        self._parts = parts

    async def download(self, *_: Any) -> AsyncIterator[FilePart]:
        for part in self._parts:
            yield part


async def receive(parts: Sequence[FilePart], folder: Path) -> None:
    async with Sender(parts) as sender:
        await _receive(sender, "a", None, folder)


@settings(max_examples=150, deadline=None)
@given(parts=PARTS)
@example(parts=[FilePart(path="a", data=b"12345", size=4)])
@example(parts=[FilePart(path=f"f{number}") for number in range(MAX_FILES + 1)])
def test_any_parts(tmp_path_factory: pytest.TempPathFactory, parts: list[FilePart]) -> None:
    outer = tmp_path_factory.mktemp("outer")
    folder = outer / "inner"
    folder.mkdir()
    try:
        asyncio.run(receive(parts, folder))
    except TiermeshError as error:
        assert is_one_line(error)
    except OSError:
        pass  # a name that this file system can't have; the command reports it
    else:
        assert len({part.path for part in parts}) <= MAX_FILES
        assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= 20 * len(parts)
    assert list(outer.iterdir()) == [folder]
