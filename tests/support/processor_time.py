"""Limits of work as processor time, which doesn't grow while other processes keep the machine busy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limit_work(limit_seconds: float) -> Iterator[None]:
    """Check that the body uses less than so much processor time on this thread.

    Args:
        limit_seconds: at least thirty times what the body takes on an idle machine: a thread on a core that others use
            too has been seen to take twenty times as long. What a limit is there to find, such as quadratic work on
            untrusted input, takes much longer.
    """
    began = time.thread_time()
    yield
    seconds = time.thread_time() - began
    assert seconds < limit_seconds, (
        f"{seconds:.2f} s of processor time, expected less than {limit_seconds:g} s"
    )
