"""Tests of how a daemon's process ends, and of its set-up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from services.errors import NotYet, Refused
from services.runtime.process import limit_blas_to_one_thread, make_state_dir, run_daemon, write_ready_file

ROOT = Path(__file__).resolve().parents[3]

DAEMON = """
import asyncio, logging, sys
from services.runtime import logs, process
from services.errors import Failed, NotYet, Refused

async def serve():
    try:
        print("ready", flush=True)
        {body}
    finally:
        {cleanup}
        print("cleaned up", flush=True)

logs.configure("info", "text")
sys.exit(process.run_daemon(
    serve, exit_with_parent={with_parent}, stop_seconds={stop_seconds}, save_seconds={save_seconds}
))
"""


def start(
    body: str,
    *,
    cleanup: str = "pass",
    with_parent: bool = False,
    stop_seconds: float = 60.0,
    save_seconds: float = 60.0,
) -> subprocess.Popen[str]:
    """Start a daemon that runs `body`, and return when it is ready."""
    script = textwrap.dedent(DAEMON).format(
        body=body,
        cleanup=cleanup,
        with_parent=with_parent,
        stop_seconds=stop_seconds,
        save_seconds=save_seconds,
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def finish(process: subprocess.Popen[str]) -> tuple[int, str, list[str]]:
    """Wait for the end; return exit code, rest of standard output, and lines of standard error."""
    assert process.stdout is not None and process.stderr is not None
    out, err = process.stdout.read(), process.stderr.read()
    return process.wait(timeout=30), out, err.splitlines()


def test_daemon_that_finishes_exits_with_0() -> None:
    assert finish(start("pass")) == (0, "cleaned up\n", [])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_gracefully(number: signal.Signals) -> None:
    process = start("await asyncio.sleep(60)", cleanup="await asyncio.sleep(0.01)")
    process.send_signal(number)
    code, out, (line,) = finish(process)
    assert (code, out) == (0, "cleaned up\n")
    assert f"stopping: {number.name}" in line


def test_end_of_standard_input_stops_gracefully() -> None:
    process = start("await asyncio.sleep(60)", with_parent=True)
    assert process.stdin is not None
    process.stdin.close()
    code, out, (line,) = finish(process)
    assert (code, out) == (0, "cleaned up\n")
    assert "standard input ended" in line


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        ("Refused('mesh_shape: bad')", 2, "mesh_shape: bad"),
        ("Failed('worker w1: lost')", 1, "worker w1: lost"),
        ("NotYet('listen address: in use')", 75, "listen address: in use"),
        ("KeyError('oops')", 1, "internal error, KeyError at <string>:"),
    ],
)
def test_error_gives_one_line_and_an_exit_code(error: str, code: int, text: str) -> None:
    ended, out, (line,) = finish(start(f"raise {error}"))
    assert (ended, out) == (code, "cleaned up\n")
    assert text in line


@pytest.mark.parametrize("cleanup", ["await asyncio.sleep(60)", "__import__('threading').Event().wait(60)"])
def test_stop_that_hangs_is_cut_off_and_names_the_coroutine(cleanup: str) -> None:
    process = start("await asyncio.sleep(60)", cleanup=cleanup, stop_seconds=1)
    process.send_signal(signal.SIGTERM)
    code, out, (_, line) = finish(process)
    assert (code, out) == (1, "")
    assert "1 s" in line
    assert "waiting in serve" in line or ("stuck in" in line and "serve (" in line)


SAVE = """
        with __import__("services.runtime.stop_watch").runtime.stop_watch.saving("a checkpoint"):
            await asyncio.sleep({})
        await asyncio.sleep({})
"""


@pytest.mark.parametrize(
    ("saves_seconds", "then_seconds", "limit"), [(2, 0, ""), (60, 0, "3 s"), (2, 60, "1 s")]
)
def test_a_stop_that_saves_has_the_time_for_it_and_no_more(
    saves_seconds: int, then_seconds: int, limit: str
) -> None:
    cleanup = SAVE.format(saves_seconds, then_seconds).strip()
    process = start("await asyncio.sleep(60)", cleanup=cleanup, stop_seconds=1, save_seconds=3)
    process.send_signal(signal.SIGTERM)
    code, out, lines = finish(process)
    assert (code, out) == ((1, "") if limit else (0, "cleaned up\n"))
    if limit:
        assert f"did not stop within {limit}, waiting in serve" in lines[-1]


def test_a_second_signal_ends_a_stop_that_saves() -> None:
    cleanup = "print('stops', flush=True)\n" + SAVE.format(60, 0).rstrip()
    process = start("await asyncio.sleep(60)", cleanup=cleanup)
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None and process.stdout.readline() == "stops\n"
    process.send_signal(signal.SIGTERM)
    code, out, lines = finish(process)
    assert (code, out) == (1, "") and "exiting now" in lines[-1]


@pytest.mark.parametrize(
    "busy",
    [
        "[0 for _ in iter(int, 1)]",  # a loop without end
        "__import__('time').sleep(60)",
    ],
)
def test_stop_ends_a_busy_event_loop_and_says_where_it_is(busy: str) -> None:
    process = start(f"print('busy', flush=True); {busy}", stop_seconds=1)
    assert process.stdout is not None
    assert process.stdout.readline() == "busy\n"
    process.send_signal(signal.SIGTERM)
    code, out, lines = finish(process)
    assert (code, out) == (1, "")
    assert "stopping: SIGTERM" in lines[0]
    assert "did not stop within 1 s, the event loop is stuck in " in lines[1]
    assert "serve (<string>:" in lines[1]
    assert len(lines) == 2
    assert len(lines[1].partition(": ")[2]) <= 300


def test_a_log_that_nobody_reads_does_not_hold_up_the_stop() -> None:
    """Fill the pipe of standard error, so that the event loop is stuck in a log line, with the lock of the log."""
    process = start("[logging.error('x' * 10_000) for _ in iter(int, 1)]", stop_seconds=1)
    assert process.stderr is not None
    process.stderr.read(1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=30) == 1


@pytest.mark.parametrize("cleanup", ["await asyncio.sleep(0.01)", "await asyncio.to_thread(print, 'quick')"])
@pytest.mark.parametrize(
    "begin",
    [
        "threading.Thread(target=open, args=(fifo,), name='device').start()",
        "asyncio.get_running_loop().run_in_executor(None, open, fifo)",
    ],
)
def test_a_thread_that_hangs_is_left_behind(tmp_path: Path, begin: str, cleanup: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    process = start(
        f"import threading; fifo = {str(fifo)!r}; {begin}; print('hangs', flush=True); await asyncio.sleep(60)",
        cleanup=cleanup,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "hangs\n"
    process.send_signal(signal.SIGTERM)
    code, out, lines = finish(process)
    assert code == 0
    assert "cleaned up" in out
    assert "stopped, but threads hang: " in lines[-1]


def test_second_signal_ends_the_process_at_once() -> None:
    process = start(
        "await asyncio.sleep(60)", cleanup="print('stopping', flush=True); await asyncio.sleep(60)"
    )
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGTERM)
    code, _, (_, line) = finish(process)
    assert code == 1
    assert "SIGTERM while stopping" in line


def test_ready_file_is_complete_or_absent(tmp_path: Path) -> None:
    path = tmp_path / "ready.json"
    write_ready_file(path, {"port": 7070, "pid": 1})
    assert json.loads(path.read_text()) == {"port": 7070, "pid": 1}
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(Refused, match=r"--ready-file .*missing/ready\.json"):
        write_ready_file(tmp_path / "missing" / "ready.json", {})


def test_state_dir_is_created_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").mkdir()
    make_state_dir(tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    missing = tmp_path / "missing" / "state"
    with pytest.raises(NotYet, match=r"--state-dir .*: its folder .*missing does not exist; mount its disk"):
        make_state_dir(missing)
    assert not missing.parent.exists()
    monkeypatch.chdir(tmp_path)
    make_state_dir(Path(".tiermesh/aggregator"))
    assert (tmp_path / ".tiermesh" / "aggregator").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(Refused, match=r"--state-dir .*file/state.*Not a directory"):
        make_state_dir(tmp_path / "file" / "state")


def test_blas_is_limited_to_one_thread() -> None:
    environment = {"OMP_NUM_THREADS": "8"}
    limit_blas_to_one_thread(environment)
    assert set(environment.values()) == {"1"}
    assert {"OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"} <= set(environment)


@pytest.mark.long
def test_malloc_keeps_freed_blocks_unless_the_user_set_malloc_variables() -> None:
    """Fill 128 MiB repeatedly on two threads. There are no page faults once the allocator keeps the block."""
    script = textwrap.dedent("""
        import ctypes, resource, threading
        from services.runtime.process import tune_allocator
        tuned = tune_allocator()
        libc = ctypes.CDLL(None)
        libc.malloc.restype = ctypes.c_void_p
        libc.malloc.argtypes = [ctypes.c_size_t]
        libc.free.argtypes = [ctypes.c_void_p]
        def fill():
            block = libc.malloc(128 << 20)
            ctypes.memset(block, 1, 128 << 20)
            libc.free(block)
        def faults():
            fill()
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            for _ in range(5):
                fill()
            print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
        print(tuned)
        faults()
        thread = threading.Thread(target=faults)
        thread.start()
        thread.join()
    """)

    def run(environment: dict[str, str]) -> tuple[str, list[int]]:
        done = subprocess.run(
            [sys.executable, "-c", script],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
        )
        tuned, *faults = done.stdout.split()
        return tuned, [int(number) for number in faults]

    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    tuned, faults = run(plain)
    if tuned == "False":
        pytest.skip("needs glibc's malloc")
    assert len(faults) == 2
    assert max(faults) < 1000
    assert run({**plain, "MALLOC_ARENA_MAX": "4"})[0] == "False"


def test_run_daemon_restores_signal_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)

    async def serve() -> None:
        return

    assert run_daemon(serve) == 0
    assert signal.getsignal(signal.SIGTERM) == before
