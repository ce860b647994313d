"""Table of permissions: a row for each RPC method of every role, and for each other request that is checked.

A certificate or a token names the kind of its owner (`identity.py`, `tokens.py`). `enforcement.py` checks every call
against the table, on every port. A method without a row is refused to all callers.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum


class CallerKind(Enum):
    """Kind of a caller; the value is its name in certificates and in files of tokens."""

    WORKER = "worker"
    AGGREGATOR = "aggregator"
    OPTIMIZER = "optimizer"
    SHARD = "shard"
    PERSON = "person"
    DEVELOPER = "developer"
    ADMIN = "admin"
    METRICS = "metrics"
    WEB = "web"


Callers = frozenset[CallerKind]

WORKER: Callers = frozenset({CallerKind.WORKER})
AGGREGATOR: Callers = frozenset({CallerKind.AGGREGATOR})
ADMIN: Callers = frozenset({CallerKind.ADMIN})
PEOPLE: Callers = ADMIN | {CallerKind.PERSON, CallerKind.DEVELOPER}
ALL_BUT_METRICS: Callers = frozenset(CallerKind) - {CallerKind.METRICS}

READ_METRICS = "GET /metrics"
"""Row of a scrape, which is no RPC."""
CANCEL_OTHERS_JOB = "/tiermesh.Jobs/Cancel of another owner's job"
"""Row of a Cancel for another person's job; the row of Cancel itself is checked before."""
PAUSE_OTHERS_JOB = "/tiermesh.Jobs/Pause of another owner's job"
"""Row of a Pause for another person's job; the row of Pause itself is checked before."""
RESUME_OTHERS_JOB = "/tiermesh.Jobs/Resume of another owner's job"
"""Row of a Resume for another person's job; the row of Resume itself is checked before."""
SET_PRIORITY_OF_OTHERS_JOB = "/tiermesh.Jobs/SetPriority of another owner's job"
"""Row of a SetPriority for another person's job; the row of SetPriority itself is checked before."""
RAISE_PRIORITY = "a priority above 0"
"""Row of a Submit, Continue or SetPriority that gives a job a priority above 0."""
SEND_CODE = "a job that brings its code along"
"""Row of a Submit or Continue of a job whose code workers import: it runs with the rights of their user."""
TRUST_IN_OTHERS_JOB = "/tiermesh.Jobs/Trust in another owner's job"
"""Row of a Trust for another person's job; the row of Trust itself is checked before."""
PRUNE_OTHERS_JOB = "/tiermesh.Jobs/Prune of another owner's job"
"""Row of a Prune for another person's job; the row of Prune itself is checked before."""

FILES_OF_AGGREGATOR = "/tiermesh.Files of an aggregator"
"""Row of the files that an aggregator keeps; the row of the method is checked before."""
FILES_OF_DAEMON = "/tiermesh.Files of an optimizer or a shard"
"""Row of the files that an optimizer or a shard keeps."""
READ_FILES = "/tiermesh.Files/Read of an uploaded file"
"""Row of a Read from the store; the row of Read itself is checked before."""
READ_CHECKPOINTS = "/tiermesh.Files/Read of a checkpoint"
"""Row of a Read from a checkpoint."""

PERMISSIONS: Mapping[str, Callers] = {
    "/tiermesh.Cluster/Attend": WORKER,
    "/tiermesh.Cluster/Exchange": WORKER,
    "/tiermesh.Cluster/MeasureLink": WORKER,
    "/tiermesh.Optimizer/Attend": AGGREGATOR,
    "/tiermesh.Optimizer/Exchange": AGGREGATOR,
    "/tiermesh.Optimizer/MeasureLink": AGGREGATOR,
    "/tiermesh.Optimizer/Checkpoint": AGGREGATOR,
    "/tiermesh.Optimizer/ListCheckpoints": AGGREGATOR,
    "/tiermesh.Optimizer/RemoveCheckpoints": AGGREGATOR,
    "/tiermesh.Shard/Attend": AGGREGATOR,
    "/tiermesh.Shard/MeasureLink": AGGREGATOR,
    "/tiermesh.Pipeline/Pass": WORKER,
    "/tiermesh.Pipeline/MeasureLink": WORKER,
    "/tiermesh.Files/Missing": WORKER | AGGREGATOR | PEOPLE,
    "/tiermesh.Files/Write": WORKER | AGGREGATOR | PEOPLE,
    "/tiermesh.Files/Read": WORKER | AGGREGATOR | PEOPLE,
    READ_FILES: WORKER | AGGREGATOR,
    READ_CHECKPOINTS: AGGREGATOR | PEOPLE,
    FILES_OF_AGGREGATOR: WORKER | PEOPLE,
    FILES_OF_DAEMON: AGGREGATOR,
    "/tiermesh.Jobs/Submit": PEOPLE,
    "/tiermesh.Jobs/Continue": PEOPLE,
    "/tiermesh.Jobs/List": PEOPLE,
    "/tiermesh.Jobs/Get": PEOPLE,
    "/tiermesh.Jobs/Spec": PEOPLE,
    "/tiermesh.Jobs/Cancel": PEOPLE,
    CANCEL_OTHERS_JOB: ADMIN,
    "/tiermesh.Jobs/Pause": PEOPLE,
    PAUSE_OTHERS_JOB: ADMIN,
    "/tiermesh.Jobs/Resume": PEOPLE,
    RESUME_OTHERS_JOB: ADMIN,
    "/tiermesh.Jobs/SetPriority": PEOPLE,
    SET_PRIORITY_OF_OTHERS_JOB: ADMIN,
    RAISE_PRIORITY: ADMIN,
    SEND_CODE: ADMIN | {CallerKind.DEVELOPER},
    "/tiermesh.Jobs/Trust": PEOPLE,
    TRUST_IN_OTHERS_JOB: ADMIN,
    "/tiermesh.Jobs/Prune": PEOPLE,
    PRUNE_OTHERS_JOB: ADMIN,
    "/tiermesh.Jobs/Watch": PEOPLE,
    "/tiermesh.Jobs/Logs": PEOPLE,
    "/tiermesh.Jobs/Metrics": PEOPLE,
    "/tiermesh.Jobs/Checkpoint": PEOPLE,
    "/tiermesh.Jobs/Status": PEOPLE,
    "/tiermesh.Jobs/Check": PEOPLE,
    "/grpc.health.v1.Health/Check": ALL_BUT_METRICS,
    "/grpc.health.v1.Health/List": ALL_BUT_METRICS,
    "/grpc.health.v1.Health/Watch": ALL_BUT_METRICS,
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": PEOPLE,
    READ_METRICS: PEOPLE | {CallerKind.METRICS},
}
"""Kinds of callers that may call a method."""


def allowed_callers(method: str) -> Callers:
    """Return the kinds of callers that may call a method; empty for one that has no row.

    Args:
        method: `/package.Service/Method`, or another key of the table.
    """
    return PERMISSIONS.get(method, frozenset())
