"""Record of a daemon's process, from which the next start reports the fault that ended it.

Two small files in the state dir: the process's unfinished work, and the reports of `faulthandler` if a fault kills it.
A signal that `faulthandler` does not name has a place of its own in the second file. Both outlive the process, since
the kernel has their bytes as soon as they are written. They need not outlive a power loss, which is no fault of a job.
`os._exit()` in a model counts as SIGABRT. SIGKILL, and `exit()` of native code, leave no report, so they never count.
"""

from __future__ import annotations

import faulthandler
import fcntl
import json
import logging
import os
from os import _exit
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote

from protos.cluster_pb2 import Predecessor
from services.runtime.fault_report import REPORT_BYTES, UNNAMED_SIGNALS, Fault, parse_fault

log = logging.getLogger("tiermesh")

RECORD_BYTES = 4096
"""Size of the record; it is written in one piece within a page."""

_PLACES = {number: place * REPORT_BYTES for place, number in enumerate(UNNAMED_SIGNALS, 1)}
"""Offset of the report on each signal that `faulthandler` does not name. The file is sparse."""


class ProcessRecord:
    """Record of one process; `open` reads its predecessor's and replaces it.

    Attributes:
        predecessor: how the process before this one ended; None if no fault is known to have killed it.
    """

    def __init__(self, descriptors: list[int], incarnation: str, predecessor: Predecessor | None) -> None:
        self.predecessor = predecessor
        self._descriptors = descriptors
        self._record = descriptors[0]
        self._incarnation = incarnation
        self._written: tuple[str, int] | None = None
        self.note_duty()

    @classmethod
    def open(cls, state_dir: Path, name: str, incarnation: str) -> ProcessRecord | None:
        """Read the predecessor's record and begin this process's.

        Args:
            state_dir: folder of the files; created if it is missing.
            name: name of the daemon.
            incarnation: id of this process start.

        Returns:
            None, after a line in the log, if the folder can't be written or another process of that name lives. The
            daemon works without a record, too, but then a fault that kills it looks like a person's `kill -9`.
        """
        stem = quote(name, safe="")
        descriptors: list[int] = []
        try:
            state_dir.mkdir(parents=True, exist_ok=True)
            for suffix in ("process", "fault", *["fault"] * len(UNNAMED_SIGNALS)):
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
                descriptors.append(os.open(state_dir / f"{stem}.{suffix}", flags, 0o600))
            record, faults, *unnamed = descriptors
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fault, report = _read_fault(faults)
            predecessor = _read_predecessor(os.pread(record, RECORD_BYTES, 0), fault)
            if predecessor is not None:
                kept = state_dir / f"{stem}.last-fault"
                kept.write_bytes(report)
                log.error("the process before this one was killed: %s; stack: %s", predecessor.text, kept)
            os.ftruncate(faults, 0)
            faulthandler.enable(file=faults)
            for descriptor, (number, place) in zip(unnamed, _PLACES.items(), strict=True):
                os.lseek(descriptor, place, os.SEEK_SET)
                faulthandler.register(number, file=descriptor, chain=True)
            _make_exit_a_fault()
            return cls(descriptors, incarnation, predecessor)
        except OSError as error:
            for each in descriptors:
                os.close(each)
            reason = "used by another process" if isinstance(error, BlockingIOError) else error.strerror
            log.warning(
                "--state-dir %s: %s; the next start can't report a fault that kills this process",
                state_dir,
                reason,
            )
            return None

    def note_duty(self, job: str = "", lease: int = 0) -> None:
        """Write the process's unfinished work, if it has changed.

        Args:
            job: id of the job that it works for; empty for no work.
            lease: id of the oldest lease that it holds; 0 for none.
        """
        if (job, lease) == self._written:
            return
        self._written = job, lease
        content = json.dumps({"incarnation": self._incarnation, "job": job, "lease": lease}).encode()
        try:
            os.pwrite(self._record, content.ljust(RECORD_BYTES), 0)
        except OSError as error:  # a full disk; the old content would blame a job that was left
            log.warning("the record of this process can't be written: %s", error.strerror)
            os.ftruncate(self._record, 0)

    def close(self) -> None:
        """Close the record of a process that ends without a fault."""
        self.note_duty()
        os._exit = _exit
        faulthandler.enable()  # back to standard error, for what happens while the interpreter ends
        for number in UNNAMED_SIGNALS:
            faulthandler.unregister(number)
        for descriptor in self._descriptors:
            os.close(descriptor)


def _make_exit_a_fault() -> None:
    """Let this process die of SIGABRT, and so leave a report, where a model calls `os._exit`.

    Its parent alone would see that exit. To the next start it would look like a `kill -9`.
    """
    process = os.getpid()

    def exit_at_work(status: int) -> NoReturn:
        if os.getpid() == process:
            os.abort()
        _exit(status)  # a child, such as one of multiprocessing, ends in order

    os._exit = exit_at_work


def _read_fault(reports: int) -> tuple[Fault | None, bytes]:
    """Return the fault in an open file of reports, and its report."""
    for place, number in ((0, None), *((place, number) for number, place in _PLACES.items())):
        report = os.pread(reports, REPORT_BYTES, place)
        fault = parse_fault(report.decode(errors="replace"), number)
        if fault is not None:
            return fault, report
    return None, b""


def _read_predecessor(record: bytes, fault: Fault | None) -> Predecessor | None:
    """Return how a process ended by a fault, from its record; None if it did not."""
    if fault is None:
        return None
    try:
        content = json.loads(record)
        return Predecessor(
            incarnation=content["incarnation"],
            job=content["job"],
            lease=content["lease"],
            signal=fault.signal,
            text=fault.text,
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None  # written by another program, or damaged
