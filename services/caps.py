"""Caps on what people can take from an aggregator: their names, their values, and the error that names one.

The size of a job's spec is capped by the schema of jobs (`config/job.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from services.errors import NotYet, Refused
from services.printable import LINE_CHARACTERS

MB = 1_000_000
GB = 1_000_000_000

MOST_JOBS = 1_000_000
"""Largest cap on a number of jobs."""
MOST_RUNNING_JOBS = 256
"""Largest cap on the number of jobs that run at once."""
MOST_WORKERS_PER_PERSON = 1_024
"""Largest cap on the workers of a person's jobs: the most that an aggregator takes."""
MOST_PRIORITY = 100
"""Largest priority of a job; the least one is its negative."""
MOST_LOG_MB = 100_000
"""Largest cap on a job's log, in MB."""
MOST_DOWNLOAD_MB_PER_SECOND = 100_000
"""Largest cap on the bandwidth of downloads, in MB a second."""
MOST_PARAMETERS = 1 << 40
"""Largest cap on the number of parameters of a job's model."""
MOST_UPLOADS = 100_000
"""Largest cap on a number of uploaded files."""
MOST_UPLOAD_GB = 1_000_000
"""Largest cap on the size of uploaded files, in GB."""


class Cap(Enum):
    """Capped quantity. The value is the label `cap` of the metric."""

    QUEUED_JOBS = "queued_jobs"
    JOBS_PER_PERSON = "jobs_per_person"
    SPEC_BYTES = "spec_bytes"
    PARAMETERS = "parameters"
    LOG_BYTES = "log_bytes"
    DOWNLOADS = "downloads"
    DOWNLOADS_PER_PERSON = "downloads_per_person"
    DOWNLOAD_BANDWIDTH = "download_bandwidth"
    UPLOADS = "uploads"
    UPLOADS_PER_PERSON = "uploads_per_person"
    UPLOAD_BYTES = "upload_bytes"
    UPLOAD_BYTES_PER_PERSON = "upload_bytes_per_person"
    UPLOADS_PER_WORKER = "uploads_per_worker"
    UPLOAD_BYTES_PER_WORKER = "upload_bytes_per_worker"


class CapReached(NotYet):
    """Request that a cap refuses now, and that may succeed later.

    Args:
        cap: the cap.
        text: one line with the owner, the amount, the bound, and what to do.
    """

    limit = LINE_CHARACTERS

    def __init__(self, cap: Cap, text: str) -> None:
        super().__init__(text)
        self.cap = cap


class OverCap(Refused):
    """Request that is over a cap by itself, so it is refused for good.

    Args:
        cap: the cap.
        text: one line with the amount, the bound, and what to do.
    """

    def __init__(self, cap: Cap, text: str) -> None:
        super().__init__(text)
        self.cap = cap


@dataclass(frozen=True)
class Caps:
    """Caps of an aggregator.

    Attributes:
        queued_jobs: largest number of jobs that have not ended.
        jobs_per_person: largest number of them that one person has. It does not apply without security, where
            callers have no names.
        log_mb: largest size of a job's log, in MB.
        download_mb_per_second: largest bandwidth of all downloads together, in MB a second; None for no cap.
        uploads: largest number of files that people have uploaded and that are still here.
        uploads_per_person: largest number of them that one person has uploaded.
        upload_gb: largest size of all of them together, in GB.
        upload_gb_per_person: largest size of those of one person, in GB.
        parameters: largest number of parameters of a job's model.
        running_jobs: largest number of jobs that run at once.
        workers_per_person: largest number of workers that the jobs of one person have at once; None for no cap. It does
            not apply without security.
    """

    queued_jobs: int = 10_000
    jobs_per_person: int = 5_000
    log_mb: int = 100
    download_mb_per_second: int | None = None
    uploads: int = 10_000
    uploads_per_person: int = 5_000
    upload_gb: int = 200
    upload_gb_per_person: int = 100
    parameters: int = MOST_PARAMETERS
    running_jobs: int = 8
    workers_per_person: int | None = None
