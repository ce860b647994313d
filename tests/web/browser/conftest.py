"""A browser, tabs of it that are logged in, and what has gone wrong in them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.browser import NoBrowser, running_browser
from tests.support.web_server import Web

WAIT_MILLISECONDS = 15_000
"""Longest wait for something on a page."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with ExitStack() as stack:
        try:
            browser = stack.enter_context(running_browser())
        except NoBrowser as reason:
            pytest.skip(str(reason))
        yield browser


@pytest.fixture
def context(browser: Browser, web: Web) -> Iterator[BrowserContext]:
    """Return a browser's context without a session, whose tabs throw no error and break no rule of the policy."""
    context = browser.new_context(base_url=f"http://127.0.0.1:{web.port}")
    context.set_default_timeout(WAIT_MILLISECONDS)
    broken: list[str] = []
    context.on("weberror", lambda error: broken.append(str(error.error)))
    context.on("console", lambda message: broken.append(message.text) if _is_breach(message.text) else None)
    yield context
    context.close()
    assert not broken


def _is_breach(text: str) -> bool:
    """Return whether a line of the console is about the page's policy; foreign frames may be refused."""
    return "Content Security" in text and "frame-ancestors" not in text


@pytest.fixture
def tab(context: BrowserContext) -> Page:
    return context.new_page()


def log_in(tab: Page, token: str) -> None:
    """Open the page and paste a token."""
    tab.goto("/")
    tab.get_by_label("Token").fill(token)
    tab.get_by_role("button", name="Log in").click()
    tab.get_by_role("heading", name="Cluster", exact=True).wait_for()


def open_details(tab: Page) -> None:
    """Show all that a view has folded away."""
    tab.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")


@pytest.fixture
def inside(tab: Page, web: Web) -> Page:
    """Return a tab that is logged in, with the daemon's own token."""
    log_in(tab, web.token)
    return tab
