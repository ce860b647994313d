"""Logging in by a token: it stays where no script reads it, and what ends it ends the session at once."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import BrowserContext, Page, Route

from services.transport.access.tokens import draw_token
from tests.support.web_server import Web
from tests.web.browser.conftest import log_in

pytestmark = pytest.mark.long


def test_a_token_goes_into_a_cookie_that_no_script_reads(
    context: BrowserContext, tab: Page, web: Web
) -> None:
    requested: list[str] = []
    context.on("request", lambda request: requested.append(request.url))
    log_in(tab, web.token)
    (cookie,) = context.cookies()
    assert (cookie["value"], cookie["httpOnly"], cookie["secure"], cookie["sameSite"]) == (
        web.token, True, True, "Strict",
    )  # fmt: skip
    assert cookie["expires"] == -1, "it ends with the browser"
    kept = "[document.cookie, JSON.stringify({...localStorage, ...sessionStorage}), document.body.outerHTML]"
    assert not any(web.token in text for text in tab.evaluate(kept))
    assert not any(web.token in url for url in requested)
    assert all(url.startswith(f"http://127.0.0.1:{web.port}/") for url in requested)
    tab.reload()
    tab.get_by_role("heading", name="Cluster", exact=True).wait_for()
    answer = context.new_page().goto("/v1/cluster")
    assert answer is not None and answer.status == 200


def test_a_wrong_token_is_refused_in_words(tab: Page) -> None:
    tab.goto("/")
    tab.get_by_label("Token").fill(draw_token())
    tab.get_by_role("button", name="Log in").click()
    assert "not known here" in (tab.get_by_role("alert").inner_text())
    assert tab.context.cookies() == []


def test_one_logs_out(inside: Page) -> None:
    inside.get_by_role("button", name="Log out").click()
    inside.get_by_label("Token").wait_for()
    assert inside.context.cookies() == []
    inside.goto("/#/jobs")
    inside.get_by_label("Token").wait_for()


def test_a_page_of_another_version_says_so_and_reloads(inside: Page) -> None:
    def answer_as_a_newer_one(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(response=answer, headers={**answer.headers, "tiermesh-version": "99.0.0"})

    inside.route("**/v1/**", answer_as_a_newer_one)
    inside.get_by_text(re.compile(r"99\.0\.0")).first.wait_for()
    inside.unroute("**/v1/**")
    with inside.expect_event("load"):
        inside.get_by_role("button", name=re.compile("reload", re.IGNORECASE)).click()
    inside.get_by_role("heading", name="Cluster", exact=True).wait_for()
    assert inside.get_by_text("99.0.0").count() == 0
