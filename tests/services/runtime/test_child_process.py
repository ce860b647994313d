"""A child process: what it inherits, how it ends with everything that it has started, and what is said of its end."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from services.errors import Failed
from services.runtime.child_process import ChildProcess
from services.runtime.child_start import OOM_SCORE

GRACE_SECONDS = 0.2
ENOUGH = "the test ends"
MINUTE = "import time; time.sleep(60)"
GRANDCHILD = f"[sys.executable, '-c', {MINUTE!r}]"


class Run:
    """Children of a test, which run code, and the lines that they print."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.children: list[ChildProcess] = []
        self._printed = threading.Condition()

    def begin(self, code: str, descriptors: Sequence[int] = (), **environment: str) -> ChildProcess:
        child = ChildProcess(
            "tests.support.child",
            [code],
            descriptors=descriptors,
            environment={**os.environ, **environment},
            take_lines=self._take,
        )
        self.children.append(child)
        return child

    def wait_for_line(self) -> str:
        """Return the newest line, once there is one."""
        with self._printed:
            assert self._printed.wait_for(lambda: self.lines, 20)
            return self.lines[-1]

    def _take(self, lines: Sequence[str]) -> None:
        with self._printed:
            self.lines += lines
            self._printed.notify_all()


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run()
    yield made
    for child in made.children:
        child.stop(0, ENOUGH)


def _ends(pid: int, seconds: float = 10) -> bool:
    """Return whether a process ends in time, also one that is not this process's child; zombies have ended."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([process], [], [], seconds)[0])
    finally:
        os.close(process)


def test_it_inherits_a_socket_and_an_environment(run: Run) -> None:
    own, its = socket.socketpair()
    with own, its:
        code = f"import os, socket; socket.socket(fileno={its.fileno()}).sendall(os.environ['GREETING'].encode())"
        child = run.begin(code, [its.fileno()], GREETING="hello")
        assert own.recv(100) == b"hello"
    assert child.wait(20)
    assert (child.stop(0), child.exit_code) == ("exit code 0", 0)


def test_the_kernel_prefers_it_to_the_daemon(run: Run) -> None:
    own = int(Path("/proc/self/oom_score_adj").read_text())
    run.begin("print(open('/proc/self/oom_score_adj').read())")
    assert int(run.wait_for_line()) == min(1000, own + OOM_SCORE)


def test_its_files_are_this_trees_and_its_folder_is_the_daemons(
    monkeypatch: pytest.MonkeyPatch, run: Run, tmp_path: Path
) -> None:
    for package in ("services", "tests"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text("raise SystemExit('of another tree')")
    monkeypatch.chdir(tmp_path)
    run.begin("import os; print(os.getcwd())")
    assert run.wait_for_line() == str(tmp_path)


def test_a_module_that_can_not_be_started_is_named(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    monkeypatch.setattr(sys, "executable", "/nonexistent/python")
    with pytest.raises(Failed, match=r"^python -m tests.support.child: can't be started \(No such file"):
        run.begin("")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("", "exit code 0"),
        ("raise SystemExit(3)", "exit code 3"),
        ("import os; os._exit(7)", "exit code 7"),
        ("import ctypes; ctypes.string_at(0)", "killed by SIGSEGV"),
        ("import os; os.abort()", "killed by SIGABRT"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGALRM)", "killed by SIGALRM"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL, by a person or for lack of memory"),
        ("import os; os.kill(os.getpid(), 40)", "killed by signal 40"),
    ],
)
def test_the_reason_of_its_end(run: Run, code: str, reason: str) -> None:
    child = run.begin(code)
    assert child.wait(20)
    assert child.stop(GRACE_SECONDS, because="it does not answer") == reason
    assert child.stop(GRACE_SECONDS) == reason, "it is known from then on"
    assert child.wait(0)


def test_a_crash_leaves_its_stack_among_the_lines(run: Run) -> None:
    child = run.begin("import ctypes\ndef crash():\n  ctypes.string_at(0)\ncrash()")
    assert child.wait(20)
    child.stop(0)
    assert run.lines[0] == "Fatal Python error: Segmentation fault"
    assert '  File "<string>", line 3 in crash' in run.lines


def test_a_kill_for_lack_of_memory_is_told(run: Run, memory_group: Path) -> None:
    join = f"import os; open({str(memory_group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))"
    child = run.begin(f"{join}; print('in'); kept = [bytearray(b'x' * 2**20) for _ in range(2**10)]")
    assert child.wait(30)
    assert child.stop(0) == "killed by SIGKILL for lack of memory"
    assert run.lines == ["in"]


@pytest.fixture
def memory_group(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the folder of a control group with 64 MiB, whose kills count as those of this process's own group."""
    version_1 = Path("/sys/fs/cgroup/memory")
    groups = version_1 if version_1.is_dir() else Path("/sys/fs/cgroup")
    group = groups / f"tiermesh-test-{os.getpid()}"
    limit, kills = (
        ("memory.limit_in_bytes", "memory.oom_control")
        if version_1.is_dir()
        else ("memory.max", "memory.events")
    )
    try:
        group.mkdir()
        (group / limit).write_text(str(64 << 20))
    except OSError as error:
        pytest.skip(f"needs a control group of its own: {error}")

    def count() -> int:
        rows = dict(line.split() for line in (group / kills).read_text().splitlines())
        return int(rows["oom_kill"])

    monkeypatch.setattr("services.runtime.child_process.count_memory_kills", count)
    yield group
    group.rmdir()


def test_it_may_end_in_order_when_it_is_stopped(run: Run) -> None:
    code = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('closed'))); print('up')"
    child = run.begin(f"{code}; time.sleep(60)")
    run.wait_for_line()
    assert child.stop(20, ENOUGH) == "stopped: the test ends"
    assert (child.exit_code, run.lines) == (0, ["up", "closed"])


def test_one_that_is_about_to_end_gets_time_to_do_so(run: Run) -> None:
    own, its = socket.socketpair()
    with own, its:
        code = f"import os, time; os.close({its.fileno()}); time.sleep(0.3); os._exit(0)"
        child = run.begin(code, [its.fileno()])
        its.close()
        assert own.recv(1) == b""
        assert child.stop(20) == "exit code 0"


def test_one_that_does_not_is_stopped(run: Run) -> None:
    child = run.begin(f"print('up'); {MINUTE}")
    run.wait_for_line()
    assert child.stop(GRACE_SECONDS) == "stopped: it did not end by itself"


def test_two_threads_may_stop_it(run: Run) -> None:
    child = run.begin(f"print('up'); {MINUTE}")
    run.wait_for_line()
    with ThreadPoolExecutor(2) as pool:
        reasons = [*pool.map(lambda _: child.stop(GRACE_SECONDS, ENOUGH), range(2))]
    assert reasons == ["stopped: the test ends"] * 2


def test_one_that_hangs_is_killed_after_the_grace_time_and_the_limit_named(run: Run) -> None:
    child = run.begin(f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up'); {MINUTE}")
    run.wait_for_line()
    reason = child.stop(GRACE_SECONDS, because="it computes for more than 60 s (stall) without a sign")
    assert reason == "killed 0.2 s after SIGTERM: it computes for more than 60 s (stall) without a sign"
    assert child.exit_code == -signal.SIGKILL


def test_one_that_is_stopped_as_a_process_is_killed(run: Run) -> None:
    child = run.begin(f"import signal; signal.signal(signal.SIGTERM, exit); print('up'); {MINUTE}")
    run.wait_for_line()
    os.kill(child.pid, signal.SIGSTOP)
    assert child.stop(GRACE_SECONDS, ENOUGH) == "killed 0.2 s after SIGTERM: the test ends"


@pytest.mark.parametrize(
    "fork",
    [
        f"pid = os.fork()\nif not pid: {MINUTE}",
        f"pid = subprocess.Popen({GRANDCHILD}).pid",
        f"pid = subprocess.Popen({GRANDCHILD}, start_new_session=True).pid",
        f"pid = os.fork()\nif not pid: os.setsid(); {MINUTE}",
    ],
    ids=["forked", "started", "started in a session of its own", "forked into a session of its own"],
)
@pytest.mark.parametrize("ends_first", [False, True], ids=["stopped", "dead"])
def test_its_own_children_end_with_it(run: Run, fork: str, ends_first: bool) -> None:
    end = "os._exit(3)" if ends_first else MINUTE
    child = run.begin(f"import os, subprocess, sys\n{fork}\nprint(pid)\n{end}")
    grandchild = int(run.wait_for_line())
    if ends_first:
        assert child.wait(20)
    assert child.stop(GRACE_SECONDS, ENOUGH) == ("exit code 3" if ends_first else "stopped: the test ends")
    assert _ends(grandchild)


def test_an_orphan_of_a_grandchild_is_found(run: Run) -> None:
    orphan = f"import os, subprocess, sys\np = subprocess.Popen({GRANDCHILD}, start_new_session=True)\nprint(p.pid)"
    child = run.begin(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {orphan!r}])\n{MINUTE}")
    pid = int(run.wait_for_line())
    child.stop(GRACE_SECONDS, ENOUGH)
    assert _ends(pid)


def _daemon(code: str) -> subprocess.Popen[str]:
    """Return a process that spawns a child with this code, says its process id, and waits."""
    program = (
        "import os, queue, threading\n"
        "from services.runtime.child_process import ChildProcess\n"
        "lines = queue.SimpleQueue()\n"
        f"child = ChildProcess('tests.support.child', [{code!r}], environment=os.environ, take_lines=lines.put)\n"
        "print(child.pid, lines.get(), flush=True)\n"
        "threading.Event().wait()\n"
    )
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def test_nothing_is_left_behind_by_a_daemon_that_is_killed() -> None:
    with _daemon(f"import os\nif os.fork(): print('up')\n{MINUTE}") as daemon:
        assert daemon.stdout is not None
        pid = int(daemon.stdout.readline().split()[0])
        forked = [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        assert len(forked) == 1
        daemon.kill()
        assert all(map(_ends, (pid, *forked)))


def test_a_child_whose_daemon_has_died_before_it_began_ends() -> None:
    code = "from services.runtime.child_start import begin_child; begin_child(); print('began')"
    environment = {**os.environ, "TIERMESH_CHILD": "1-ab" if os.getpid() != 1 else "2-ab"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")


CLOSED = "import os; os.close(1); os.close(2); "


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (CLOSED + "os._exit(4)", "exit code 4"),
        (CLOSED + MINUTE, "stopped: the test ends"),
        ("import os\nwhile True: os.write(1, b'x' * 65536)", "stopped: the test ends"),
        ("import os\nwhile True: os.write(1, b'\\n' * 65536)", "stopped: the test ends"),
        ("import os; os.set_blocking(1, False)\nwhile True: os.write(1, b'y' * 2**20)", "exit code 1"),
    ],
    ids=["closes its pipes and ends", "closes its pipes", "endless line", "empty lines", "does not wait"],
)
def test_what_it_does_to_its_pipes_is_harmless(run: Run, code: str, reason: str) -> None:
    child = run.begin(code)
    child.wait(20 if reason.startswith("exit") else 2)
    began_seconds = time.monotonic()
    assert child.stop(GRACE_SECONDS, ENOUGH) == reason
    assert time.monotonic() - began_seconds < 5


def test_a_process_that_keeps_the_pipe_and_hides_delays_nothing(run: Run) -> None:
    hidden = f"subprocess.Popen({GRANDCHILD}, env={{}}, start_new_session=True)"
    child = run.begin(f"import subprocess, sys; print({hidden}.pid)")
    pid = int(run.wait_for_line())
    assert child.wait(20)
    assert child.stop(0) == "exit code 0"
    os.kill(pid, signal.SIGKILL)


def test_threads_and_descriptors_are_given_back(run: Run) -> None:
    def count() -> tuple[int, int]:
        return threading.active_count(), len([*Path("/proc/self/fd").iterdir()])

    before = count()
    for _ in range(3):
        run.begin("print('hello')").stop(5)
    assert count() == before
