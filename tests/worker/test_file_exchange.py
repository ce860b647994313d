"""The transfers of a worker: an error of any kind reaches the core, and never ends them unobserved."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from protos.files_pb2 import FileRef
from services.errors import Failed
from worker import file_exchange
from worker.core import events as ev
from worker.file_exchange import FileExchange, ModelFiles
from worker.job_inputs import JobInputs

LIMIT_SECONDS = 10
ERRORS = [
    ValueError("embedded null byte"),
    UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"),
    OSError(36, "File name too long"),
    OSError(40, "Too many levels of symbolic links"),
    MemoryError(),
    Failed("x: gone; wait"),
]


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception, begin: Any) -> ev.Input:
    """Return the first input that the core gets after a transfer has failed."""

    async def fail(*_: object, **__: object) -> Any:
        raise error

    monkeypatch.setattr(JobInputs, "find_missing", fail)
    monkeypatch.setattr(file_exchange, "upload", fail)

    async def scenario() -> ev.Input:
        inputs: asyncio.Queue[ev.Input] = asyncio.Queue()
        exchange = FileExchange(inputs.put_nowait, lambda *_: None, JobInputs("w", None, tmp_path))
        monkeypatch.setattr(exchange, "_fetch_spec", lambda *_: asyncio.sleep(0, b"{}"), raising=False)
        async with grpc.aio.insecure_channel("127.0.0.1:1") as channel:
            exchange.connect(channel, "aggregator x")
            begin(exchange)
            return await asyncio.wait_for(inputs.get(), LIMIT_SECONDS)

    return asyncio.run(scenario())


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_of_a_job_s_inputs_fails_its_build(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = ev.Build("job-1", FileRef(sha256="0" * 64, size=2), None)
    found = run(monkeypatch, tmp_path, error, lambda exchange: exchange.fetch_job(build))
    assert isinstance(found, ev.BuildFailed) and found.unfit and found.job == "job-1"
    assert found.reason and found.reason.isprintable()


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_an_error_of_a_model_s_files_fails_its_lease(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = ModelFiles.make(7, "{}", {"config.json": b"{}"})
    found = run(monkeypatch, tmp_path, error, lambda exchange: exchange.send(files))
    assert isinstance(found, ev.LeaseFailed) and found.lease == 7
    assert found.reason and found.reason.isprintable()
