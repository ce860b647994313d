"""What one does by the page: each action at a real cluster, and what the page shows while the cluster changes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.support.cluster.daemon import eventually
from tests.support.web_server import Web
from tests.web.browser.conftest import open_details
from tests.web.browser.site import HELD_AT, Site, serving_site

pytestmark = pytest.mark.long

MOST_STREAMS = 3
"""Windows of a browser that have a stream of events, see web/page/stream.js."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def web(site: Site) -> Web:
    return site.web


def test_the_cluster_shows_its_roles_and_what_workers_do(inside: Page, site: Site) -> None:
    site.open(inside, "cluster")
    for text in ("optimizer", "aggregator", "standby", "worker-1", "worker-3"):
        inside.get_by_text(text).first.wait_for()
    assert inside.locator("article").count() == 2
    assert inside.get_by_text("worker-2").count() == 0
    links = inside.get_by_role("table", name=re.compile("Links"))
    for name in ("optimizer", "worker-1", "worker-3"):
        links.get_by_role("row", name=re.compile(f"{name}.* ms ")).wait_for()
    assert inside.locator("article").get_by_text("127.0.0.1").count() == 2


def test_a_running_job_shows_its_curves_deaths_log_and_checkpoints(inside: Page, site: Site) -> None:
    site.open(inside, "running job")
    inside.get_by_text(f"step {HELD_AT} of 12").first.wait_for()
    open_details(inside)
    inside.get_by_text("worker worker-2 is gone").first.wait_for()
    search = inside.get_by_role("searchbox").first
    search.fill("worker-2")
    search.press("Enter")
    inside.get_by_label("Lines that were found").get_by_text("worker-2").first.wait_for()
    with inside.expect_download() as saved:
        inside.get_by_role("link", name=re.compile(r"model\.safetensors")).first.click()
    assert saved.value.path().stat().st_size > 1000


def test_of_many_windows_a_few_have_streams_and_all_are_up_to_date(
    inside: Page, site: Site, web: Web
) -> None:
    streams: list[str] = []
    inside.context.on(
        "request", lambda each: streams.append(each.url) if each.url.endswith("/events") else None
    )
    windows = [inside, *(inside.context.new_page() for _ in range(7))]
    for window in windows:
        site.open(window, "running job")
        window.get_by_text(re.compile("^(live|asked for every 5 s)$")).wait_for()
    assert count_live(windows) == len(streams) == MOST_STREAMS
    web.call("POST", f"/v1/jobs/{site.running}/priority", {"priority": -7})
    for window in windows:
        window.get_by_role("region", name="Lines of the log").get_by_text("priority -7").wait_for()
    windows.pop(0).close()
    eventually(lambda: count_live(windows) == MOST_STREAMS, "another window that has the stream")
    assert len(streams) == MOST_STREAMS + 1
    for window in windows:
        window.close()


def count_live(windows: list[Page]) -> int:
    return sum(window.get_by_text("live", exact=True).count() for window in windows)


def test_a_config_is_checked_as_one_types_and_submitted(inside: Page, site: Site, web: Web) -> None:
    site.open(inside, "submit")
    config = inside.get_by_label("Config of the job")
    config.fill(config.input_value().replace("max_steps: 500", "max_steps: -1"))
    inside.locator("#verdict[data-kind=bad]").wait_for()
    inside.get_by_text("training_config.max_steps").first.wait_for()
    assert inside.get_by_role("button", name="Submit", exact=True).is_disabled()
    config.fill(config.input_value().replace("max_steps: -1", "max_steps: 3"))
    inside.locator("#verdict[data-kind=good]").wait_for()
    inside.get_by_role("button", name="Submit", exact=True).click()
    inside.get_by_role("heading", level=1, name="demo").wait_for()
    job = inside.url.rpartition("/")[2]
    assert web.get(f"/v1/jobs/{job}").json["steps"] == 3
    web.call("POST", f"/v1/jobs/{job}/cancel", {})


def test_a_job_is_cloned_paused_resumed_and_cancelled(inside: Page, site: Site, web: Web) -> None:
    site.open(inside, "running job")
    inside.get_by_role("link", name="Clone and edit").click()
    inside.locator("#verdict[data-kind=good]").wait_for()
    assert "max_steps: 12" in inside.get_by_label("Config of the job").input_value()
    inside.get_by_role("button", name="Submit", exact=True).click()
    inside.wait_for_url(lambda url: "/jobs/" in url and site.running not in url)
    job = inside.url.rpartition("/")[2]
    for button, state in (("Pause", "paused"), ("Resume", "queued")):
        inside.get_by_role("button", name=button, exact=True).click()
        inside.get_by_text(state, exact=False).first.wait_for()
        eventually(
            lambda wanted=state: web.get(f"/v1/jobs/{job}").json["state"] in (wanted, "running"), state
        )
    inside.get_by_role("button", name="Cancel", exact=True).click()
    inside.get_by_role("button", name="Cancel the job").click()
    eventually(lambda: web.get(f"/v1/jobs/{job}").json["state"] == "cancelled", "the cancellation")
    inside.get_by_text("cancelled").first.wait_for()


def test_several_jobs_are_changed_at_once(inside: Page, site: Site, web: Web) -> None:
    jobs = []
    for number in range(2):
        config = {
            "training_config": {
                "model_type": "linear_regression",
                "project_name": f"many-{number}",
                "max_steps": 5,
            }
        }
        answer = web.call("POST", "/v1/jobs", {"config": config})
        jobs.append(answer.json["job"]["job"])
        web.call("POST", f"/v1/jobs/{jobs[-1]}/pause", {})
    site.open(inside, "jobs")
    for number in range(2):
        inside.get_by_role("checkbox", name=re.compile(f"many-{number}")).check()
    inside.get_by_role("button", name="Cancel", exact=True).click()
    inside.get_by_role("button", name="Cancel 2 jobs").click()
    eventually(
        lambda: {web.get(f"/v1/jobs/{job}").json["state"] for job in jobs} == {"cancelled"},
        "both cancellations",
    )


def test_an_ended_job_goes_on(inside: Page, site: Site, web: Web) -> None:
    site.open(inside, "ended job")
    inside.get_by_role("button", name="Continue", exact=True).click()
    dialog = inside.get_by_role("dialog")
    dialog.get_by_label("Updates to make in all").fill("7")
    dialog.get_by_role("button", name="Continue", exact=True).click()
    inside.wait_for_url(lambda url: "/jobs/" in url and site.ended not in url)
    job = inside.url.rpartition("/")[2]
    assert web.get(f"/v1/jobs/{job}").json["started_from"].startswith(site.ended)
    web.call("POST", f"/v1/jobs/{job}/cancel", {})


def test_two_jobs_are_compared_by_curve_and_by_setting(inside: Page, site: Site) -> None:
    site.open(inside, "compare")
    row = inside.get_by_role("row", name=re.compile(r"training_config\.max_steps"))
    assert "12" in row.inner_text() and "5" in row.inner_text()


def test_an_aggregator_that_is_gone_is_told_and_nothing_is_lost(inside: Page, site: Site) -> None:
    site.open(inside, "running job")
    draft = inside.context.new_page()
    site.open(draft, "submit")
    draft.get_by_label("Config of the job").fill("training_config: {max_steps: 7}")
    site.cluster.aggregator.kill()
    for standby in [each for each in site.cluster.daemons if each.name == "standby"]:
        standby.kill()
    inside.get_by_text(re.compile("aggregator .*|No aggregator answers")).first.wait_for()
    site.cluster.start_aggregator()
    inside.bring_to_front()
    inside.get_by_text("No aggregator answers").wait_for(state="detached", timeout=60_000)
    assert draft.get_by_label("Config of the job").input_value() == "training_config: {max_steps: 7}"
