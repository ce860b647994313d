"""Where an aggregator is and how it is called; without gRPC, so that a command that is refused starts soon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.transport.security import Security


@dataclass(frozen=True)
class AggregatorTarget:
    """Address of an aggregator, and how to connect to it.

    Attributes:
        address: `HOST:PORT` of the aggregator, or a comma-separated list of it and its standbys.
        security: own certificate, and the authority to trust.
        timeout_seconds: longest wait for an answer.
        token: token to show in place of a certificate; empty for none.
    """

    address: str
    security: Security
    timeout_seconds: float
    token: str = ""
