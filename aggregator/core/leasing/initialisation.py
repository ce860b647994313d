"""Who makes the initial weights of the running job. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Initialisation:
    """The lease under which one worker makes them.

    Attributes:
        lease: its id.
        session: of the worker.
        since_seconds: when it was granted; monotonic.
        described: whether the worker has said what its chunks will be.
    """

    lease: int
    session: int
    since_seconds: float
    described: bool = False
