"""First acts of a child process that a daemon has spawned; `child_process.py` is the daemon's side."""

from __future__ import annotations

import faulthandler
import os
from contextlib import suppress
from pathlib import Path

from services.runtime.process import end_with_parent

MARK_VARIABLE = "TIERMESH_CHILD"
"""Environment variable of a child and of all processes that it starts: `PID-ID`, the daemon's and a unique one."""

OOM_SCORE = 500
"""What is added to a child's score, of 1000 at most, by which the kernel chooses what to kill for lack of memory."""

_SCORE_FILE = Path("/proc/self/oom_score_adj")
_forking = 0  # this process, or the one that has forked it


def begin_child() -> None:
    """Tie this process to the daemon that has spawned it. A child's module calls it before anything else.

    The process ends with the daemon, and so does each process that it forks from Python. If memory is short, the
    kernel kills it rather than the daemon, which has the sums. A crash writes its stack to standard error. Relative
    paths mean what they mean to the daemon.
    """
    parent, _, _ = os.environ[MARK_VARIABLE].partition("-")
    _end_with(int(parent))
    with suppress(OSError):  # a folder that is gone
        os.chdir(f"/proc/{parent}/cwd")
    os.register_at_fork(before=_note_fork, after_in_child=lambda: _end_with(_forking))
    faulthandler.enable()
    with suppress(OSError, ValueError):  # a kernel without it chooses by size alone
        _SCORE_FILE.write_text(str(min(1000, int(_SCORE_FILE.read_text()) + OOM_SCORE)))


def _note_fork() -> None:
    global _forking
    _forking = os.getpid()


def _end_with(parent: int) -> None:
    """End this process when its parent ends, which may have happened before the kernel was asked to tell of it."""
    end_with_parent()
    if os.getppid() != parent:
        os._exit(1)
