"""Outward contracts as JSON values, which a golden test compares with the files in tests/golden/outward.

A move or a renaming inside the product changes imports here, and nothing else. Messages are therefore built by field
number. The golden files contain no name of a message class or of a field.

    python -m tests.support.outward            rewrite the golden files
    python -m tests.support.outward SECTION    print one section
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.outward.arithmetic_bits import describe_arithmetic
from tests.support.outward.checkpoint import describe_checkpoint
from tests.support.outward.interface import describe_command, describe_config, describe_metrics
from tests.support.outward.messages import describe_rpc
from tests.support.outward.names import describe_names
from tests.support.outward.results import describe_local_run, describe_results
from tests.support.outward.wire import describe_wire

SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "metrics": describe_metrics,
    "config": describe_config,
    "command": describe_command,
    "rpc": describe_rpc,
    "wire": describe_wire,
    "checkpoint": describe_checkpoint,
    "arithmetic": describe_arithmetic,
    "names": describe_names,
    "results": describe_results,
    "local_run": describe_local_run,
}


def dump(section: str) -> str:
    """Return a section as the text of its golden file."""
    return json.dumps(SECTIONS[section](), sort_keys=True, indent=1, ensure_ascii=False) + "\n"
