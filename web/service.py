"""The web daemon's service: the app, the client that it calls the aggregator with, and the files that were sent."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import cast

from prometheus_client import CollectorRegistry, Counter
from uvicorn._types import ASGI3Application

from services.files.store import FileStore
from services.jobs.target import AggregatorTarget
from services.runtime.metrics import RoleMetrics
from services.transport.ports.admission import ConnectionLimits, Refusal
from services.transport.security import Security
from web.aggregator import Aggregator
from web.app import PUBLIC_PATHS, make_app
from web.guard import Guard
from web.port import HttpPort
from web.static import PAGE_FOLDER, read_page
from web.submission import Submitter
from web.uploads import Uploads

log = logging.getLogger("tiermesh.web")


class WebMetrics(RoleMetrics):
    """Metrics of a web daemon."""

    role = "web"

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        self._answers = Counter(
            "tiermesh_http_answers_total",
            "Answers of the HTTP API, by the first digit of their status",
            ("role", "status"),
            registry=self.registry,
        )
        self._reachable = self._unlabelled("aggregator_reachable", "Whether an aggregator answers: 1 or 0")

    def count_answer(self, status: int) -> None:
        """Count an answer."""
        self._answers.labels(self.role, f"{status // 100}xx").inc()

    def set_reachable(self, reachable: bool) -> None:
        """Note whether an aggregator answers."""
        self._reachable.set(int(reachable))


class WebService:
    """Service of a web daemon.

    Args:
        target: the aggregator, and its standbys; its token is not used.
        state_dir: folder of the files that were sent.
        cache_bytes: largest size of all of them.
        hosts: names that callers may have for this server.
        own_token: token of this daemon; empty for none.
        metrics: its metrics.
        page_folder: folder of the page.
    """

    def __init__(
        self,
        target: AggregatorTarget,
        *,
        state_dir: Path,
        cache_bytes: int,
        hosts: Collection[str],
        own_token: str,
        metrics: WebMetrics,
        page_folder: Path = PAGE_FOLDER,
    ) -> None:
        self._submissions = state_dir / "submissions"
        store = FileStore(
            state_dir / "files", max_store_bytes=cache_bytes, store_limit="--cache-gb of `tiermesh web`"
        )
        self._aggregator = Aggregator(target, metrics.set_reachable)
        submitter = Submitter(store, self._submissions)
        page = read_page(page_folder)
        app = make_app(self._aggregator, submitter, Uploads(store), page)
        public_paths = {*PUBLIC_PATHS, *page}
        guard = Guard(app, public_paths, hosts, own_token, self._aggregator.check_token, metrics.count_answer)
        self._app = cast(ASGI3Application, guard)

    def open_port(
        self,
        listen: str,
        security: Security,
        limits: ConnectionLimits,
        count_refusal: Callable[[Refusal], None],
    ) -> HttpPort:
        """Open the port of the API."""
        return HttpPort(listen, security, self._app, limits=limits, count_refusal=count_refusal)

    async def start(self, tensor_port: int = 0) -> None:
        """Remove what submissions have left that a killed daemon was reading."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._submissions)
        self._submissions.mkdir(parents=True)

    async def run(self) -> None:
        """Look for the aggregator while it is away, until cancelled."""
        await self._aggregator.watch()

    async def stop(self) -> None:
        """Close the connections to the aggregator."""
        await self._aggregator.close()
