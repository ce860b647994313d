"""Fork servers for daemons and commands. They have imported the modules that take most of a daemon's start.

A request arrives over a socket, with the descriptors of the daemon's standard streams. The server forks a keeper, which
forks the daemon. The daemon runs its module like `python -m`. The keeper waits for its end and reports the exit code
through a pipe. Each role has a server of its own, so that sets of strings have another order in each role, as in
separate processes.

python -m tests.support.cluster.fork_server DESCRIPTOR ROLE     DESCRIPTOR is the server's end of the socket
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tests.support.cluster import held_steps

if TYPE_CHECKING:
    from services.runtime.launcher import Spawn

ROOT = Path(__file__).resolve().parents[3]
_MAX_REQUEST_BYTES = 1 << 16
_MODULES = {
    "worker": ("worker.daemon", "worker.service", "worker.device_thread"),
    "aggregator": (
        "aggregator.daemon",
        "aggregator.service",
        "aggregator.shards.service",
        "optimizer.engine",
    ),
    "optimizer": ("optimizer.daemon", "optimizer.service"),
    "web": ("web.daemon", "web.service"),
}
"""Modules that the server of each role imports before the first request, in addition to the commands."""
_HTTP_MODULES = ("uvicorn.protocols.http.auto", "uvicorn.lifespan.off", "encodings.idna")
"""Modules that the server of /metrics imports when it starts."""
ROLES = tuple(_MODULES)


class Child:
    """A forked daemon, with the methods of `subprocess.Popen` that tests need."""

    def __init__(self, report: int, stdin: IO[bytes]) -> None:
        self._report = report
        self._words = b""
        self.stdin = stdin
        self.returncode: int | None = None
        while b"\n" not in self._words:
            words = os.read(report, 64)
            assert words, "the fork server has ended, or could not fork"
            self._words += words
        pid, _, self._words = self._words.partition(b"\n")
        self.pid = int(pid)

    def poll(self) -> int | None:
        """Return the exit code, or minus the signal that killed it; None while it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; return the exit code. Raises TimeoutExpired."""
        while self.returncode is None:
            if not select.select([self._report], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"daemon {self.pid}", timeout or 0)
            words = os.read(self._report, 64)
            self._words += words
            if not words:
                self.returncode = int(self._words)
                os.close(self._report)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the daemon has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)


class ForkServer:
    """Process from which the daemons of a role are forked. It ends with this one.

    Args:
        role: worker, aggregator or optimizer.
        environment: environment of the server and of all its daemons.
    """

    def __init__(self, role: str, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.cluster.fork_server", str(theirs.fileno()), role],
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def start(
        self,
        module: str,
        arguments: Sequence[str],
        settings: Mapping[str, str],
        output: IO[bytes],
        errors: IO[bytes],
    ) -> Child:
        """Run `python -m MODULE ARGUMENTS` with these additional variables, and output to these files."""
        request = json.dumps([module, list(arguments), dict(settings)]).encode()
        assert len(request) < _MAX_REQUEST_BYTES
        stdin, our_stdin = os.pipe()
        report, report_writer = os.pipe()
        try:
            socket.send_fds(self._socket, [request], [stdin, output.fileno(), errors.fileno(), report_writer])
        finally:
            os.close(stdin)
            os.close(report_writer)
        return Child(report, os.fdopen(our_stdin, "wb"))


@cache
def _fork_server(role: str, environment: tuple[tuple[str, str], ...]) -> ForkServer:
    return ForkServer(role, dict(environment))


def fork_server(role: str, environment: Mapping[str, str]) -> ForkServer:
    """Return the server of a role with this environment; pytest's own variables are ignored."""
    lasting = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    return _fork_server(role, tuple(sorted(lasting.items())))


def spawner(role: str, environment: Mapping[str, str], settings: Mapping[str, str]) -> Spawn:
    """Return a function that forks a daemon's process, for `DaemonProcess`.

    Args:
        role: worker, aggregator or optimizer.
        environment: environment of the role's fork server.
        settings: variables of this daemon alone.
    """

    def spawn(command: Sequence[str], log: IO[bytes]) -> Child:
        python, flag, module, *arguments = command
        assert (python, flag) == (sys.executable, "-m"), command
        return fork_server(role, environment).start(module, arguments, settings, log, log)

    return spawn


# ---- in the fork server ----


def main(descriptor: int, role: str) -> None:
    """Fork a daemon for each request, until the socket closes.

    In a forked daemon it returns, or raises SystemExit, when the daemon ends.
    """
    from services.runtime.process import limit_blas_to_one_thread

    limit_blas_to_one_thread()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    commands = (
        "cli.main",
        "cli.daemon_commands",
        "cli.job_commands",
        "cli.local_commands",
        "cli.model_commands",
    )
    for name in (*commands, *_MODULES[role], *_HTTP_MODULES):
        importlib.import_module(name)
    del sys.modules["cli.main"]  # or runpy, which runs it, would warn that it is there already
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest handles Ctrl-C, and ends the daemons in order
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps keepers
    gc.collect()
    gc.freeze()  # or garbage collection in a daemon would copy the pages of all imported modules
    requests = socket.socket(fileno=descriptor)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 4)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            if _keep(*descriptors):
                os._exit(0)  # skip the slow teardown of the imported modules
            module, arguments, settings = json.loads(request)
            os.environ.update(settings)
            if held_steps.VARIABLE in settings:
                held_steps.hold_steps(Path(settings[held_steps.VARIABLE]))
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
        for each in descriptors:
            os.close(each)


def _keep(stdin: int, output: int, errors: int, report_writer: int) -> bool:
    """Fork a daemon with these streams. Return True in its keeper, after the daemon's end; False in the daemon."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    daemon = os.fork()
    if daemon == 0:
        for source, target in ((stdin, 0), (output, 1), (errors, 2)):
            os.dup2(source, target)
        for each in (stdin, output, errors, report_writer):
            os.close(each)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return False
    for each in (stdin, output, errors):
        os.close(each)
    os.write(report_writer, f"{daemon}\n".encode())
    _, status = os.waitpid(daemon, 0)
    os.write(report_writer, str(os.waitstatus_to_exitcode(status)).encode())
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
