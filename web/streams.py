"""The paths whose answers are long: events, logs, metrics and checkpoints, each read as fast as its caller takes it."""

from __future__ import annotations

import array
import asyncio
import base64
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any, Literal
from urllib.parse import quote

import grpc
from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response, StreamingResponse

from protos import jobs_pb2
from protos.files_pb2 import ReadFileRequest
from services.jobs.client import JobsClient
from services.jobs.connection import CallRefused
from web.aggregator import Client
from web.events import EventId, follow
from web.problems import Problem, refused
from web.ranges import Range, parse_range, read_part
from web.values import rfc3339

LOG_PART_BYTES = 4 << 20
"""Largest part of a log in one answer, which is in memory."""
MOST_TAIL_LINES = 10_000
"""Newest lines of a log that an aggregator reads from its end."""
MOST_ROWS = 16_384
"""Largest number of rows of metrics in one answer."""
MOST_POINTS = 10_000
MOST_CHECKPOINTS = 100
_STEPS = 1 << 53

routes = APIRouter(prefix="/v1/jobs/{job}")


@routes.get("/events", response_class=StreamingResponse)
async def events(client: Client, job: str, request: Request) -> Response:
    """Follow a job until it ends, as server-sent events."""
    last = request.headers.get("last-event-id")
    stream = follow(client, job, EventId.parse(last) if last else None)
    begun = await _begin(stream)
    if begun is None:
        return Response(status_code=204)
    headers = {"x-accel-buffering": "no"}  # a proxy that holds events back would make heartbeats useless
    return StreamingResponse(begun, media_type="text/event-stream", headers=headers)


async def _begin(stream: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes] | None:
    """Return a stream whose first bytes are here, so that its errors have a status; None if it is empty."""
    try:
        first = await anext(stream)
    except StopAsyncIteration:
        return None

    async def whole() -> AsyncIterator[bytes]:
        async with aclosing(stream):
            yield first
            async for each in stream:
                yield each

    return whole()


@routes.get("/log", response_class=StreamingResponse)
async def log(
    client: Client,
    job: str,
    request: Request,
    tail: Annotated[int, Query(ge=0, le=MOST_TAIL_LINES)] = 0,
) -> Response:
    """Return a job's log, its newest lines, or a range of its bytes, for which all lines before are read."""
    lines = _log_text(client, job, tail)
    wanted = None if tail else parse_range(request.headers.get("range"))
    headers = {"accept-ranges": "bytes"}
    if wanted is None:
        body = await _begin(lines)
        return StreamingResponse(body or _empty(), media_type="text/plain; charset=utf-8", headers=headers)
    async with aclosing(lines):
        part = await read_part(lines, wanted, LOG_PART_BYTES)
    headers["content-range"] = part.content_range
    return Response(part.data, 206, headers, "text/plain; charset=utf-8")


async def _empty() -> AsyncIterator[bytes]:
    return
    yield b""


async def _log_text(client: JobsClient, job: str, tail: int) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a log, some at a time; the newest `tail`, or all for 0."""
    block = bytearray()
    async with aclosing(client.logs(jobs_pb2.LogsRequest(job=job, tail=tail, timing=True))) as lines:
        async for line in lines:
            block += f"{rfc3339(line.seconds)} {line.text}\n".encode()
            if len(block) >= 1 << 16:
                yield bytes(block)
                block.clear()
    if block:
        yield bytes(block)


@routes.get("/metrics")
async def metrics(
    client: Client,
    job: str,
    columns: Annotated[str, Query(max_length=1000)] = "",
    first: Annotated[int, Query(alias="from", ge=0, lt=_STEPS)] = 0,
    last: Annotated[int, Query(alias="to", ge=0, lt=_STEPS)] = 0,
    points: Annotated[int, Query(ge=0, le=MOST_POINTS)] = 0,
    encoding: Literal["json", "base64"] = "json",
) -> Response:
    """Return the history of a job's metrics, by column."""
    if last and last < first:
        raise refused("to", last, f"a step that is not before from={first}", "leave it out for the newest")
    names = [each.strip() for each in columns.split(",") if each.strip()]
    request = jobs_pb2.MetricsRequest(job=job, columns=names, first_step=first, last_step=last, points=points)
    parts: list[jobs_pb2.MetricsRows] = []
    rows = 0
    async with aclosing(client.metrics(request)) as answer:
        async for part in answer:
            parts.append(part)
            rows += _rows_of(part)
            if rows >= MOST_ROWS:  # whether there are more is seen when they are asked for
                break
    body = await asyncio.to_thread(_metrics_body, parts, encoding == "base64", last)
    return Response(body, media_type="application/json")


def _rows_of(part: jobs_pb2.MetricsRows) -> int:
    return len(part.columns[0].values) // 8 if part.columns else 0


def _metrics_body(parts: list[jobs_pb2.MetricsRows], as_base64: bool, last: int) -> bytes:
    """Return the answer's JSON, of the first rows up to the step `last`, or to any for 0; in a thread."""
    columns: list[dict[str, Any]] = []
    next_from = None
    for number, column in enumerate(parts[0].columns if parts else ()):
        fields: dict[str, Any] = {"name": column.name, "kind": column.kind}
        if column.kind == "text":
            fields["values"] = [text or None for part in parts for text in part.columns[number].texts][
                :MOST_ROWS
            ]
        else:
            raw = b"".join(part.columns[number].values for part in parts)
            raw = raw[: 8 * MOST_ROWS]
            if number == 0 and len(raw) == 8 * MOST_ROWS:
                step = int(array.array("d", raw[-8:])[0])
                next_from = step + 1 if not last or step < last else None
            if as_base64:
                fields["base64"] = base64.b64encode(raw).decode()
            else:
                values = array.array("d", raw).tolist()
                fields["values"] = [
                    (int(each) if column.name == "step" else each) if math.isfinite(each) else None
                    for each in values
                ]
        columns.append(fields)
    steps_per_row = parts[0].steps_per_row if parts else 1
    return json.dumps({"steps_per_row": steps_per_row, "columns": columns, "next_from": next_from}).encode()


@routes.get("/checkpoints")
async def checkpoints(
    client: Client,
    job: str,
    before: Annotated[int, Query(ge=0, lt=_STEPS)] = 0,
    limit: Annotated[int, Query(ge=1, le=MOST_CHECKPOINTS)] = 20,
) -> dict[str, Any]:
    """Return a job's checkpoints and their files, newest first."""
    job = (await client.job(job)).id
    found: list[dict[str, Any]] = []
    while len(found) < limit:
        try:
            each = await client.checkpoint(job, None, before=before)
        except CallRefused as error:
            if error.code is not grpc.StatusCode.NOT_FOUND:
                raise
            return {"checkpoints": found, "next_before": None}
        if found and each.step >= before:  # a lie, which would go on without end
            break
        before = each.step
        found.append(
            {
                "step": each.step,
                "files": {
                    name: {"sha256": ref.sha256, "bytes": ref.size}
                    for name, ref in sorted(each.files.items())
                },
            }
        )
        if not each.step:
            return {"checkpoints": found, "next_before": None}
    return {"checkpoints": found, "next_before": before}


@routes.get("/checkpoints/{step}/{file}", response_class=StreamingResponse)
async def checkpoint_file(
    client: Client, job: str, step: Annotated[int, Path(ge=0, lt=_STEPS)], file: str, request: Request
) -> Response:
    """Return a file of a checkpoint, or a range of its bytes."""
    job = (await client.job(job)).id
    found = await client.checkpoint(job, step)
    ref = found.files.get(file)
    if ref is None:
        raise Problem(
            404,
            "not-found",
            f"file: {file!r:.100} given, expected one of {', '.join(sorted(found.files))}; correct it",
        )
    etag = f'"{ref.sha256}"'
    headers = {
        "accept-ranges": "bytes",
        "etag": etag,
        "content-disposition": f'attachment; filename="{quote(file)}"',
    }
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    wanted = parse_range(request.headers.get("range"))
    if request.headers.get("if-range", etag) != etag:
        wanted = None
    first, end = (wanted or Range(0, None)).within(ref.size) if ref.size or wanted else (0, 0)
    headers["content-length"] = str(end - first)
    if wanted is not None:
        headers["content-range"] = f"bytes {first}-{end - 1}/{ref.size}"
    pieces = client.read(
        ReadFileRequest(sha256=ref.sha256, offset=first, length=end - first, job=job, step=step)
    )
    body = await _begin(pieces) if end > first else None
    status = 200 if wanted is None else 206
    return StreamingResponse(body or _empty(), status, headers, "application/octet-stream")
