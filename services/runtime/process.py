"""What every daemon does around its service: memory and threads set up, signals, graceful stop, exit code."""

from __future__ import annotations

import asyncio
import ctypes
import faulthandler
import json
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from services.errors import Failed, Refused, TiermeshError, describe_internal_error
from services.timeouts import STANDARD_TIMEOUTS

log = logging.getLogger("tiermesh")

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -2, -3, -8


def tune_allocator() -> bool:
    """Let glibc's malloc keep big blocks: giving them back to the kernel costs more page faults than copies.

    Must be called before threads start. Only done on glibc and where no `MALLOC_*` says what the user wants.

    Returns:
        Whether all settings were taken.
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
    # Both thresholds: setting one freezes the other at its default of 128 KiB. Older glibc takes 32 MiB
    # at most.
    mapped = mallopt(_M_MMAP_THRESHOLD, 1 << 30) == 1 or mallopt(_M_MMAP_THRESHOLD, 32 << 20) == 1
    trimmed = mallopt(_M_TRIM_THRESHOLD, 2**31 - 1) == 1
    padded = mallopt(_M_TOP_PAD, 64 << 20) == 1
    # Another thread's blocks would come from an arena that holds none above 64 MiB, and gives back what is free.
    shared = mallopt(_M_ARENA_MAX, 1) == 1
    return bool(mapped and trimmed and padded and shared)


def limit_blas_to_one_thread(environment: dict[str, str] | None = None) -> None:
    """Keep BLAS on one thread, so that sums have the same bits on every host; before numpy is imported.

    Args:
        environment: to set it in; this process's if left out.
    """
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS"):
        (os.environ if environment is None else environment)[name] = "1"


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Tell whoever started this process, by one JSON object that is complete or absent, that it serves.

    Raises:
        Refused: the file can't be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(dict(content)) + "\n")
        temporary.replace(path)
    except OSError as error:
        raise Refused(
            f"--ready-file {path}: can't be written ({error.strerror}); give a writable place"
        ) from None


def make_state_dir(path: Path) -> None:
    """Make a role's state dir if it isn't there, and hold that it can be written to.

    Raises:
        Refused: it can't.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise Refused(f"--state-dir {path}: can't be written to ({error.strerror}); give another") from None


def run_daemon(
    serve: Callable[[], Coroutine[Any, Any, None]],
    *,
    exit_with_parent: bool = False,
    stop_seconds: float = STANDARD_TIMEOUTS.stop,
) -> int:
    """Run a daemon to its end and say how it ended, in at most one line of log.

    SIGTERM, SIGINT and, with `exit_with_parent`, the end of standard input cancel `serve()`; what it does
    then (its `finally`) is the graceful stop. A second signal, or a stop that takes longer than
    `stop_seconds`, ends the process at once with exit code 1.

    Args:
        serve: starts, serves until cancelled or finished, and cleans up.
        exit_with_parent: stop when standard input ends, which it does when the parent process is gone.
        stop_seconds: limit of the graceful stop.

    Returns:
        Exit code: 0 ended or stopped as asked, 2 refused, 1 anything else.
    """
    faulthandler.enable()  # a native library that crashes would else leave no word in the log
    try:
        return asyncio.run(_supervise(serve, exit_with_parent, stop_seconds))
    except TiermeshError as error:
        log.error("%s", error)
        return 2 if isinstance(error, Refused) else 1
    except Exception as error:
        log.error("%s", describe_internal_error(error))
        log.debug("traceback of the above", exc_info=error)
        return 1


async def _supervise(
    serve: Callable[[], Coroutine[Any, Any, None]], exit_with_parent: bool, stop_seconds: float
) -> int:
    loop = asyncio.get_running_loop()
    main = loop.create_task(serve(), name="serve")
    stopping = threading.Event()

    def cut_off() -> None:
        _leave(f"did not stop within {stop_seconds:g} s, waiting in {_where(main)}; left at once")

    # A thread's timer, so that it also fires when the event loop itself is stuck.
    limit = threading.Timer(stop_seconds, cut_off)
    limit.daemon = True

    def stop(why: str) -> None:
        if stopping.is_set():
            _leave(f"{why} while stopping; left at once")
        log.info("stopping: %s", why)
        stopping.set()
        limit.start()
        main.cancel()

    def parent_gone() -> None:
        if not stopping.is_set():
            stop("standard input ended, the parent is gone")

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, signal.Signals(number).name)
    if exit_with_parent:
        _watch_standard_input(parent_gone, loop)
    try:
        await main
    except asyncio.CancelledError:
        if not stopping.is_set():
            raise Failed(
                "internal error: the daemon was cancelled without a signal; please report it"
            ) from None
    finally:
        limit.cancel()
    return 0


def _where(task: asyncio.Task[None]) -> str:
    """The functions that a task waits in, outermost first."""
    names = []
    waiting: Any = task.get_coro()
    while waiting is not None and hasattr(waiting, "cr_await"):
        names.append(waiting.__qualname__)
        waiting = waiting.cr_await
    return " > ".join(names)


def _watch_standard_input(ended: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
    """Call `ended` in `loop` when standard input ends: by a thread, as epoll takes no files."""

    def read() -> None:
        while True:
            try:
                if not os.read(0, 4096):
                    break
            except OSError:
                break
        try:
            loop.call_soon_threadsafe(ended)
        except RuntimeError:  # the loop is closed: nothing left to stop
            return

    threading.Thread(target=read, name="standard-input", daemon=True).start()


def _leave(why: str) -> None:
    log.error("%s", why)
    logging.shutdown()
    sys.stdout.flush()
    os._exit(1)
