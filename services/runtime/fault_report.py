"""The fault that killed a process, from the report that `faulthandler` wrote as it died."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from pathlib import PurePath

from services.printable import printable

REPORT_BYTES = 1 << 20
"""Largest report that is read. faulthandler writes at most 100 frames of at most 100 threads."""

TEXT_CHARACTERS = 300
"""Longest description of a fault."""

SHOWN_FRAMES = 2
"""Number of functions that a description names, the innermost first."""

_SIGNALS = {
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Aborted": signal.SIGABRT,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
}

UNNAMED_SIGNALS = (
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
)
"""Signals that end a process, and that its own code sends rather than a person: traps, forbidden system calls, timers.

A report on them has no headline.
"""

_IDLE_FILE, _DEVICE_FILE = "selectors.py", "worker/device_thread.py"

_HEADLINE = re.compile(r"^Fatal Python error: (.+)$", re.MULTILINE)
_STACK = re.compile(
    r"^(Current thread|Thread|Stack) [^\n]*\(most recent call first\):\n((?:  .*\n?)*)", re.MULTILINE
)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.+)$', re.MULTILINE)


@dataclass(frozen=True)
class Fault:
    """The fault that killed a process.

    Attributes:
        signal: number of the signal.
        text: signal and innermost functions, as one printable line.
    """

    signal: int
    text: str


def parse_fault(report: str, unnamed: signal.Signals | None = None) -> Fault | None:
    """Return the fault that a report describes; None if it describes none.

    Args:
        report: what faulthandler wrote; empty if the process did not die by a fault.
        unnamed: signal that the report is about, one of `UNNAMED_SIGNALS`; None if its headline names it.
    """
    headline = _HEADLINE.search(report)
    number = _SIGNALS.get(headline.group(1).strip()) if headline is not None else None
    if unnamed is not None and _STACK.search(report):
        number = unnamed
    if number is None:
        return None
    stacks = [(kind, _FRAME.findall(frames)) for kind, frames in _STACK.findall(report)]
    frames = next((frames for kind, frames in stacks if kind != "Thread"), [])
    where = "in"
    if frames and PurePath(frames[0][0]).name == _IDLE_FILE:
        # A signal that a process sends to itself reaches its main thread, which is idle in the event loop.
        device = next(
            (each for _, each in stacks if any(file.endswith(_DEVICE_FILE) for file, *_ in each)), []
        )
        if device:
            frames, where = device, "while the device thread was in"
    places = [f"{function} at {PurePath(file).name}:{line}" for file, line, function in frames[:SHOWN_FRAMES]]
    text = f"{number.name} {where} {', called by '.join(places)}" if places else number.name
    return Fault(number, printable(text, TEXT_CHARACTERS))
