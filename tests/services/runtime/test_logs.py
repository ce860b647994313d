"""Tests of logs in text and JSON."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, Literal, cast

import pytest

from services.errors import Refused
from services.runtime import logs
from tests.support.hostile import LONG, is_clean


@pytest.fixture(autouse=True)
def restore_loggers() -> Iterator[None]:
    root = logging.getLogger()
    handlers = list(root.handlers)
    levels = {each: each.level for each in (root, *map(logging.getLogger, ("asyncio", "grpc", "uvicorn")))}
    yield
    root.handlers[:] = handlers
    for logger, level in levels.items():
        logger.setLevel(level)


def test_json_log_has_one_object_per_line_with_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "json")
    log = logging.getLogger("worker.service")
    log.debug("hidden")
    log.info("computed %d\nmicro-batches", 3, extra={"job": "job-1", "step": 5, "peer": "host-a"})
    try:
        raise ValueError("a\nb")
    except ValueError:
        log.exception("broke", extra={"level": "not overwritten"})
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = map(json.loads, captured.err.splitlines())
    assert first.pop("time")
    assert first == {
        "level": "info",
        "logger": "worker.service",
        "message": "computed 3 | micro-batches",
        "job": "job-1",
        "step": 5,
        "peer": "host-a",
    }
    assert second["level"] == "error"
    assert "ValueError" in second["traceback"]


def test_text_log_has_one_line_per_record_with_the_fields(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("warning", "text")
    logging.getLogger("x").info("hidden")
    logging.getLogger("x").warning("two\nlines", extra={"job": "job-1"})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("WARNING x: two | lines job=job-1")


def test_second_configuration_replaces_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("info", "text")
    logs.configure("info", "json")
    logging.getLogger("x").info("once")
    (line,) = capsys.readouterr().err.splitlines()
    assert json.loads(line)["message"] == "once"


def test_unknown_level_and_format_are_refused() -> None:
    with pytest.raises(Refused, match=r"--log-level loud.*debug, info, warning, error"):
        logs.configure("loud", "text")
    with pytest.raises(Refused, match=r"--log-format xml.*text or json"):
        logs.configure("info", cast(Any, "xml"))  # as a config file may have it


@pytest.mark.parametrize("format", ["text", "json"])
def test_hostile_texts_stay_within_their_line(
    format: Literal["text", "json"], capsys: pytest.CaptureFixture[str]
) -> None:
    logs.configure("debug", format)
    try:
        raise ValueError(LONG)
    except ValueError:
        logging.getLogger("x").warning("peer %s", LONG, extra={"peer": LONG}, exc_info=True)
    text = capsys.readouterr().err
    assert is_clean(text)
    assert max(map(len, text.splitlines())) < 5000
    if format == "json":
        assert json.loads(text)["peer"].startswith(r"\x1b]0;owned")
