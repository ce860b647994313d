"""Daemons and commands, forked from a process which has imported what they need: most of a start's time goes into that.

A nursery is asked over a socket, with the descriptors of the daemon's standard streams. It forks a keeper, which forks
the daemon, has it run its module as `python -m` would, waits for its end and tells it through a pipe. Each role has a
nursery of its own, so that in a cluster sets of strings have another order in each, as in processes of their own.

python -m tests.support.cluster.nursery DESCRIPTOR ROLE     is what runs; DESCRIPTOR is its end of the socket
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

if TYPE_CHECKING:
    from services.runtime.launcher import Spawn

ROOT = Path(__file__).resolve().parents[3]
_MOST_BYTES = 1 << 16
_MODULES = {
    "worker": ("worker.service", "worker.device_thread", "training.models", "mesh.emulator"),
    "aggregator": ("aggregator.service", "aggregator.shards.server.service", "optimizer.engine"),
    "optimizer": ("optimizer.service",),
}
"""What is imported before a daemon of each role is asked for, besides the command's own options."""
ROLES = tuple(_MODULES)
"""Whose daemons have a nursery."""


class Child:
    """A daemon, with those of `subprocess.Popen`'s methods that tests of daemons need."""

    def __init__(self, told: int, stdin: IO[bytes]) -> None:
        self._told = told
        self._words = b""
        self.stdin = stdin
        self.returncode: int | None = None
        while b"\n" not in self._words:
            words = os.read(told, 64)
            assert words, "the nursery has ended, or could not fork"
            self._words += words
        pid, _, self._words = self._words.partition(b"\n")
        self.pid = int(pid)

    def poll(self) -> int | None:
        """The exit code, minus the signal that killed it; None while it lives."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; returns the exit code, raises TimeoutExpired."""
        while self.returncode is None:
            if not select.select([self._told], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"daemon {self.pid}", timeout or 0)
            words = os.read(self._told, 64)
            self._words += words
            if not words:
                self.returncode = int(self._words)
                os.close(self._told)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)


class Nursery:
    """The process that daemons of a role are forked from; it ends with this one.

    Args:
        role: worker, aggregator or optimizer.
        environment: of it, and of all its daemons.
    """

    def __init__(self, role: str, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.cluster.nursery", str(theirs.fileno()), role],
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
        """Run `python -m MODULE ARGUMENTS` with these settings in its environment, its outputs in these files."""
        request = json.dumps([module, list(arguments), dict(settings)]).encode()
        assert len(request) < _MOST_BYTES
        stdin, our_stdin = os.pipe()
        told, telling = os.pipe()
        try:
            socket.send_fds(self._socket, [request], [stdin, output.fileno(), errors.fileno(), telling])
        finally:
            os.close(stdin)
            os.close(telling)
        return Child(told, os.fdopen(our_stdin, "wb"))


@cache
def _nursery(role: str, environment: tuple[tuple[str, str], ...]) -> Nursery:
    return Nursery(role, dict(environment))


def nursery(role: str, environment: Mapping[str, str]) -> Nursery:
    """The one of a role with this environment, but for what pytest says there of the test that runs."""
    lasting = {name: value for name, value in environment.items() if not name.startswith("PYTEST_")}
    return _nursery(role, tuple(sorted(lasting.items())))


def spawner(role: str, environment: Mapping[str, str], settings: Mapping[str, str]) -> Spawn:
    """Return what forks a daemon's process, for `DaemonProcess`.

    Args:
        role: worker, aggregator or optimizer.
        environment: environment of the role's nursery.
        settings: variables of this daemon alone.
    """

    def spawn(command: Sequence[str], log: IO[bytes]) -> Child:
        python, flag, module, *arguments = command
        assert (python, flag) == (sys.executable, "-m"), command
        return nursery(role, environment).start(module, arguments, settings, log, log)

    return spawn


# ---- in the nursery ----


def main(descriptor: int, role: str) -> None:
    """Fork daemons until nobody can ask for any more. Returns, or raises SystemExit, in each daemon at its end, too."""
    from services.runtime.process import limit_blas_to_one_thread

    limit_blas_to_one_thread()
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    for name in ("cli.daemon_commands", "cli.job_commands", "cli.model_commands", *_MODULES[role]):
        importlib.import_module(name)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is pytest's, which ends the daemons in order
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for keepers
    gc.collect()
    gc.freeze()  # else each daemon's collections write to, and so copy, all that was imported
    asked = socket.socket(fileno=descriptor)
    while True:
        request, descriptors, _, _ = socket.recv_fds(asked, _MOST_BYTES, 4)
        if not request:
            return
        if os.fork() == 0:
            asked.close()
            if _keep(*descriptors):
                os._exit(0)  # nothing is left to do, and taking down all that was imported takes a while
            module, arguments, settings = json.loads(request)
            os.environ.update(settings)
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
        for each in descriptors:
            os.close(each)


def _keep(stdin: int, output: int, errors: int, telling: int) -> bool:
    """Fork a daemon with these standard streams; True in its keeper, once it has ended and that is told."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    daemon = os.fork()
    if daemon == 0:
        for source, target in ((stdin, 0), (output, 1), (errors, 2)):
            os.dup2(source, target)
        for each in (stdin, output, errors, telling):
            os.close(each)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        return False
    for each in (stdin, output, errors):
        os.close(each)
    os.write(telling, f"{daemon}\n".encode())
    _, status = os.waitpid(daemon, 0)
    os.write(telling, str(os.waitstatus_to_exitcode(status)).encode())
    return True


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
