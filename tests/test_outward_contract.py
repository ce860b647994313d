"""Check that no outward contract differs from its golden file in tests/golden/outward.

A golden entry changes only with an issue that asks for it; `python -m tests.support.outward` then rewrites the files.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.outward import SECTIONS, dump
from tests.support.outward.common import GOLDEN

ABSENT = "absent"
MAX_SHOWN = 40


def check(section: str, now: str) -> None:
    golden = json.loads((GOLDEN / f"{section}.json").read_text())
    found = list(find_differences(section, golden, json.loads(now)))
    more = [f"and {len(found) - MAX_SHOWN} more"] if len(found) > MAX_SHOWN else []
    if found:
        pytest.fail("\n".join(["the outward contract differs:", *found[:MAX_SHOWN], *more]), pytrace=False)


def find_differences(path: str, old: Any, new: Any) -> Iterator[str]:
    """Yield one line for each entry that differs: its path, the golden value, the value now."""
    if isinstance(old, list) and isinstance(new, list):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from find_differences(f"{path} > {key}", old.get(key, ABSENT), new.get(key, ABSENT))
    elif old != new or type(old) is not type(new):
        yield f"{path}: golden {_shorten(old)}, now {_shorten(new)}"


def _shorten(value: Any) -> str:
    text = value if value is ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else f"{text[:200]}..."


@pytest.mark.parametrize(
    "section",
    [pytest.param(name, marks=pytest.mark.long) if name == "local_run" else name for name in SECTIONS],
)
def test_contract_is_unchanged(section: str) -> None:
    check(section, dump(section))


def test_each_difference_is_named() -> None:
    old = {"same": 1, "gone": {"1": "uint32"}, "changed": [1, 2], "typed": True}
    new = {"same": 1, "changed": [1, 3], "typed": 1, "added": None}
    assert list(find_differences("rpc", old, new)) == [
        "rpc > added: golden absent, now null",
        "rpc > changed > 1: golden 2, now 3",
        'rpc > gone: golden {"1": "uint32"}, now absent',
        "rpc > typed: golden true, now 1",
    ]
