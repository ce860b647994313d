"""A browser with the page of `tiermesh web`, in a process of its own: `tests/support/browser.py`.

Each line of standard input is an order, and each is answered by a line:

    visit           without a cache, open the cluster; answered with the seconds to the first paint, and the bytes
    draw JOB        the same for a job; answered with the seconds until its first curve is there
    follow JOB TABS so many tabs open a job's page, all visible; answered once each has a curve
    leave           they close
"""

from __future__ import annotations

import sys
from contextlib import ExitStack

from playwright.sync_api import Browser, BrowserContext, Page

from tests.support.browser import running_browser

DRAW_SECONDS = 100
"""Longest wait for the curve of a tab, while all of them open beside a job that computes."""
CURVE = ".uplot canvas"
NOTE_CURVE = f"""
new MutationObserver((changes, observer) => {{
    if (document.querySelector("{CURVE}")) {{ window.curveAt = performance.now(); observer.disconnect(); }}
}}).observe(document, {{ childList: true, subtree: true }});
"""
VISIT = """
() => {
    const [paint] = performance.getEntriesByName("first-contentful-paint");
    const entries = [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")];
    return [paint.startTime / 1000, entries.reduce((sum, each) => sum + each.transferSize, 0)];
}
"""


def open_context(browser: Browser, url: str, token: str) -> BrowserContext:
    """Return a context of the browser that is logged in."""
    context = browser.new_context(base_url=url)
    answer = context.request.post("/v1/session", data={}, headers={"Authorization": f"Bearer {token}"})
    assert answer.status == 204, answer.text()
    context.add_init_script(NOTE_CURVE)
    return context


def open_job(context: BrowserContext, job: str) -> Page:
    """Begin to open a job's page, and return it."""
    tab = context.new_page()
    tab.goto(f"/#/jobs/{job}", wait_until="commit")
    return tab


def serve(url: str, token: str) -> None:
    """Carry out orders until standard input ends."""
    with running_browser() as browser, ExitStack() as tabs:
        for line in sys.stdin:
            words, answer = line.split(), "done"
            with ExitStack() as stack:
                if words[0] == "follow":
                    # A browser has six connections to a host, and each tab's events take one: so each has its own.
                    contexts = [open_context(browser, url, token) for _ in range(int(words[2]))]
                    for context in contexts:
                        tabs.callback(context.close)
                    for tab in [open_job(context, words[1]) for context in contexts]:
                        tab.locator(CURVE).first.wait_for(timeout=1000 * DRAW_SECONDS)
                elif words[0] == "leave":
                    tabs.close()
                else:
                    context = open_context(browser, url, token)
                    stack.callback(context.close)
                    if words[0] == "draw":
                        tab = open_job(context, words[1])
                        tab.locator(CURVE).first.wait_for()
                        answer = str(tab.evaluate("window.curveAt / 1000"))
                    else:
                        tab = context.new_page()
                        tab.goto("/#/cluster")
                        tab.get_by_role("heading", name="Workers").wait_for()
                        answer = " ".join(map(str, tab.evaluate(VISIT)))
            print(answer, flush=True)


if __name__ == "__main__":
    serve(*sys.argv[1:])
