"""The paths of the HTTP API (docs/use/http-api.md). Each calls the aggregator for its caller, and answers in JSON."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.security import HTTPBearer
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from protos import jobs_pb2
from services.caps import MOST_PRIORITY
from services.config.job import JobConfig
from services.errors import TiermeshError
from services.jobs.fields import cluster_fields
from services.printable import printable
from services.version import tiermesh_version
from web.aggregator import Aggregator, Client
from web.credentials import begin_session, end_session
from web.job_config import Meshes, submission_values, what_it_takes
from web.problems import PROBLEM_TYPE, Problem, problem_of, refused
from web.static import StaticFile, page_routes
from web.streams import routes as stream_routes
from web.submission import Submission, Submitter
from web.uploads import Uploads
from web.values import finite, job_values, rfc3339

MOST_JOBS_OF_PAGE = 500
MOST_EMPTY_PAGES = 20
"""Pages of the aggregator that are passed over at once if no job of them is one that a list is about."""
_STATES = {name.lower(): name for name, number in jobs_pb2.JobState.items() if number}
_STEPS = 1 << 53  # whole numbers that JSON's readers have exactly


class Cancel(BaseModel):
    """Body of a cancel."""

    model_config = ConfigDict(extra="forbid")
    now: bool = Field(default=False, description="Whether no checkpoint of its last step is wanted.")


class Continue(BaseModel):
    """Body of a continue."""

    model_config = ConfigDict(extra="forbid")
    steps: int = Field(ge=1, lt=_STEPS, description="Number of updates to make in all.")
    step: int | None = Field(default=None, ge=0, lt=_STEPS, description="Checkpoint; null for the newest.")
    total_steps: int | None = Field(default=None, ge=1, lt=_STEPS, description="End of the schedule.")
    request_id: str = Field(default="", max_length=64)


class Nothing(BaseModel):
    """Body of a change that has no settings: `{}`."""

    model_config = ConfigDict(extra="forbid")


class Priority(BaseModel):
    """Body of a change of priority."""

    model_config = ConfigDict(extra="forbid")
    priority: int = Field(ge=-MOST_PRIORITY, le=MOST_PRIORITY)


async def _check_query(request: Request) -> None:
    """Refuse a misspelt parameter, which would otherwise be one that was not given."""
    known = sorted(field.alias for field in request.scope["route"].dependant.query_params)
    for name in request.query_params:
        if name not in known:
            raise refused("query", name, ", ".join(known) or "no parameters", "correct or remove it")


PUBLIC_PATHS = ("/v1/health", "/v1/openapi.json")
"""Paths of the API that need no token."""

public_routes = APIRouter(prefix="/v1")
routes = APIRouter(prefix="/v1")


@public_routes.get("/health")
async def health(request: Request) -> dict[str, Any]:
    """Tell whether this daemon serves, and whether it reaches an aggregator."""
    since = request.app.state.aggregator.away_since
    return {
        "status": "ok",
        "aggregator": "reachable" if since is None else "away",
        "away_since": None if since is None else rfc3339(since),
        "version": tiermesh_version(),
    }


async def _check_token(client: Client) -> None:
    """Check that the aggregator lets the caller in, where it is asked for nothing else."""
    await client.page(jobs_pb2.ListRequest(limit=1))


@routes.get("/session", dependencies=[Depends(_check_token)])
async def get_session() -> dict[str, Any]:
    """Tell that the caller's token is accepted."""
    return {}


@routes.post("/session", status_code=204, dependencies=[Depends(_check_token)])
async def begin(body: Nothing, request: Request) -> Response:
    """Begin a browser's session with the caller's token."""
    cookie = begin_session(request.headers["host"], request.state.shown_token)
    return Response(status_code=204, headers={"set-cookie": cookie})


@routes.delete("/session", status_code=204)
async def end(request: Request) -> Response:
    """End a browser's session."""
    return Response(status_code=204, headers={"set-cookie": end_session(request.headers["host"])})


@routes.get("/cluster")
async def cluster(client: Client, request: Request) -> dict[str, Any]:
    """Return the cluster: its roles, what they do, and the meshes of workers that have jobs."""
    meshes: Meshes = request.app.state.meshes
    fields = cluster_fields(await client.status())
    for worker in fields["workers"]:
        worker |= await meshes.find(client, worker["job"])
    return finite(fields)


@routes.get("/jobs")
async def list_jobs(
    client: Client,
    limit: Annotated[int, Query(ge=1, le=MOST_JOBS_OF_PAGE)] = 100,
    page_token: Annotated[str, Query(max_length=20)] = "",
    state: Annotated[tuple[str, ...], Query(max_length=len(_STATES))] = (),
    owner: Annotated[str, Query(max_length=200)] = "",
    name: Annotated[str, Query(max_length=200)] = "",
    order: Literal["newest", "oldest"] = "newest",
) -> dict[str, Any]:
    """Return a page of jobs."""
    for each in state:
        if each not in _STATES:
            raise Problem(
                422, "refused", f"state: {each} given, expected {', '.join(_STATES)}; give one of them"
            )
    request = jobs_pb2.ListRequest(
        limit=limit,
        page_token=page_token,
        newest_first=order == "newest",
        states=[_STATES[each] for each in state],
        owner=owner,
        name=name,
    )
    page = await client.page(request)
    for _ in range(MOST_EMPTY_PAGES):
        if page.jobs or not page.next_page_token:
            break
        request.page_token = page.next_page_token  # the jobs that were looked at were others
        page = await client.page(request)
    return {"jobs": [job_values(job) for job in page.jobs], "next_page_token": page.next_page_token or None}


@routes.post("/jobs", status_code=201)
async def submit(client: Client, submission: Submission, request: Request) -> dict[str, Any]:
    """Queue a job; answers after it is stored."""
    submitter: Submitter = request.app.state.submitter
    if not submission.request_id:
        submission.request_id = secrets.token_hex(16)
    job, notices = await submitter.submit(client, submission)
    return {"job": job_values(job), "notices": notices}


@routes.post("/jobs/check", dependencies=[Depends(_check_token)])
async def check(submission: Submission, request: Request) -> dict[str, Any]:
    """Tell what a submission would make, and queue nothing."""
    submitter: Submitter = request.app.state.submitter
    config, notices = await submitter.check(submission)
    return {"notices": notices, "takes": what_it_takes(config)}


@routes.get("/jobs/{job}")
async def get_job(client: Client, job: str) -> dict[str, Any]:
    """Return one job."""
    return job_values(await client.job(job))


@routes.get("/jobs/{job}/config")
async def get_config(client: Client, job: str) -> dict[str, Any]:
    """Return a submission that makes another job like this one, and its settings."""
    record = await client.job(job)
    config = JobConfig.from_json(await client.spec_json(record.id))
    return submission_values(config.model_copy(update={"name": record.name}))


@routes.post("/jobs/{job}/cancel")
async def cancel(client: Client, job: str, body: Cancel) -> dict[str, Any]:
    """Cancel a job that has not ended."""
    return job_values(await client.cancel(job, now=body.now))


@routes.post("/jobs/{job}/continue", status_code=201)
async def continue_(client: Client, job: str, body: Continue) -> dict[str, Any]:
    """Queue a job that goes on where an ended one has stopped, and return the new one."""
    request = jobs_pb2.ContinueRequest(
        job=job,
        steps=body.steps,
        step=body.step,
        total_steps=body.total_steps,
        request_id=body.request_id or secrets.token_hex(16),
    )
    return job_values(await client.continue_job(request))


@routes.post("/jobs/{job}/pause")
async def pause(client: Client, job: str, body: Nothing) -> dict[str, Any]:
    """Have a queued or running job wait until it is resumed."""
    return job_values(await client.pause(job))


@routes.post("/jobs/{job}/resume")
async def resume(client: Client, job: str, body: Nothing) -> dict[str, Any]:
    """Queue a paused job in its old place."""
    return job_values(await client.resume(job))


@routes.post("/jobs/{job}/priority")
async def priority(client: Client, job: str, body: Priority) -> dict[str, Any]:
    """Change the priority of a job that has not ended."""
    return job_values(await client.set_priority(job, body.priority))


@routes.put("/files/{sha256}", status_code=201)
async def put_file(client: Client, sha256: str, request: Request, response: Response) -> dict[str, Any]:
    """Store a file under its SHA-256, here and at the aggregator."""
    uploads: Uploads = request.app.state.uploads
    ref, was_here = await uploads.receive(client, sha256, request)
    response.status_code = 200 if was_here else 201
    return {"sha256": ref.sha256, "bytes": ref.size}


def make_app(
    aggregator: Aggregator, submitter: Submitter, uploads: Uploads, page: Mapping[str, StaticFile]
) -> FastAPI:
    """Return the app, which a `Guard` has to stand before."""
    app = FastAPI(
        title="Tiermesh",
        version=tiermesh_version(),
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses={"default": {"description": "A problem (RFC 9457)", "content": {PROBLEM_TYPE: {}}}},
    )
    app.state.aggregator = aggregator
    app.state.submitter = submitter
    app.state.uploads = uploads
    app.state.meshes = Meshes()
    checked = Depends(_check_query)
    app.include_router(public_routes, dependencies=[checked])
    shows_token = Depends(HTTPBearer(auto_error=False))  # for OpenAPI; the guard has checked it
    for router in (routes, stream_routes):
        app.include_router(router, dependencies=[checked, shows_token])
    app.routes.extend(page_routes(page))
    app.add_exception_handler(RequestValidationError, _answer_validation)
    app.add_exception_handler(HTTPException, _answer_path)
    for kind in (Problem, TiermeshError):
        app.add_exception_handler(kind, _answer)
    return app


async def _answer(request: Request, error: Exception) -> Response:
    problem = problem_of(error)
    return Response(problem.body(), problem.status, problem.headers)


_EXPECTED = {
    "dict_type": "a JSON object",
    "model_attributes_type": "a JSON object",
    "string_pattern_mismatch": "64 digits from 0 to f",  # all patterns are SHA-256's
}
"""What was expected, where pydantic's words are not those of JSON."""


async def _answer_validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    # A union's kinds are in the place, too: the config of a submission is a text or an object.
    place = [str(each) for each in first["loc"][1:] if each not in ("str", "dict[str,any]")]
    field = ".".join(place) or str(first["loc"][0])
    match first["type"]:
        case "extra_forbidden":
            problem = refused(field, first["input"], "no such member", "correct or remove it")
        case "missing":
            problem = refused(field, "nothing", "a value", "give it")
        case kind:
            expected = _EXPECTED.get(kind) or str(first["msg"]).removeprefix("Input should be ")
            given = (
                first["input"] if isinstance(first["input"], str) else json.dumps(first["input"], default=str)
            )
            problem = refused(field, given, expected, "correct it")
    return await _answer(request, problem)


async def _answer_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "not-found", 405: "method", 400: "malformed"}.get(error.status_code, "failed")
    path = printable(request.url.path, 200)
    detail = f"{request.method} {path}: {str(error.detail).lower()}; look at /v1/openapi.json"
    return await _answer(request, Problem(error.status_code, kind, detail, headers=error.headers))
