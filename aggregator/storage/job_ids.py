"""Ids of jobs: the time of the submission for people, and random digits that distinguish jobs of the same second."""

from __future__ import annotations

import secrets
import time


def draw_job_id(unix_seconds: float) -> str:
    """Return an id such as `1122-183045-3fa9c1d2`, in local time.

    The queue draws again if it has the id already, so that ids are unique at any rate of submissions.
    """
    return f"{time.strftime('%m%d-%H%M%S', time.localtime(unix_seconds))}-{secrets.token_hex(4)}"
