"""The web daemon: its options, and the service made from them."""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry

from services.errors import Refused
from services.runtime.daemon import DaemonOptions, MainPort, run_service
from services.runtime.process import make_state_dir
from services.transport.addresses import split_address, split_addresses
from services.transport.ports.admission import ConnectionLimits, Refusal
from services.transport.security import Security
from web.port import MOST_CONNECTIONS, PENDING_OF_ADDRESS
from web.service import WebMetrics, WebService

log = logging.getLogger("tiermesh.web")

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class WebOptions(DaemonOptions):
    """The options of a web daemon.

    Attributes:
        aggregator: `HOST:PORT` of the aggregator's port for people, or a comma-separated list with its standbys'.
        state_dir: folder of the files that were sent.
        token_file: file that keeps the daemon's own token, which it has without TLS.
        allowed_hosts: further names that callers may have for this server.
        cache_bytes: largest size of all files that were sent.
        timeout_seconds: longest wait for an answer of the aggregator.
    """

    aggregator: str = field(kw_only=True)
    state_dir: Path = field(kw_only=True)
    token_file: Path = field(kw_only=True)
    allowed_hosts: tuple[str, ...] = field(default=(), kw_only=True)
    cache_bytes: int = field(kw_only=True)
    timeout_seconds: float = field(default=20.0, kw_only=True)

    def __post_init__(self) -> None:
        """Check the addresses too."""
        super().__post_init__()
        split_addresses("--aggregator", self.aggregator)
        if self.security.tokens is not None:
            raise Refused("--tokens: the aggregator has them, expected none here; leave it out")


def run(options: WebOptions) -> int:
    """Run a web daemon until a signal stops it; return the exit code."""
    own_token = ""

    def build() -> tuple[WebService, CollectorRegistry]:
        nonlocal own_token
        from services.jobs.target import AggregatorTarget
        from web.own_token import keep_token

        make_state_dir(options.state_dir)
        if not options.security.tls:
            own_token = keep_token(options.token_file)
        # Callers' calls are made without the daemon's certificate, so that it lends them none of its rights.
        security = Security(ca=options.security.ca)
        metrics = WebMetrics()
        service = WebService(
            AggregatorTarget(options.aggregator, security, options.timeout_seconds),
            state_dir=options.state_dir,
            cache_bytes=options.cache_bytes,
            hosts=_hosts(options),
            own_token=own_token,
            metrics=metrics,
        )
        return service, metrics.registry

    async def open_port(
        service: WebService,
        _: DaemonOptions,
        limits: ConnectionLimits,
        count_refusal: Callable[[Refusal], None],
    ) -> MainPort:
        most = min(limits.connections, MOST_CONNECTIONS)
        limits = dataclasses.replace(
            limits, connections=most, pending_by_address=PENDING_OF_ADDRESS, proof="an accepted token"
        )
        port = service.open_port(options.listen, options.security, limits, count_refusal)
        _announce(options, port.port, own_token)
        return port

    return run_service("web", options, build, open_port)


def _hosts(options: WebOptions) -> frozenset[str]:
    """Return the names that `Host` may have: loopback's, the host of --listen, the certificate's, and further ones."""
    names = {*LOOPBACK_NAMES, *options.allowed_hosts}
    host, _ = split_address("--listen", options.listen)
    names.add(host)
    names |= options.security.own_hosts()
    return frozenset(name.lower() for name in names if name not in ("0.0.0.0", "::"))


def _announce(options: WebOptions, port: int, own_token: str) -> None:
    """Log where page and API are, and print the token on a terminal, as Jupyter does; no log has it."""
    host, _ = split_address("--listen", options.listen)
    shown = "localhost" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"{'http' if options.security.cert is None else 'https'}://{shown}:{port}"
    token = f"token in {options.token_file}" if own_token else "tokens are the aggregator's"
    log.info("page at %s, HTTP API below /v1, %s", address, token)
    if own_token and sys.stderr.isatty():
        os.write(2, f"\n    {address}\n    token: {own_token}\n\n".encode())
