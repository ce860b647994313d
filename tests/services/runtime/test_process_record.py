"""What a worker's next start knows of how its predecessor ended: real processes that end in many ways."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from protos.cluster_pb2 import Predecessor
from services.runtime.fault_report import TEXT_CHARACTERS, parse_fault
from services.runtime.process_record import ProcessRecord

PROGRAM = """
import ctypes, os, signal, sys, threading
from pathlib import Path
from services.runtime.process_record import ProcessRecord

record = ProcessRecord.open(Path(sys.argv[1]), "w/1", "first")
record.note_duty("job-1", 7)

def in_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()

def layer():
    ctypes.string_at(0)

exec(sys.argv[2])
"""


def end_by(code: str, folder: Path) -> int:
    """Run a process that has a duty and ends by a statement; return how."""
    command = [sys.executable, "-c", PROGRAM, str(folder), code]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode


def predecessor(folder: Path) -> Predecessor | None:
    """Return what the next start learns."""
    record = ProcessRecord.open(folder, "w/1", "second")
    assert record is not None
    try:
        return record.predecessor
    finally:
        record.close()


@pytest.mark.parametrize(
    ("code", "number", "text"),
    [
        ("layer()", signal.SIGSEGV, "SIGSEGV in string_at at __init__.py:"),
        ("in_thread(layer)", signal.SIGSEGV, "called by layer at <string>:"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", signal.SIGSEGV, "SIGSEGV"),
        ("os.kill(os.getpid(), signal.SIGBUS)", signal.SIGBUS, "SIGBUS"),
        ("os.kill(os.getpid(), signal.SIGFPE)", signal.SIGFPE, "SIGFPE"),
        ("os.kill(os.getpid(), signal.SIGILL)", signal.SIGILL, "SIGILL"),
        ("os.abort()", signal.SIGABRT, "SIGABRT"),
        ("in_thread(lambda: signal.raise_signal(signal.SIGTRAP))", signal.SIGTRAP, "SIGTRAP in <lambda> at"),
        (
            "signal.setitimer(signal.ITIMER_REAL, 0.01); signal.pause()",
            signal.SIGALRM,
            "SIGALRM in <module> at",
        ),
        ("os.kill(os.getpid(), signal.SIGSYS)", signal.SIGSYS, "SIGSYS in <module> at"),
        ("os.kill(os.getpid(), signal.SIGPROF)", signal.SIGPROF, "SIGPROF in <module> at"),
        ("os._exit(0)", signal.SIGABRT, "SIGABRT in exit_at_work at process_record.py:"),
        ("in_thread(lambda: os._exit(1))", signal.SIGABRT, "called by <lambda> at <string>:"),
    ],
)
def test_a_fault_is_known_with_its_place_and_the_work_under_way(
    tmp_path: Path, code: str, number: signal.Signals, text: str
) -> None:
    assert end_by(code, tmp_path) == -number
    found = predecessor(tmp_path)
    assert found is not None
    assert (found.incarnation, found.job, found.lease, found.signal) == ("first", "job-1", 7, number)
    assert text in found.text and len(found.text) <= TEXT_CHARACTERS and found.text.isprintable()
    assert "(most recent call first)" in (tmp_path / "w%2F1.last-fault").read_text(), (
        "the whole stack is kept"
    )
    assert predecessor(tmp_path) is None, "it is told once"


@pytest.mark.parametrize(
    "code",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "os.kill(os.getpid(), signal.SIGTERM)",
        "os.waitpid(os.fork() or os._exit(1), 0)",
        "os.waitpid(os.fork() or os._exit(1), 0); record.close(); os._exit(1)",
        "raise SystemExit(1)",
        "record.close()",
        "signal.signal(signal.SIGALRM, print); signal.raise_signal(signal.SIGALRM); os.kill(os.getpid(), 9)",
    ],
)
def test_other_ends_are_no_faults(tmp_path: Path, code: str) -> None:
    end_by(code, tmp_path)
    assert predecessor(tmp_path) is None


def test_a_fault_after_the_work_names_no_job(tmp_path: Path) -> None:
    end_by("record.note_duty(); layer()", tmp_path)
    found = predecessor(tmp_path)
    assert found is not None and (found.job, found.lease) == ("", 0)


def test_a_second_process_of_the_name_leaves_the_record_alone(tmp_path: Path) -> None:
    first = ProcessRecord.open(tmp_path, "w", "first")
    assert first is not None
    try:
        assert ProcessRecord.open(tmp_path, "w", "second") is None
        first.note_duty("job-1", 3)
        assert b"first" in (tmp_path / "w.process").read_bytes()
    finally:
        first.close()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_no_reason_not_to_work(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert ProcessRecord.open(tmp_path / "state", "w", "first") is None


@pytest.mark.parametrize("kind", ["fifo", "folder", "link"])
def test_something_else_in_the_place_of_a_file_does_not_stop_the_worker(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "w.fault"
    if kind == "fifo":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        place.symlink_to("/dev/zero")
    assert ProcessRecord.open(tmp_path, "w", "first") is None


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"[]", b"{}", b"\x00" * 4096, b'{"incarnation": 5, "job": 1, "lease": "x"}'),
        b'{"incarnation": "i", "job": "j", "lease": 18446744073709551616}',
        b'{"incarnation": "i", "job": ["j"], "lease": 1}',
    ],
)
def test_a_damaged_record_names_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "w.process").write_bytes(content)
    (tmp_path / "w.fault").write_text("Fatal Python error: Segmentation fault\n")
    record = ProcessRecord.open(tmp_path, "w", "first")
    assert record is not None and record.predecessor is None
    record.close()


def test_a_report_without_a_stack_is_a_fault_all_the_same() -> None:
    fault = parse_fault("Fatal Python error: Segmentation fault\n")
    assert fault is not None and fault.text == "SIGSEGV"
    assert parse_fault("Fatal Python error: init_sys_streams: broken\n") is None
    assert parse_fault("") is None


def test_a_hostile_stack_is_one_printable_line() -> None:
    frames = "".join(f'  File "/x/\x1b[31m{"y" * 500}.py", line {n} in f\u202e{n}\n' for n in range(50))
    report = "Fatal Python error: Bus error\n\nCurrent thread 0x00 (most recent call first):\n" + frames
    fault = parse_fault(report)
    assert fault is not None and fault.text.isprintable() and len(fault.text) <= TEXT_CHARACTERS
