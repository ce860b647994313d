"""What an aggregator's options may not say together is refused in one line, before anything is opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cluster.harness import tiermesh


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--shard", "--shards", "a:1"), "--shard and --shards: a shard does what its aggregator says"),
        (("--shard", "--optimizer", "a:1"), "--shard and --optimizer"),
        (
            ("--shards", "a:1", "--optimizer", "b:1"),
            "--shards and --optimizer: the optimizer's tensors are in",
        ),
        (("--shards", "a:1,a:1"), "--shards: a:1 given twice; each shard is a process of its own"),
        (("--shards", "a:1,b"), "--shards 'b'"),
    ],
)
def test_shards_that_make_no_sense(tmp_path: Path, arguments: tuple[Any, ...], line: str) -> None:
    done = tiermesh("aggregator", "--state-dir", tmp_path, "--listen", "127.0.0.1:0", *arguments)
    assert done.returncode == 2
    assert line in done.stderr.splitlines()[-1]
