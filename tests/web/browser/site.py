"""A real cluster with a page: a standby, a worker that has died, a job that is held at a step, and one that ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from playwright.sync_api import Page

from tests.cluster.test_web import start_web, submit
from tests.support.cluster.bits import regression_config, write_corpus
from tests.support.cluster.daemon import eventually
from tests.support.cluster.harness import Cluster
from tests.support.web_server import Web

HELD_AT = 6
"""Step at which jobs stay."""


@dataclass(frozen=True)
class Site:
    """A cluster, its page, and its jobs by their ids."""

    cluster: Cluster
    web: Web
    running: str
    ended: str

    @property
    def views(self) -> dict[str, tuple[str, str]]:
        """Fragments of all views by their names, and a selector of what is there once a view has its content."""
        curve, checked = ".uplot canvas", "#verdict[data-kind=good]"
        return {
            "cluster": ("cluster", "article"),
            "jobs": ("jobs", "tbody tr"),
            "running job": (f"jobs/{self.running}", curve),
            "ended job": (f"jobs/{self.ended}", curve),
            "compare": (f"compare?jobs={self.running},{self.ended}", curve),
            "submit": ("submit", checked),
            "clone": (f"submit?clone={self.running}", checked),
        }

    def open(self, tab: Page, view: str) -> None:
        """Open a view, and wait until it has its content."""
        fragment, content = self.views[view]
        tab.goto(f"/#/{fragment}")
        tab.locator(content).first.wait_for()


@contextmanager
def serving_site(folder: Path) -> Iterator[Site]:
    """Start the cluster, and end it with the context."""
    with Cluster(folder, tiers=3, workers=2, steps=HELD_AT, heartbeat_seconds=1.0) as cluster:
        standby = cluster.start_standby()
        web = start_web(cluster, f"{cluster.to_aggregator.address},{standby.address}")
        answer = web.call("POST", "/v1/jobs", {"config": regression_config()})
        ended = str(answer.json["job"]["job"])
        cluster.wait(ended, lambda job: job.state in (3, 4), "its end")
        running = submit(web, write_corpus(folder))
        cluster.wait_step(running, 2)
        cluster.workers[1].kill()
        eventually(
            lambda: "worker-2" in web.get(f"/v1/jobs/{running}/log").body.decode(), "the death in the log"
        )
        cluster.start_worker()
        cluster.wait_step(running, HELD_AT)
        yield Site(cluster, web, running, ended)
