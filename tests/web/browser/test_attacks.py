"""What other pages try with a browser that is logged in, and strings of a cluster that are markup."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from protos import jobs_pb2
from services.config.load import load_job_document
from tests.support.browser import FOREIGN_NAME
from tests.support.fake_aggregator import FakeAggregator, metrics_rows
from tests.support.web_server import Web
from tests.web.browser.conftest import open_details

pytestmark = pytest.mark.long

MARKUP = "<img class=injected src=/x>\u202e"
"""Text of every field; some may have no more characters."""
LINE = f'{MARKUP}<script>window.injected=1</script><img src=/x onerror="window.injected=1">\x1b[31m'
VIEWS = ("cluster", "jobs", "jobs/job-1", "submit", "submit?clone=job-1", "compare?jobs=job-1,job-2")


@pytest.fixture
def foreign() -> Iterator[dict[str, str]]:
    """Serve the pages of another server at this host, by path."""
    pages: dict[str, str] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(pages.get(self.path, "").encode())

        def log_message(self, format: str, *arguments: Any) -> None:
            """Stay silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        pages["url"] = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield pages
        server.shutdown()
        thread.join()


def test_a_name_that_is_pointed_here_gets_nothing(inside: Page, web: Web) -> None:
    answer = inside.goto(f"http://{FOREIGN_NAME}:{web.port}/")
    assert answer is not None and answer.status == 421
    assert "Tiermesh" not in inside.title()
    assert inside.evaluate("fetch('/v1/cluster').then((answer) => answer.status)") == 421


@pytest.mark.parametrize(
    "media_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
def test_a_form_of_another_page_changes_nothing(
    inside: Page, web: Web, fake: FakeAggregator, foreign: dict[str, str], media_type: str
) -> None:
    url = f"http://127.0.0.1:{web.port}/v1/jobs/job-1/cancel"
    foreign["/form"] = (
        f'<form method=post enctype="{media_type}" action="{url}"><input name=\'{{"now":true,"x":"\' value=\'"}}\'>'
        "</form><script>document.forms[0].submit()</script>"
    )
    with inside.expect_response(url) as answered:
        inside.goto(f"{foreign['url']}/form")
    assert answered.value.status in (403, 415)
    assert fake.jobs["job-1"].state == jobs_pb2.RUNNING


def test_a_script_of_another_page_reads_and_changes_nothing(
    inside: Page, web: Web, fake: FakeAggregator, foreign: dict[str, str]
) -> None:
    foreign["/script"] = "<title>foreign</title>"
    inside.goto(f"{foreign['url']}/script")
    for path, method, headers in (
        ("/v1/cluster", "GET", "{}"),
        ("/v1/jobs/job-1/cancel", "POST", '{"Content-Type": "application/json"}'),
        ("/v1/session", "DELETE", "{}"),
    ):
        body = ', body: "{}"' if method == "POST" else ""
        outcome = inside.evaluate(
            f"fetch('http://127.0.0.1:{web.port}{path}', {{method: '{method}', credentials: 'include', "
            f"headers: {headers}{body}}}).then((answer) => answer.text(), () => 'refused')"
        )
        assert outcome == "refused"
    assert fake.jobs["job-1"].state == jobs_pb2.RUNNING
    inside.goto(f"http://127.0.0.1:{web.port}/")
    inside.get_by_role("heading", name="Cluster", exact=True).wait_for()


def test_the_page_stands_in_no_frame(inside: Page, web: Web, foreign: dict[str, str]) -> None:
    foreign["/frame"] = f'<iframe src="http://127.0.0.1:{web.port}/"></iframe>'
    inside.goto(f"{foreign['url']}/frame")
    (frame,) = inside.main_frame.child_frames
    assert frame.url.startswith("chrome-error:")


@pytest.fixture
def hostile(fake: FakeAggregator, tmp_path: Path) -> FakeAggregator:
    """Return an aggregator all of whose texts are markup."""
    for number, state in ((1, jobs_pb2.RUNNING), (2, jobs_pb2.FAILED)):
        job = fake.jobs[f"job-{number}"] = jobs_pb2.Job(
            id=f"job-{number}", name=MARKUP, owner=MARKUP, state=state, phase=MARKUP, detail=MARKUP,
            waiting=MARKUP, step=3, steps=10, skipped=MARKUP, checkpoint=MARKUP, checkpoint_step=2,
            model_sha256=MARKUP, submitted_seconds=1764237600.0, loss=1.0, workers=1,
        )  # fmt: skip
        job.excluded.add(worker=MARKUP, reason=MARKUP)
        job.worker_seconds[MARKUP] = 5.0
        job.start.CopyFrom(jobs_pb2.Start(job=MARKUP, step=1))
        claim = job.claims.add(layout_hash=MARKUP, fingerprint={MARKUP: MARKUP})
        claim.claimants.add(worker=MARKUP, voice=MARKUP)
        document = {"training_config": {"model_type": "linear_regression", "project_name": "a <b>job"}}
        fake.specs[f"job-{number}"] = load_job_document(document, folder=tmp_path)[0].to_json()
    status = fake.status
    status.leader, status.optimizer, status.waiting = MARKUP, MARKUP, MARKUP
    status.standbys.add(name=MARKUP)
    connection = jobs_pb2.Connection(host=MARKUP, version=MARKUP, round_trip_seconds=float("nan"))
    status.version, status.optimizer_connection.host = "0", MARKUP
    status.shards.add(name=MARKUP, address=MARKUP, connection=connection)
    status.waits.add(role=MARKUP, peer=MARKUP, job="job-1", what=MARKUP, seconds=5.0)
    status.worker_seconds[MARKUP] = 7.0
    status.running_jobs.append("job-1")
    status.job_waits.append(MARKUP)
    status.workers.add(
        name=MARKUP, job="job-1", state=MARKUP, detail=MARKUP, activity=MARKUP, incarnation=MARKUP,
        connection=connection,
    )  # fmt: skip
    fake.lines = [LINE, f"error: {LINE}"]
    fake.files = {"config.json": b"{}", MARKUP.replace("/", "_"): b"x"}
    fake.metrics = [metrics_rows(1, step=[1.0, 2.0], loss=[2.0, float("nan")], waited_for=[MARKUP, ""])]
    running = fake.jobs["job-1"]
    fake.events = [
        [
            jobs_pb2.JobEvent(
                job=running, kind=kind, text=MARKUP, seconds=1764237700.0 + number, waited_for=MARKUP
            )
            for number, kind in enumerate(
                ("state", "step", "evaluation", "checkpoint", "member", "audit", "tracking")
            )
        ]
        + [jobs_pb2.JobEvent(job=fake.jobs["job-2"], kind="state", text=MARKUP, seconds=1764237800.0)]
    ]
    return fake


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.usefixtures("hostile")
def test_markup_is_text_wherever_it_stands(inside: Page, view: str) -> None:
    inside.goto(f"/#/{view}")
    if view.startswith("submit"):
        inside.locator("#verdict[data-kind=good]").wait_for()
    else:
        inside.get_by_text("<img class=injected").first.wait_for()
    open_details(inside)
    assert inside.locator(".injected").count() == 0
    assert inside.evaluate("'injected' in window") is False
    assert not re.search("[\u202e\x1b]", inside.locator("body").inner_text()), "escapes are not shown"
