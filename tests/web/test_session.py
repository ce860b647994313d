"""Sessions of browsers: a cookie that is the token, shown by this server's own page alone, and gone with the token."""

from __future__ import annotations

import pytest

from services.transport.access.tokens import draw_token
from tests.support.fake_aggregator import FakeAggregator
from tests.support.web_server import Answer, Web, serving_web


def log_in(web: Web, token: str | None = None) -> Answer:
    return web.call("POST", "/v1/session", {}, token=token)


def with_cookie(web: Web, method: str, path: str, cookie: str, **headers: str) -> Answer:
    """Return the answer to a request of a browser."""
    body = {} if method == "POST" else None
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return web.call(method, path, body, {"Authorization": "", "Cookie": cookie, **named})


@pytest.fixture
def cookie(web: Web) -> str:
    return log_in(web).headers["set-cookie"].partition(";")[0]


def test_a_session_begins_with_a_cookie_that_no_script_reads(web: Web) -> None:
    answer = log_in(web)
    assert (answer.status, answer.body) == (204, b"")
    pair, *attributes = answer.headers["set-cookie"].split("; ")
    assert pair == f"__Host-tiermesh-{web.port}={web.token}"
    assert attributes == ["HttpOnly", "Secure", "SameSite=Strict", "Path=/"]
    assert answer.headers["cache-control"] == "no-store"


def test_a_wrong_token_begins_none(web: Web) -> None:
    answer = log_in(web, draw_token())
    assert (answer.status, answer.kind, "set-cookie" in answer.headers) == (401, "unauthenticated", False)


def test_the_cookie_is_a_token(web: Web, cookie: str) -> None:
    assert with_cookie(web, "GET", "/v1/cluster", f"theme=dark; {cookie}").status == 200
    assert with_cookie(web, "GET", "/v1/session", cookie).json == {}
    assert with_cookie(web, "POST", "/v1/jobs/job-1/pause", cookie).status == 200
    assert with_cookie(web, "GET", "/v1/session", "").status == 401


def test_authorization_wins_over_the_cookie(web: Web, cookie: str) -> None:
    answer = web.call("GET", "/v1/cluster", None, {"Cookie": cookie}, token=draw_token())
    assert (answer.status, "set-cookie" in answer.headers) == (401, False)


@pytest.mark.parametrize(
    ("header", "value", "status"),
    [
        ("Sec-Fetch-Site", "same-origin", 200),
        ("Sec-Fetch-Site", "none", 200),
        ("Sec-Fetch-Site", "same-site", 403),  # a page at another port of this host
        ("Sec-Fetch-Site", "cross-site", 403),
        ("Origin", "https://evil.example", 403),
        ("Origin", "null", 403),
        ("Origin", "http://127.0.0.1:1", 403),
    ],
)
@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/cluster"), ("POST", "/v1/jobs/job-1/pause")])
def test_the_cookie_counts_for_requests_of_the_own_page_alone(
    web: Web, fake: FakeAggregator, cookie: str, method: str, path: str, header: str, value: str, status: int
) -> None:
    answer = with_cookie(web, method, path, cookie, **{header: value})
    assert answer.status == status
    if status == 403:
        assert (answer.kind, answer.json["field"]) == ("forbidden", header)
        assert not fake.jobs["job-1"].pausing


def test_a_form_of_another_page_does_nothing(web: Web, fake: FakeAggregator, cookie: str) -> None:
    headers = {"Authorization": "", "Cookie": cookie, "Content-Type": "application/x-www-form-urlencoded"}
    assert web.call("POST", "/v1/jobs/job-1/cancel", b"now=true", headers).status == 415
    assert fake.jobs["job-1"].detail == ""


def test_a_cookie_that_is_there_twice_is_refused(web: Web, cookie: str) -> None:
    answer = with_cookie(web, "GET", "/v1/cluster", f"{cookie}; {cookie}")
    assert (answer.status, answer.kind) == (400, "malformed")


def test_servers_at_two_ports_of_a_host_have_cookies_of_their_own(
    web: Web, fake: FakeAggregator, cookie: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with serving_web(tmp_path_factory.mktemp("other"), fake.address) as other:
        both = f"{cookie}; {log_in(other).headers['set-cookie'].partition(';')[0]}"
        assert [with_cookie(each, "GET", "/v1/cluster", both).status for each in (web, other)] == [200, 200]


def test_a_session_ends_by_request_and_with_its_token(web: Web, cookie: str) -> None:
    name = cookie.partition("=")[0]
    ended = with_cookie(web, "DELETE", "/v1/session", cookie)
    assert (ended.status, ended.headers["set-cookie"].startswith(f"{name}=; Max-Age=0; ")) == (204, True)
    refused = with_cookie(web, "GET", "/v1/cluster", f"{name}={draw_token()}")
    assert (refused.status, refused.headers["set-cookie"].startswith(f"{name}=; Max-Age=0; ")) == (401, True)
