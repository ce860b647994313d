"""How an aggregator learns from a peer that it no longer leads."""

from __future__ import annotations

import grpc

from aggregator.core.succession import Deposed
from services.transport.attend_client import LinkEnd


def raise_if_deposed(peer: object, end: LinkEnd) -> None:
    """Check that a link did not end because its peer obeys a newer aggregator.

    Raises:
        Deposed: it did.
    """
    if end.code is grpc.StatusCode.ABORTED:
        raise Deposed(f"{peer}: {end.reason}")
