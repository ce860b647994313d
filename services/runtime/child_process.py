"""A child process of a daemon: spawned, heard and ended with everything that it has started, and why it ended.

Read `child_start.py` for the child's side, and `child_output.py` for what becomes of its output.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from services.errors import Failed
from services.runtime.child_output import OutputReader, TakeLines
from services.runtime.child_start import MARK_VARIABLE
from services.runtime.host_memory import count_memory_kills

ROOT = Path(__file__).parents[2]
"""Folder that this process's own modules were found in."""

_KILL_SECONDS = 5.0  # a process that the kernel can't end, such as one amid a device's call, is left after it
_PAUSE_SECONDS = 0.02
_QUIET_LOOKS = 2  # a process amid execve() shows no environment for a moment


class ChildProcess:
    """A process in a session of its own, begun afresh and never forked: threads and locks don't survive a fork.

    Spawn it on a thread that lives as long as this process: the kernel ends the child when that thread ends. Its
    module calls `begin_child()` first. Its files are those of this process's tree, wherever this process was started.

    Args:
        module: module to run.
        arguments: its command line.
        descriptors: open files that it inherits, under the same numbers.
        environment: its environment.
        take_lines: takes what it prints, on a thread of its own.

    Attributes:
        pid: its process id.
        exit_code: its exit code, or the negative number of the signal that killed it; None before `stop()`.

    Raises:
        Failed: the process can't be started.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str] = (),
        *,
        descriptors: Sequence[int] = (),
        environment: Mapping[str, str],
        take_lines: TakeLines,
    ) -> None:
        self._mark = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._kills_before = count_memory_kills()
        self._stopping = threading.Lock()
        self._reason = ""
        self.exit_code: int | None = None
        pipe, output = os.pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=descriptors,
                cwd=ROOT,  # which -m searches first: no other module of the same name is run
                env={**environment, MARK_VARIABLE: self._mark, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        except OSError as error:
            os.close(pipe)
            raise Failed(f"python -m {module}: can't be started ({error.strerror or error})") from None
        finally:
            os.close(output)
        self.pid = self._process.pid
        self._ended = os.pidfd_open(self.pid)
        self._output = OutputReader(pipe, take_lines)

    def wait(self, seconds: float) -> bool:
        """Return whether the process has ended; wait for that at most so many seconds."""
        return bool(self._reason) or _wait_for(self._ended, seconds)

    def stop(self, grace_seconds: float, because: str = "") -> str:
        """End the process and what it has started: SIGTERM, and SIGKILL after some time. Return why it has ended.

        All that it has printed is passed on before. Processes that left its session are found too, by their
        environment; one that has replaced that as well stays. Any thread may call, and others wait meanwhile.

        Args:
            grace_seconds: time between the signals.
            because: why it is ended, such as a limit that it has passed, for people. Empty if it is about to end by
                itself, as when it has closed its socket: it gets as much time for that first.

        Returns:
            One line. It says what the process died of if it ended by itself.
        """
        with self._stopping:
            if not self._reason:
                self._reason = self._end(grace_seconds, because)
            return self._reason

    def _end(self, grace_seconds: float, because: str) -> str:
        by_itself = self.wait(0 if because else grace_seconds)
        if not by_itself:
            self._process.terminate()
            self.wait(grace_seconds)
        was_killed = not self.wait(0)
        self._kill_all()
        gone = self.wait(_KILL_SECONDS)
        self._output.finish()
        if not gone:  # it is reaped by nobody, and holds its device
            return f"process {self.pid} does not end after SIGKILL; look at its devices, and restart the host"
        self.exit_code = code = self._process.wait()
        os.close(self._ended)
        if by_itself or not (was_killed or code in (0, -signal.SIGTERM)):
            return self._describe_end(code)
        ended = f"killed {grace_seconds:g} s after SIGTERM" if was_killed else "stopped"
        return f"{ended}: {because or 'it did not end by itself'}"

    def _describe_end(self, code: int) -> str:
        if code >= 0:
            return f"exit code {code}"
        name = signal.Signals(-code).name if -code in {*signal.Signals} else f"signal {-code}"
        if -code != signal.SIGKILL:
            return f"killed by {name}"
        if count_memory_kills() > self._kills_before:
            return "killed by SIGKILL for lack of memory"
        return "killed by SIGKILL, by a person or for lack of memory"

    def _kill_all(self) -> None:
        """Kill the session's processes, and all others that have been started with the child's environment."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)  # not reaped yet, so the number is still the child's
        deadline_seconds = time.monotonic() + _KILL_SECONDS
        quiet = 0
        while quiet < _QUIET_LOOKS and time.monotonic() < deadline_seconds:
            found = self._open_marked()
            quiet = 0 if found else quiet + 1
            for process in found:
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                _wait_for(process, _PAUSE_SECONDS)
                os.close(process)
            time.sleep(_PAUSE_SECONDS)

    def _open_marked(self) -> list[int]:
        """Return a descriptor of each living process that has the child's mark in its environment."""
        mark = f"{MARK_VARIABLE}={self._mark}\0".encode()
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            with suppress(OSError):  # it has ended, or is another user's
                process = os.pidfd_open(int(folder.name))  # before the look at it: numbers are used again
                try:
                    is_marked = mark in (folder / "environ").read_bytes()
                except OSError:
                    is_marked = False
                if is_marked:
                    found.append(process)
                else:
                    os.close(process)
        return found


def _wait_for(process: int, seconds: float) -> bool:
    """Return whether the process of a descriptor has ended, perhaps within so many seconds."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(round(1000 * seconds)))
