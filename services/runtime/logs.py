"""Structured logs on standard error: lines of text for people, or one JSON object per line for machines.

Fields are given as `log.info("computed", extra={"job": job, "step": step, "peer": name})`.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal

from services.errors import Refused
from services.printable import printable

LEVELS = ("debug", "info", "warning", "error")

_MESSAGE_CHARACTERS = 1000
"""Longest message of a line; each field has at most 300 characters."""
_MOST_LINES = 200
"""Maximum number of lines of a traceback."""

# Attributes of every record; all others were given as fields.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure(level: str, format: Literal["text", "json"]) -> None:
    """Send all logs of this process to standard error, and remove earlier handlers.

    Args:
        level: lowest level that is logged: debug, info, warning or error.
        format: `text` or `json`.

    Raises:
        Refused: the level or format is unknown.
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
    # asyncio and gRPC log tracebacks of errors that our code already logs in one line; uvicorn a line for each bad
    # request to /metrics.
    for chatty in ("asyncio", "grpc", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.DEBUG if level == "debug" else logging.CRITICAL)


def fields(record: logging.LogRecord) -> dict[str, object]:
    """Return the structured fields given with a record, by name."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD}


class _TextFormatter(logging.Formatter):
    """Formatter of lines like `2026-01-31T12:00:00.123+0000 INFO    worker.service: computed job=j1 step=5`."""

    def format(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={printable(str(value))}" for name, value in fields(record).items())
        text = f"{_time(record)} {record.levelname:<7} {record.name}: {_message(record)}{pairs}"
        if record.exc_info:
            text += "\n" + _traceback(self, record)
        return text


class _JsonFormatter(logging.Formatter):
    """Formatter of JSON objects: time, level, logger, message, the given fields, and a traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _message(record),
        }
        for name, value in fields(record).items():
            plain = value is None or isinstance(value, (bool, int, float))
            entry.setdefault(name, value if plain else printable(str(value)))
        if record.exc_info:
            entry["traceback"] = _traceback(self, record)
        return json.dumps(entry, ensure_ascii=False)


def _time(record: logging.LogRecord) -> str:
    """Return a record's local time in ISO 8601, with milliseconds and the offset from UTC."""
    local = time.localtime(record.created)
    return time.strftime(f"%Y-%m-%dT%H:%M:%S.{int(record.msecs):03d}%z", local)


def _message(record: logging.LogRecord) -> str:
    return printable(" | ".join(record.getMessage().split("\n", _MOST_LINES)), _MESSAGE_CHARACTERS)


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """Return a record's traceback, which quotes texts of errors, with printable lines."""
    assert record.exc_info is not None
    lines = formatter.formatException(record.exc_info).split("\n")
    return "\n".join(printable(line) for line in lines[:_MOST_LINES])
