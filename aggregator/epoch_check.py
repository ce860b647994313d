"""Detection of an epoch that is too old, from the refusal of a peer."""

from __future__ import annotations

from aggregator.core.succession import EpochBehind
from services.transport.control.attend_client import LinkEnd


def check_epoch(peer: object, end: LinkEnd) -> None:
    """Check that a link did not end because its peer has obeyed a newer epoch whose aggregator is gone.

    If that aggregator still leads on the same queue, the queue itself says so. If it leads on another one, this
    aggregator waits.

    Raises:
        EpochBehind: it did.
    """
    if end.obeyed_epoch:
        raise EpochBehind(str(peer), end.obeyed_epoch)
