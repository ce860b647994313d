"""Names that users and operators rely on: environment variables, loggers, timeouts, failpoints."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aggregator.service import AggregatorService
from aggregator.shards.service import ShardService
from aggregator.standby import StandbyService
from optimizer.service import OptimizerService
from plane.streams.shared_memory_link import SHARED_MEMORY_KEY
from services.instrumentation.failpoints import FAILPOINTS
from services.protocol.versions import PROTOCOL_VERSION
from services.tensors.kernels import arithmetic
from services.tensors.layout import CHUNK_ELEMENTS
from services.timeouts import TIMEOUTS_IN_HEARTBEATS
from services.transport.links import INCARNATION_KEY, SESSION_KEY
from tests.support.outward.common import (
    NOT_PRODUCT,
    ROOT,
)
from worker.service import WorkerService


def describe_names() -> dict[str, Any]:
    nodes = [node for path in _find_sources() for node in ast.walk(ast.parse(path.read_text()))]
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    services: tuple[Any, ...] = (
        AggregatorService,
        StandbyService,
        OptimizerService,
        ShardService,
        WorkerService,
    )
    roles = ("aggregator", "standby", "optimizer", "shard", "worker")
    return {
        "failpoints": sorted(FAILPOINTS),
        "timeouts in heartbeats": TIMEOUTS_IN_HEARTBEATS,
        "environment": sorted(text for text in texts if re.fullmatch(r"TIERMESH_[A-Z_]*[A-Z]", text)),
        "loggers": sorted(text for text in texts if re.fullmatch(r"tiermesh(\.[a-z]+)?", text)),
        "health": {role: list(kind.service_names) for role, kind in zip(roles, services, strict=True)},
        "metadata": [INCARNATION_KEY, SESSION_KEY, SHARED_MEMORY_KEY],
        "protocol version": PROTOCOL_VERSION,
        "elements": {"chunk": CHUNK_ELEMENTS, "block of the norm": arithmetic.BLOCK_ELEMENTS},
    }


def _find_sources() -> Iterator[Path]:
    for package in sorted(ROOT.glob("*/__init__.py")):
        if package.parent.name not in NOT_PRODUCT:
            yield from sorted(each for each in package.parent.rglob("*.py") if "_pb2" not in each.name)
