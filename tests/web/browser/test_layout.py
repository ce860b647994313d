"""Each view of the page on screens of all widths, with a screen reader's rules, by keyboard, and in the dark."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from tests.support.web_server import Web
from tests.web.browser.conftest import log_in
from tests.web.browser.site import Site, serving_site

pytestmark = pytest.mark.long

WIDTHS = (320, 768, 1280, 3840)
VIEWS = ("cluster", "jobs", "running job", "ended job", "compare", "submit", "clone")
RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}
MOST_TABS = 200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with serving_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def web(site: Site) -> Web:
    return site.web


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_is_wider_than_its_screen(inside: Page, site: Site, view: str) -> None:
    for width in WIDTHS:
        inside.set_viewport_size({"width": width, "height": 900})
        site.open(inside, view)
        widths = inside.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert widths[0] <= widths[1], (view, width)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("view", [*VIEWS, "login"])
def test_no_view_breaks_a_rule_of_wcag(tab: Page, site: Site, web: Web, view: str, scheme: str) -> None:
    tab.emulate_media(color_scheme="dark" if scheme == "dark" else "light", reduced_motion="reduce")
    if view == "login":
        tab.goto("/")
        tab.get_by_label("Token").wait_for()
    else:
        log_in(tab, web.token)
        site.open(tab, view)
    found = Axe().run(tab, options=RULES).response["violations"]
    assert not found, [(each["id"], [node["target"] for node in each["nodes"]][:3]) for each in found]


def focus(tab: Page, name: str) -> None:
    """Press Tab until what has the focus has a name."""
    for _ in range(MOST_TABS):
        tab.keyboard.press("Tab")
        text = tab.evaluate(
            "(() => { const it = document.activeElement; return it.getAttribute('aria-label') || it.innerText"
            " || (it.labels && it.labels[0] && it.labels[0].innerText) || ''; })()"
        )
        if text.strip().startswith(name):
            return
    raise AssertionError(f"{MOST_TABS} times Tab did not reach {name}")


def test_a_job_is_found_and_changed_by_keyboard_alone(tab: Page, site: Site, web: Web) -> None:
    tab.goto("/")
    tab.get_by_label("Token").wait_for()
    focus(tab, "Token")
    tab.keyboard.type(web.token)
    tab.keyboard.press("Enter")
    tab.get_by_role("heading", name="Cluster", exact=True).wait_for()
    focus(tab, "Jobs")
    tab.keyboard.press("Enter")
    tab.get_by_role("heading", name="Jobs", exact=True).wait_for()
    tab.get_by_role("link", name="exact").wait_for()
    focus(tab, "exact")
    tab.keyboard.press("Enter")
    tab.get_by_role("heading", level=1, name="exact").wait_for()
    focus(tab, "Priority")
    tab.keyboard.press("Enter")
    dialog = tab.get_by_role("dialog")
    dialog.wait_for()
    focus(tab, "Priority")
    tab.keyboard.press("Control+A")
    tab.keyboard.type("-7")
    tab.keyboard.press("Enter")
    dialog.wait_for(state="hidden")
    assert web.get(f"/v1/jobs/{site.running}").json["priority"] == -7
