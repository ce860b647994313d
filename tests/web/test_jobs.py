"""Jobs and the cluster over HTTP: what is read, what is changed, and which requests are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

from protos import jobs_pb2
from tests.support.fake_aggregator import FakeAggregator
from tests.support.web_server import Web


def test_a_job_has_the_fields_of_the_command_with_times_in_utc(web: Web) -> None:
    answer = web.get("/v1/jobs/latest")
    assert (answer.status, answer.json["job"], answer.json["state"]) == (200, "job-1", "running")
    assert answer.json["submitted"] == "2025-11-27T10:00:00.123Z"
    assert (answer.json["started"], "started_seconds" in answer.json) == (None, False)


@pytest.mark.parametrize(
    ("path", "media_type", "field"),
    [
        ("job-1", "application/json", "name"),
        ("job-1/events", "text/event-stream; charset=utf-8", None),
        ("job-1/log", "text/plain; charset=utf-8", None),
        ("job-1/metrics", "application/json", None),
        ("job-1/metrics?points=<b>mark", "application/problem+json", "value"),
        ("<b>mark", "application/problem+json", "detail"),
        ("job-1/<b>mark", "application/problem+json", "detail"),
        ("job-1/checkpoints/0/<b>mark", "application/problem+json", "detail"),
    ],
)
def test_markup_in_a_name_is_data_that_no_browser_shows(
    web: Web, fake: FakeAggregator, path: str, media_type: str, field: str | None
) -> None:
    fake.jobs["job-1"].state = jobs_pb2.SUCCEEDED
    answer = web.get(f"/v1/jobs/{path}")
    assert answer.headers["content-type"] == media_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    if field is not None:
        assert "<b>mark" in answer.json[field]


def test_the_cluster_is_that_of_the_command(web: Web) -> None:
    assert web.get("/v1/cluster").json["leader"] == "agg"


def test_jobs_come_page_by_page_newest_first(web: Web, fake: FakeAggregator) -> None:
    for number in (2, 3):
        fake.jobs[f"job-{number}"] = type(fake.jobs["job-1"])(id=f"job-{number}")
    page = web.get("/v1/jobs?limit=2").json
    assert [job["job"] for job in page["jobs"]] == ["job-3", "job-2"]
    page = web.get(f"/v1/jobs?limit=2&page_token={page['next_page_token']}").json
    assert ([job["job"] for job in page["jobs"]], page["next_page_token"]) == (["job-1"], None)


def test_a_page_is_not_empty_while_a_job_of_the_list_follows(web: Web, fake: FakeAggregator) -> None:
    for number in range(2, 15):
        fake.jobs[f"job-{number}"] = jobs_pb2.Job(id=f"job-{number}", state=jobs_pb2.CANCELLED, name="other")
    fake.jobs["job-1"].name = "rare"
    page = web.get("/v1/jobs?limit=2&name=rare").json
    assert ([job["job"] for job in page["jobs"]], page["next_page_token"]) == (["job-1"], None)
    page = web.get("/v1/jobs?limit=2&name=none").json
    assert (page["jobs"], page["next_page_token"]) == ([], None)


@pytest.mark.parametrize(
    ("change", "body", "field", "value"),
    [
        ("pause", {}, "pausing", True),
        ("priority", {"priority": -5}, "priority", -5),
        ("cancel", {"now": True}, "state", "cancelled"),
    ],
)
def test_a_job_is_changed(web: Web, change: str, body: dict[str, Any], field: str, value: object) -> None:
    answer = web.call("POST", f"/v1/jobs/job-1/{change}", body)
    assert (answer.status, answer.json[field]) == (200, value)


def test_a_job_goes_on_as_a_new_one(web: Web, fake: FakeAggregator) -> None:
    answer = web.call("POST", "/v1/jobs/job-1/continue", {"steps": 20, "request_id": "abc"})
    assert (answer.status, answer.json["job"], answer.json["steps"]) == (201, "job-2", 20)
    assert fake.continued[0].request_id == "abc"


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "kind", "field"),
    [
        ("GET", "/v1/jobs/nothing", None, 404, "not-found", None),
        ("GET", "/v1/nothing", None, 404, "not-found", None),
        ("GET", "/v1/jobs/%2e%2e%2f%2e%2e%2fetc%2fpasswd", None, 404, "not-found", None),
        ("POST", "/v1/cluster", {}, 405, "method", None),
        ("DELETE", "/v1/jobs/job-1", None, 405, "method", None),
        ("POST", "/v1/jobs/job-1/priority", b"null", 422, "refused", "body"),
        ("GET", "/v1/jobs/job-1/metrics?from=9&to=2", None, 422, "refused", "to"),
        ("GET", "/v1/jobs?limit=501", None, 422, "refused", "limit"),
        ("GET", "/v1/jobs?state=sleeping", None, 422, "refused", "state"),
        ("GET", "/v1/jobs?states=queued", None, 422, "refused", "query"),
        ("GET", "/v1/jobs/job-1/metrics?column=loss", None, 422, "refused", "query"),
        ("GET", "/v1/health?x=1", None, 422, "refused", "query"),
        ("POST", "/v1/jobs/job-1/priority", {"priority": 101}, 422, "refused", "priority"),
        ("POST", "/v1/jobs/job-1/cancel", {"later": True}, 422, "refused", "later"),
        ("POST", "/v1/jobs/job-1/continue", {"steps": 0}, 422, "refused", "steps"),
        ("POST", "/v1/jobs/job-1/continue", {}, 422, "refused", "steps"),
        ("POST", "/v1/jobs/job-1/resume", b"[" * 5000, 400, "malformed", None),
        ("POST", "/v1/jobs/job-1/resume", b"{", 400, "malformed", None),
        ("POST", "/v1/jobs/job-1/resume", b"\xff", 400, "malformed", None),
        ("POST", "/v1/jobs/job-1/resume", b"[0," + b"0," * 60_000 + b"0]", 400, "malformed", None),
        ("POST", "/v1/jobs/job-1/resume", b" " * (2 << 20), 413, "too-large", "body"),
    ],
)
def test_bad_input_is_a_problem_that_names_it(
    web: Web, method: str, path: str, body: Any, status: int, kind: str, field: str | None
) -> None:
    headers = {"Content-Type": "application/json"} if isinstance(body, bytes) else {}
    answer = web.call(method, path, body, headers)
    assert (answer.status, answer.kind) == (status, kind), answer
    if field is not None:
        assert answer.json["field"] == field
        assert answer.json["expected"]
        assert answer.json["fix"]


def test_health_needs_no_token_and_the_schema_names_every_path(web: Web) -> None:
    health = web.call("GET", "/v1/health", headers={"Authorization": ""})
    assert health.json["status"] == "ok"
    schema = web.call("GET", "/v1/openapi.json", headers={"Authorization": ""}).json
    bearer = [{"HTTPBearer": []}]
    assert schema["paths"]["/v1/jobs"]["get"]["security"] == bearer
    assert "security" not in schema["paths"]["/v1/health"]["get"]
    assert (
        "application/problem+json" in schema["paths"]["/v1/jobs"]["post"]["responses"]["default"]["content"]
    )
    assert {"/v1/jobs/{job}/events", "/v1/files/{sha256}", "/v1/jobs/{job}/checkpoints/{step}/{file}"} <= {
        *schema["paths"]
    }
