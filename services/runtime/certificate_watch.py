"""A daemon's own certificate: whether its role and name fit, a metric of its end, and a warning before it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from datetime import datetime, timezone

from prometheus_client import CollectorRegistry, Gauge

from services.errors import Refused
from services.printable import printable
from services.transport.access.identity import show_names
from services.transport.access.permissions import CallerKind
from services.transport.security import Security

log = logging.getLogger("tiermesh")

EXPIRY_METRIC = "tiermesh_certificate_expiry_timestamp_seconds"
"""Metric of a daemon that has a certificate."""
WARNING_DAYS = 14.0
"""Days before the end of a certificate from which on the log warns, once a day."""
LOOK_SECONDS = 3600.0
"""Time between looks at the certificate."""
_DAY_SECONDS = 86400.0
_KINDS = {
    "worker": {CallerKind.WORKER},
    "aggregator": {CallerKind.AGGREGATOR, CallerKind.SHARD},
    "optimizer": {CallerKind.OPTIMIZER},
    "web": {CallerKind.WEB},
}


def check_own_certificate(role: str, name: str, security: Security) -> None:
    """Check that a daemon has a certificate of its role and for its name, if it has one with a role.

    Args:
        role: role of the daemon; a shard is an aggregator too.
        name: name of the daemon.
        security: certificate of the daemon.

    Raises:
        Refused: it is the certificate of another role or name, with which its peers would refuse it.
    """
    own = security.own_identity()
    if own is not None and own.kind is not None and own.kind not in _KINDS.get(role, {own.kind}):
        raise Refused(
            f"--tls-cert {security.cert}: is for {own.kind.value} {own.name}, but this is the daemon of role {role}; "
            f"issue one by `tiermesh certs issue {role} NAME`"
        )
    if own is not None and not own.allows_name(name):
        raise Refused(
            f"--tls-cert {security.cert}: is bound to {show_names(own.bound_names)}, but this daemon's --name is "
            f"{printable(name, 40)}; give it such a name, or issue a certificate for its own"
        )


class CertificateWatch:
    """Metric and warnings about the end of a daemon's own certificate, which may be renewed meanwhile.

    Args:
        security: certificate of the daemon.
        registry: registry of the daemon's metrics.
        role: role of the daemon.
        clock: returns Unix time.
    """

    def __init__(
        self,
        security: Security,
        registry: CollectorRegistry,
        role: str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._security = security
        self._clock = clock
        self._expires_seconds = float("inf")
        self._warned_seconds = float("-inf")
        if security.cert is not None:
            gauge = Gauge(
                EXPIRY_METRIC,
                "Unix time from which on this daemon's certificate is not valid",
                ("role",),
                registry=registry,
            )
            gauge.labels(role).set_function(self._look)

    async def run(self) -> None:
        """Look at the certificate from time to time, until cancelled."""
        while self._security.cert is not None:
            self.warn()
            await asyncio.sleep(LOOK_SECONDS)

    def warn(self) -> None:
        """Log a warning if the certificate ends soon, at most once a day."""
        expires, now = self._look(), self._clock()
        if expires - now < WARNING_DAYS * _DAY_SECONDS and now - self._warned_seconds >= _DAY_SECONDS:
            self._warned_seconds = now
            log.warning(
                "certificate %s expires at %s: renew it (`tiermesh certs renew`) and copy it here, without a restart",
                self._security.cert,
                datetime.fromtimestamp(expires, timezone.utc).isoformat(timespec="minutes"),
            )

    def _look(self) -> float:
        try:
            own = self._security.own_identity()
        except Refused:  # it is being replaced; the servers log what is wrong with it
            own = None
        if own is not None:
            self._expires_seconds = own.expires_seconds
        return self._expires_seconds
