"""Stop a daemon on SIGTERM or SIGINT, even if its event loop or a thread is stuck.

Python runs signal handlers on the main thread, so a busy event loop would delay them. Here the C handler writes the
signal's number into a socket. A thread reads it and enforces the limits.
"""

from __future__ import annotations

import logging
import selectors
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from os import _exit
from pathlib import PurePath
from types import FrameType, TracebackType

from services.errors import ExitCode
from services.tasks import start_thread
from services.timeouts import SAVE_SECONDS

log = logging.getLogger("tiermesh")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_PARENT_GONE = 255
_ENDED = 254
_SAVING = 253
_SAVED = 252
LEAVE_SECONDS = 2.0
"""Time after a graceful stop in which the process must end. Then threads that hang are left behind."""
_LOG_SECONDS = 1.0
_MOST_FRAMES = 4
_LONGEST_TEXT = 250
_current: ContextVar[StopWatch | None] = ContextVar("stop watch of this process", default=None)


@contextmanager
def saving(what: str) -> Iterator[None]:
    """Let a stop of this process take `SAVE_SECONDS` while the block runs; the launcher reads `what`."""
    watch = _current.get()
    if watch is None:
        yield
        return
    watch.note_saving(what)
    try:
        yield
    finally:
        watch.note_saved()


class StopWatch:
    """A context manager around a daemon's event loop, entered on the main thread.

    Args:
        stop_seconds: limit of the graceful stop.
        on_saving: called with what is saved when a save begins, which has a limit of its own.
        save_seconds: that limit; the graceful stop may go on for `stop_seconds` after it.
    """

    def __init__(
        self,
        stop_seconds: float,
        on_saving: Callable[[str], None] = lambda what: None,
        save_seconds: float = SAVE_SECONDS,
    ) -> None:
        self._stop_seconds = stop_seconds
        self._on_saving = on_saving
        self._save_seconds = save_seconds
        self._saves = False
        self._reader, self._writer = socket.socketpair()
        self._writer.setblocking(False)
        self._lock = threading.Lock()
        self._cancel: Callable[[], None] | None = None
        self._describe_wait: Callable[[], str] = str
        self._exit_code: int | None = None
        self._stopping = False
        self._previous_handlers: dict[signal.Signals, object] = {}
        self._previous_wakeup = -1

    @property
    def stopping(self) -> bool:
        """Whether a stop was asked for."""
        return self._stopping

    def __enter__(self) -> StopWatch:
        self._previous_wakeup = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        self._previous_handlers = {number: signal.signal(number, _do_nothing) for number in _SIGNALS}
        start_thread(self._watch, "stop-watch")
        _current.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        _current.set(None)
        signal.set_wakeup_fd(self._previous_wakeup)
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal has returned

    def begin(self, cancel: Callable[[], None], describe_wait: Callable[[], str]) -> None:
        """Set the callback that stops the daemon, and call it at once if a stop was asked for already.

        Args:
            cancel: function that starts the graceful stop, called on the watching thread.
            describe_wait: function that returns what an idle event loop waits for.
        """
        with self._lock:
            self._cancel, self._describe_wait = cancel, describe_wait
            stopping = self._stopping
        if stopping:
            cancel()

    def end(self, exit_code: int) -> None:
        """Note that the daemon has ended. If a stop was asked for, the process must end soon with this code."""
        self._exit_code = exit_code
        self._writer.send(bytes([_ENDED]))

    def parent_gone(self) -> None:
        """Ask for a stop, as the parent has ended."""
        self._writer.send(bytes([_PARENT_GONE]))

    def note_saving(self, what: str) -> None:
        """Give a stop the time to save something."""
        self._on_saving(what)
        self._writer.send(bytes([_SAVING]))

    def note_saved(self) -> None:
        """Give a stop no more than its usual time from now on."""
        self._writer.send(bytes([_SAVED]))

    # ---- on the watching thread ----

    def _watch(self) -> None:
        deadline: float | None = None
        with selectors.DefaultSelector() as selector:
            selector.register(self._reader, selectors.EVENT_READ)
            while True:
                if not selector.select(None if deadline is None else max(0.0, deadline - time.monotonic())):
                    self._exit_late()
                for event in self._reader.recv(64):
                    if event == _ENDED:
                        if not self._stopping:
                            return
                        deadline = time.monotonic() + LEAVE_SECONDS
                    elif event in (_SAVING, _SAVED):
                        self._saves = event == _SAVING
                        if deadline is not None:
                            deadline = time.monotonic() + self._limit_seconds
                    elif event == _PARENT_GONE:
                        deadline = deadline or self._stop("standard input ended, the parent is gone")
                    elif deadline is None:
                        deadline = self._stop(signal.Signals(event).name)
                    else:
                        _exit_process(f"{signal.Signals(event).name} while stopping; exiting now", self._code)

    @property
    def _code(self) -> int:
        return ExitCode.FAILED if self._exit_code is None else self._exit_code

    @property
    def _limit_seconds(self) -> float:
        return self._save_seconds if self._saves else self._stop_seconds

    def _stop(self, reason: str) -> float:
        """Start the graceful stop, and return when it must be over."""
        deadline = time.monotonic() + self._limit_seconds
        with self._lock:
            self._stopping = True
            cancel = self._cancel
        _log_briefly(logging.INFO, f"stopping: {reason}")
        if cancel is not None:
            cancel()
        return deadline

    def _exit_late(self) -> None:
        if self._exit_code is not None:
            main = threading.main_thread()
            threads = [each for each in threading.enumerate() if not each.daemon and each is not main] or [
                main
            ]
            stuck = ", ".join(f"{each.name} in {describe_stack(each)}" for each in threads)
            _exit_process(f"stopped, but threads hang: {stuck}; leaving them behind", self._exit_code)
        stack = describe_stack(threading.main_thread())
        where = f"waiting in {self._describe_wait()}" if not stack else f"the event loop is stuck in {stack}"
        _exit_process(f"did not stop within {self._limit_seconds:g} s, {where}; exiting now", ExitCode.FAILED)


def describe_stack(thread: threading.Thread) -> str:
    """Return where a thread is, innermost function first; empty if it is an idle event loop."""
    frame = sys._current_frames().get(thread.ident or 0)
    stack = traceback.extract_stack(frame)[::-1]
    if not stack or stack[0].filename == selectors.__file__:
        return ""
    return " < ".join(
        f"{each.name} ({PurePath(each.filename).name}:{each.lineno})" for each in stack[:_MOST_FRAMES]
    )[:_LONGEST_TEXT]


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Handle a signal: the C handler has written its number already."""


def _log_briefly(level: int, text: str) -> None:
    """Log a line, unless that takes long because a stuck thread holds the lock of the log."""
    try:
        writing = start_thread(lambda: log.log(level, "%s", text), "stop-log")
    except RuntimeError:  # the interpreter shuts down, so no other thread logs
        log.log(level, "%s", text)
    else:
        writing.join(_LOG_SECONDS)


def _exit_process(message: str, code: int) -> None:
    _log_briefly(logging.ERROR, message)
    _exit(code)
