"""Tokens over HTTP: each endpoint refuses those that are expired, revoked, wrong or missing, amid a stream as well."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tiermesh
from protos import jobs_pb2
from services.files.store import FileStore
from services.transport.access.permissions import CallerKind
from services.transport.access.tokens import TokenRecord, draw_token, make_token
from services.transport.security import Security
from tests.support.certificates import make_certificates
from tests.support.cluster.bits import regression_config
from tests.support.cluster.daemon import eventually
from tests.support.fake_aggregator import FakeAggregator, serving
from tests.support.web_server import Web, serving_web

CONTENT = b"content"
SHA256 = "ed7002b439e9ac845f22357d822bac1444730fbdb6016d3ec9432297b9ec9f73"
ENDPOINTS: list[tuple[str, str, Any]] = [
    ("GET", "/v1/cluster", None),
    ("GET", "/v1/jobs", None),
    ("GET", "/v1/jobs?limit=0", None),
    ("POST", "/v1/jobs", {"config": regression_config()}),
    ("POST", "/v1/jobs", {"config": 5}),
    ("POST", "/v1/jobs/check", {"config": regression_config()}),
    ("GET", "/v1/session", None),
    ("POST", "/v1/session", {}),
    ("DELETE", "/v1/session", None),
    ("GET", "/v1/jobs/job-1", None),
    ("GET", "/v1/jobs/job-1/config", None),
    ("POST", "/v1/jobs/job-1/cancel", {}),
    ("POST", "/v1/jobs/job-1/continue", {"steps": 20}),
    ("POST", "/v1/jobs/job-1/pause", {}),
    ("POST", "/v1/jobs/job-1/resume", {}),
    ("POST", "/v1/jobs/job-1/priority", {"priority": -1}),
    ("GET", "/v1/jobs/job-1/events", None),
    ("GET", "/v1/jobs/job-1/log", None),
    ("GET", "/v1/jobs/job-1/metrics", None),
    ("GET", "/v1/jobs/job-1/checkpoints", None),
    ("GET", "/v1/jobs/job-1/checkpoints/0/config.json", None),
    ("PUT", f"/v1/files/{SHA256}", CONTENT),
    ("GET", "/v1/nothing", None),
]
REASONS = {
    "expired": "person bob (a token): has expired; renew it",
    "revoked": "the token is not known here, or was revoked",
    "wrong": "the token is not known here, or was revoked",
    "forged": "the token is not known here, or was revoked",
    "malformed": "Authorization: something else given, expected `Bearer TOKEN`",
    "missing": "Authorization: no token given, expected `Bearer TOKEN`",
}


class Tokens:
    """The aggregator's file of tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._records: list[TokenRecord] = []
        self.good = self.issue("ann", 3600.0)
        forged = f"{self.good[:-1]}{'0' if self.good[-1] != '0' else '1'}"
        revoked = self.issue("eve", 3600.0)
        self.bad = {
            "expired": self.issue("bob", -10.0),
            "revoked": revoked,
            "wrong": draw_token(),
            "forged": forged,
            "malformed": "tm_1_2",
            "missing": "",
        }
        self.revoke(revoked)

    def issue(self, name: str, seconds: float) -> str:
        token, record = make_token(CallerKind.PERSON, name, time.time() + seconds)
        self._records.append(record)
        self._write()
        return token

    def revoke(self, token: str) -> None:
        self._records = [each for each in self._records if each.id not in token]
        self._write()

    def _write(self) -> None:
        self.path.write_text("".join(f"{each.to_line()}\n" for each in self._records))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.txt")


@pytest.fixture
def fake(tmp_path: Path, tokens: Tokens, certificates: Path) -> Iterator[FakeAggregator]:
    """Serve an aggregator that lets in people with tokens alone."""
    fake = FakeAggregator()
    fake.store, fake.step, fake.files = FileStore(tmp_path / "aggregator"), 0, {"config.json": b"{}"}
    fake.jobs["job-1"] = jobs_pb2.Job(id="job-1", state=jobs_pb2.RUNNING, steps=10)
    pair = (certificates / "aggregator.pem", certificates / "aggregator.key")
    with serving(fake, Security(*pair, tokens=tokens.path)):
        yield fake


@pytest.fixture(params=["alone", "with a standby that is away"])
def addresses(request: pytest.FixtureRequest, fake: FakeAggregator) -> str:
    return fake.address if request.param == "alone" else f"127.0.0.1:9,{fake.address}"


@pytest.fixture
def web(tmp_path: Path, addresses: str, certificates: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Web]:
    monkeypatch.setattr("web.bodies._DRAIN_SECONDS", 0.1)
    monkeypatch.setattr("web.guard.WRONG_TOKENS_AT_ONCE", 1000)
    monkeypatch.setattr("services.transport.access.rechecks.CHECK_AGAIN_SECONDS", 0.05)
    with serving_web(tmp_path, addresses, security=Security(ca=certificates / "authority.pem")) as web:
        yield web


def test_no_endpoint_does_anything_for_a_token_that_is_not_let_in(
    web: Web, fake: FakeAggregator, tokens: Tokens
) -> None:
    before = fake.jobs["job-1"].SerializeToString()
    for method, path, body in ENDPOINTS:
        for kind, token in tokens.bad.items():
            headers = {} if token else {"Authorization": ""}
            answer = web.call(method, path, body, headers, token)
            assert (answer.status, answer.kind) == (401, "unauthenticated"), (method, path, kind, answer)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert REASONS[kind] in answer.json["detail"], (method, path, kind)
            assert not token or token not in answer.body.decode()
    assert (fake.submitted, fake.continued, [*fake.jobs]) == ([], [], ["job-1"])
    assert fake.jobs["job-1"].SerializeToString() == before
    assert not web.stored.exists() or not [*web.stored.iterdir()]
    eventually(lambda: web.get("/v1/health").json["aggregator"] == "reachable", "the look for it")


def test_each_endpoint_serves_a_token_that_is(web: Web, fake: FakeAggregator, tokens: Tokens) -> None:
    for method, path, body in ENDPOINTS:
        if path.endswith("/cancel"):
            continue  # last, as it ends the job
        fake.events = [
            [jobs_pb2.JobEvent(job=jobs_pb2.Job(id="job-1", state=jobs_pb2.SUCCEEDED), kind="state")]
        ]
        assert web.call(method, path, body, token=tokens.good).status != 401, (method, path)
    assert web.call("POST", "/v1/jobs/job-1/cancel", {}, token=tokens.good).status == 200


@pytest.mark.parametrize("addresses", ["alone"], indirect=True)
@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_the_stream_of_a_token_that_ends_says_so_and_ends(
    web: Web, fake: FakeAggregator, tokens: Tokens, end: str
) -> None:
    token = tokens.issue("dan", 3600.0 if end == "revoked" else 1.5)
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=20)
    connection.request("GET", "/v1/jobs/job-1/events", headers={"Authorization": f"Bearer {token}"})
    stream = connection.getresponse()
    assert (stream.status, stream.readline()[:4]) == (200, b"id: ")
    if end == "revoked":
        tokens.revoke(token)
    *_, problem = stream.read().decode().strip().split("\n\n")
    connection.close()
    kind, data = problem.splitlines()
    assert kind == "event: problem"
    found = json.loads(data.removeprefix("data: "))
    reason = "was revoked" if end == "revoked" else "has expired"
    assert (found["status"], found["type"], reason in found["detail"]) == (
        401, "/problems/unauthenticated", True,
    )  # fmt: skip
    assert web.call("GET", "/v1/nothing", token=tokens.good).status == 404
    assert web.call("GET", "/v1/cluster", token=token).status == 401
    with tiermesh.Client(f"http://127.0.0.1:{web.port}", token=token) as client:
        with pytest.raises(tiermesh.NotAllowed, match=reason) as caught:
            next(iter(client.follow("job-1")))
        assert caught.value.status == 401 and caught.value.fix
