"""Set-up of a daemon's process: memory, threads, signals, graceful stop, exit code."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import json
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from services.errors import (
    ExitCode,
    NotYet,
    Refused,
    TiermeshError,
    describe_internal_error,
    exit_code_of,
    is_out_of_space,
)
from services.runtime.stop_watch import StopWatch
from services.system_errors import system_error
from services.tasks import start_awaited, start_thread
from services.timeouts import SAVE_SECONDS, STANDARD_TIMEOUTS

log = logging.getLogger("tiermesh")

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def tune_allocator() -> bool:
    """Make glibc's malloc keep freed big blocks.

    Otherwise each big array is returned to the kernel, and the page faults of its next allocation cost more than the
    copies into it. Call this before threads start. It does nothing without glibc, or if `MALLOC_*` variables are set.

    Returns:
        Whether malloc accepted all settings.
    """
    if any(name.startswith("MALLOC_") for name in os.environ) or "glibc.malloc" in os.environ.get(
        "GLIBC_TUNABLES", ""
    ):
        return False
    try:
        libc = ctypes.CDLL(None)
        if not hasattr(libc, "gnu_get_libc_version"):
            return False
        mallopt = libc.mallopt
    except (OSError, AttributeError):
        return False
    # Set both thresholds: setting one freezes the other at its default of 128 KiB. Older glibc accepts 32 MiB at most.
    mapped = mallopt(_M_MMAP_THRESHOLD, 1 << 30) == 1 or mallopt(_M_MMAP_THRESHOLD, 32 << 20) == 1
    trimmed = mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) == 1
    padded = mallopt(_M_TOP_PAD, 64 << 20) == 1
    # Use one arena: those of other threads keep no blocks above 64 MiB and return free ones to the kernel.
    shared = mallopt(_M_ARENA_MAX, 1) == 1
    return bool(mapped and trimmed and padded and shared)


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent dies, also after an exec (prctl(2)).

    It is for child processes that are no daemons, and so don't watch their standard input.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def limit_blas_to_one_thread(environment: dict[str, str] | None = None) -> None:
    """Keep BLAS on one thread, so that sums have the same bits on every host. Call this before numpy is imported.

    Args:
        environment: environment to change; None for that of this process.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
        (os.environ if environment is None else environment)[name] = "1"


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Write the ready file, for which a daemon's launcher waits. It is complete or absent.

    Args:
        path: the file.
        content: values of its JSON object.

    Raises:
        Refused: the file can't be written.
        NotYet: the disk is full, or does not answer.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(dict(content)) + "\n")
        temporary.replace(path)
    except OSError as error:
        text = f"--ready-file {path}: can't be written ({error.strerror}); give a writable path"
        raise system_error(error, text) from None


def make_state_dir(path: Path) -> None:
    """Create a role's state dir if it is missing, but not its parents, and check that it is writable.

    A missing parent of an absolute path is taken for a disk that is not mounted: an empty state dir in its place would
    begin a new cluster. A full disk is no reason to refuse, since all that a role must write has space in reserve.

    Raises:
        Refused: it can't be created or written to.
        NotYet: its parent does not exist, or the disk does not answer.
    """
    try:
        str(path.absolute()).encode()
    except UnicodeEncodeError:
        raise Refused(
            f"--state-dir {path}: its absolute path is not UTF-8, so peers can't be told of files in it; give another"
        ) from None
    try:
        if not path.is_dir():
            path.mkdir(parents=not path.is_absolute())
            log.warning("--state-dir %s: did not exist, so this begins with nothing", path)
        with tempfile.TemporaryFile(dir=path):
            pass
    except FileNotFoundError:
        raise NotYet(
            f"--state-dir {path}: its folder {path.parent} does not exist; mount its disk, or create the folder"
        ) from None
    except OSError as error:
        if is_out_of_space(error) and path.is_dir():
            return
        text = f"--state-dir {path}: can't be written ({error.strerror}); make it writable, or give another"
        raise system_error(error, text) from None


def run_daemon(
    serve: Callable[[], Coroutine[Any, Any, None]],
    *,
    exit_with_parent: bool = False,
    ready_file: Path | None = None,
    stop_seconds: float = STANDARD_TIMEOUTS.stop,
    save_seconds: float = SAVE_SECONDS,
) -> int:
    """Run a daemon until it ends or is stopped, and log at most one line about why.

    SIGTERM and SIGINT cancel `serve()`, whose `finally` blocks are the graceful stop. A second signal ends the process
    at once with exit code 1. So does a stop that takes longer than `stop_seconds`, or `save_seconds` while it saves
    something. A thread enforces both (`stop_watch.py`), even if the event loop is stuck.

    Args:
        serve: coroutine that starts, serves until it is cancelled or finished, and cleans up.
        exit_with_parent: whether the end of standard input stops the daemon too. It ends when the parent process dies.
        ready_file: the ready file, which says what is saved during a stop; None for no file.
        stop_seconds: limit of the graceful stop.
        save_seconds: limit of saving during the stop.

    Returns:
        Exit code, see `ExitCode`: 0 if it finished or was stopped, 2 if it was refused, 75 if something that it needs
        is not there yet, 1 for anything else.
    """
    faulthandler.enable()  # else a crash in a native library leaves nothing in the log

    def note_saving(what: str) -> None:
        if ready_file is not None:
            with suppress(OSError, ValueError, TiermeshError):  # a launcher waits less long without it
                write_ready_file(ready_file, {**json.loads(ready_file.read_text()), "saving": what})

    with StopWatch(stop_seconds, note_saving, save_seconds) as watch:
        return asyncio.run(_supervise(serve, exit_with_parent, watch))


async def _supervise(
    serve: Callable[[], Coroutine[Any, Any, None]], exit_with_parent: bool, watch: StopWatch
) -> int:
    loop = asyncio.get_running_loop()
    main = start_awaited(serve())
    watch.begin(lambda: _call_in(loop, main.cancel), lambda: _describe_await(main))
    if exit_with_parent:
        _watch_standard_input(watch.parent_gone)
    code = await _exit_code(main, watch)
    watch.end(code)
    return code


async def _exit_code(main: asyncio.Task[None], watch: StopWatch) -> int:
    """Wait for the end of a daemon and return its exit code; log why it ended, unless that was asked for."""
    try:
        await main
    except asyncio.CancelledError:
        if watch.stopping:
            return 0
        log.error("internal error: the daemon was cancelled without a signal; please report it")
        return ExitCode.FAILED
    except TiermeshError as error:
        log.error("%s", error)
        return exit_code_of(error)
    except Exception as error:
        log.error("%s", describe_internal_error(error))
        log.debug("traceback of the error above", exc_info=error)
        return ExitCode.FAILED
    return 0


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    with suppress(RuntimeError):  # the event loop is closed, so there is nothing to stop
        loop.call_soon_threadsafe(call)


def _describe_await(task: asyncio.Task[None]) -> str:
    """Return the names of the coroutines that a task waits in, outermost first."""
    names = []
    waiting: Any = task.get_coro()
    while waiting is not None and hasattr(waiting, "cr_await"):
        names.append(waiting.__qualname__)
        waiting = waiting.cr_await
    return " > ".join(names)


def _watch_standard_input(ended: Callable[[], None]) -> None:
    """Call `ended` when standard input ends. A thread reads it, since epoll accepts no regular files."""

    def read() -> None:
        while True:
            try:
                if not os.read(0, 4096):
                    break
            except OSError:
                break
        with suppress(OSError):
            ended()

    start_thread(read, "standard-input")
