"""Pictures of the page for the documentation: `make pictures` takes them of a small cluster that trains the demo."""

from __future__ import annotations

import tempfile
from pathlib import Path

from playwright.sync_api import Page

from services.errors import Failed
from tests.cluster.test_web import start_web
from tests.support.browser import ROOT, running_browser
from tests.support.cluster.harness import ENDED, Cluster
from tests.web.browser.conftest import log_in

PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 200_000
SIZE = {"width": 1280, "height": 860}
CONFIG = ROOT / "configs" / "training_configs" / "demo.yaml"
HELD_AT = 170
"""Step of jobs at which they are pictured."""
JOBS = ((0.005, HELD_AT), (0.001, 500), (0.002, 500), (0.003, 500))
"""Learning rates and steps of the jobs: one that ends, two that run on a worker each, and one that waits."""


def main() -> None:
    """Make all pictures (Failed if one is too large)."""
    PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        Cluster(Path(folder), tiers=3, workers=2, steps=HELD_AT) as cluster,
        running_browser() as browser,
    ):
        web = start_web(cluster, cluster.to_aggregator.address)
        jobs = []
        for rate, steps in JOBS:
            overrides = {
                "training_config.optimizer.lr": rate,
                "training_config.max_steps": steps,
                "training_config.eval_every": 50,
                "training_config.project_name": f"demo-lr-{rate:g}",
            }
            submission = {"config": CONFIG.read_text(), "overrides": overrides}
            jobs.append(str(web.call("POST", "/v1/jobs", submission).json["job"]["job"]))
        for job in jobs[:3]:
            cluster.wait_step(job, HELD_AT)
        cluster.wait(jobs[0], lambda job: job.state in ENDED, "its end")
        tab = browser.new_page(base_url=f"http://localhost:{web.port}", viewport=SIZE)
        log_in(tab, web.token)
        curve = ".uplot canvas"
        for name, fragment, content in (
            ("cluster", "cluster", "article"),
            ("jobs", "jobs", "tbody tr"),
            ("job", f"jobs/{jobs[1]}", curve),
            ("compare", f"compare?jobs={jobs[0]},{jobs[1]}", curve),
            ("submit", f"submit?clone={jobs[0]}", "#verdict[data-kind=good]"),
        ):
            tab.goto(f"/#/{fragment}")
            tab.locator(content).first.wait_for()
            _take(tab, PICTURES / f"{name}.png")


def _take(tab: Page, path: Path) -> None:
    content = tab.screenshot(animations="disabled")
    if len(content) > MOST_BYTES:
        raise Failed(
            f"{path.name}: {len(content)} bytes, expected at most {MOST_BYTES}; make its view smaller"
        )
    path.write_bytes(content)
    print(f"{path.relative_to(ROOT)}: {len(content):,} bytes")


if __name__ == "__main__":
    main()
