"""Times and jobs as the API has them: the fields of `tiermesh status --json`, with times as RFC 3339 in UTC."""

from __future__ import annotations

import math
from datetime import datetime, timezone
from typing import Any

from protos import jobs_pb2
from services.jobs.fields import job_fields

_TIMES = ("submitted", "started", "ended")


def rfc3339(unix_seconds: float) -> str:
    """Return a time, to the millisecond."""
    moment = datetime.fromtimestamp(round(unix_seconds, 3), timezone.utc)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_values(job: jobs_pb2.Job) -> dict[str, Any]:
    """Return a job as JSON values."""
    fields = job_fields(job)
    for name in _TIMES:
        seconds = fields.pop(f"{name}_seconds")
        fields[name] = None if seconds is None else rfc3339(seconds)
    return finite(fields)


def finite(fields: dict[str, Any]) -> dict[str, Any]:
    """Return JSON values with None in place of numbers that JSON does not have."""
    return {name: _finite(value) for name, value in fields.items()}


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return finite(value)
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
