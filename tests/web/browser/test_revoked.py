"""A token that is revoked while its page is open, at an aggregator that lets people in by tokens alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from protos import jobs_pb2
from services.transport.security import Security
from tests.support.certificates import make_certificates
from tests.support.fake_aggregator import FakeAggregator, serving
from tests.support.web_server import Web, serving_web
from tests.web.browser.conftest import log_in
from tests.web.test_tokens import Tokens

pytestmark = pytest.mark.long

ENDED_MILLISECONDS = 5_000
"""Longest life of a session whose token was revoked, by the issue; aggregators look at the file every second."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def tokens(tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "tokens.txt")


@pytest.fixture
def fake(tokens: Tokens, certificates: Path) -> Iterator[FakeAggregator]:
    fake = FakeAggregator()
    fake.jobs["job-1"] = jobs_pb2.Job(id="job-1", name="open", state=jobs_pb2.RUNNING, step=3, steps=10)
    pair = (certificates / "aggregator.pem", certificates / "aggregator.key")
    with serving(fake, Security(*pair, tokens=tokens.path)):
        yield fake


@pytest.fixture
def web(tmp_path: Path, fake: FakeAggregator, certificates: Path) -> Iterator[Web]:
    with serving_web(tmp_path, fake.address, security=Security(ca=certificates / "authority.pem")) as web:
        yield web


@pytest.mark.parametrize("view", ["cluster", "jobs", "jobs/job-1", "submit"])
def test_the_page_asks_for_another_token_within_five_seconds(tab: Page, tokens: Tokens, view: str) -> None:
    token = tokens.issue("dan", 3600.0)
    log_in(tab, token)
    tab.goto(f"/#/{view}")
    tab.get_by_role("heading", level=1).wait_for()
    tokens.revoke(token)
    tab.get_by_label("Token").wait_for(timeout=ENDED_MILLISECONDS)
    assert "was revoked" in tab.locator("body").inner_text()
    assert tab.context.cookies() == []
    log_in(tab, tokens.good)
