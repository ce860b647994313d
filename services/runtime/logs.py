"""Structured logs on standard error: a line of text for people, or one JSON object a line for machines.

Fields go in as `log.info("computed", extra={"job": job, "step": step, "peer": name})`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal

from services.errors import Refused

LEVELS = ("debug", "info", "warning", "error")

# What every record carries; whatever else it has was given as a field.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: str, format: Literal["text", "json"]) -> None:
    """Send all logs of this process to standard error, once, replacing earlier set-ups.

    Args:
        level: lowest level shown: debug, info, warning or error.
        format: `text` or `json`.

    Raises:
        Refused: another level or format.
    """
    if level not in LEVELS:
        raise Refused(f"--log-level {level}: unknown; choose one of {', '.join(LEVELS)}")
    if format not in ("text", "json"):
        raise Refused(f"--log-format {format}: unknown; choose text or json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if format == "json" else _TextFormatter())
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # asyncio and gRPC report with tracebacks what our own code already says in a line.
    for chatty in ("asyncio", "grpc"):
        logging.getLogger(chatty).setLevel(logging.DEBUG if level == "debug" else logging.CRITICAL)


def fields(record: logging.LogRecord) -> dict[str, object]:
    """The structured fields given with a record, by name."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class _TextFormatter(logging.Formatter):
    """`2026-01-31T12:00:00.123 INFO  worker.service: computed job=j1 step=5`."""

    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={value}" for name, value in fields(record).items())
        text = f"{_time(record)} {record.levelname:<7} {record.name}: {_one_line(record.getMessage())}{pairs}"
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        return text


class _JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message, the given fields, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name, value in fields(record).items():
            entry.setdefault(name, value)
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    """Local time with milliseconds and the offset from UTC, ISO 8601."""
    local = time.localtime(record.created)
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{int(record.msecs):03d}%z", local)


def _one_line(text: str) -> str:
    return text.replace("\n", " | ")
