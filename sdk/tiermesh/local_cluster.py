"""`tiermesh.local`: a cluster of daemons on this machine, started by the command of `tiermesh-cluster`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiermesh.client import Client
from tiermesh.errors import Failed, error_of
from tiermesh.job_files import Config
from tiermesh.records import Job

_READY_SECONDS = 120.0
"""Longest start of a daemon; on a busy machine it takes long."""
_STOP_SECONDS = 60.0
"""Longest stop of a daemon; an aggregator or optimizer saves the weights of the last step first."""
_POLL_SECONDS = 0.05
_LOG_END_BYTES = 4096
_LOOPBACK = "127.0.0.1"
_HOST_VARIABLES = ("TIERMESH_DATA", "TIERMESH_CACHE")
"""Variables of the environment that say something of the host, and are no options."""


@dataclass(frozen=True)
class LocalCluster:
    """A cluster on this machine, with a job.

    Attributes:
        client: client of the cluster.
        job: the job, as it was submitted.
        state_dir: folder of the cluster's queue, checkpoints and logs.
    """

    client: Client
    job: Job
    state_dir: Path


@contextmanager
def local(
    config: Config,
    overrides: Mapping[str, Any] | None = None,
    *,
    workers: int = 2,
    tiers: int = 3,
    state_dir: str | os.PathLike[str] | None = None,
    code: str | os.PathLike[str] | None = None,
) -> Iterator[LocalCluster]:
    """Start a cluster of daemons on this machine, submit a job to it, and stop the daemons when the context ends.

        with tiermesh.local("job.yaml", workers=2) as cluster:
            cluster.client.wait(cluster.job.id)
            curves = cluster.client.metrics(cluster.job.id)

    Args:
        config: path of the job's YAML file, or its content, as for `Client.submit`.
        overrides: settings that replace the file's, by their dotted name.
        workers: number of workers, from 1 to 64; it does not change the result.
        tiers: 3 to run the optimizer as a daemon of its own, 2 to run it inside the aggregator.
        state_dir: folder for queue, checkpoints and logs; None for a temporary one, which is removed at the end.
        code: folder with the code of the job's own model, as for `Client.submit`. The workers run it.

    Raises:
        Refused: the command is not installed, or an argument or the job's config is wrong.
        Failed: a daemon can't be started; the error has the end of its log.
    """
    if not 1 <= workers <= 64:
        raise error_of("workers", workers, "a number from 1 to 64", "correct it")
    if tiers not in (2, 3):
        raise error_of("tiers", tiers, "2 or 3", "correct it")
    with ExitStack() as stack:
        if state_dir is None:
            state_dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="tiermesh-"))
        state = Path(state_dir).absolute()
        (state / "logs").mkdir(parents=True, exist_ok=True)
        url = _start(stack, state, workers, tiers, () if code is None else ("--accept-code",))
        token = (state / "web-token").read_text("ascii").strip()
        client = stack.enter_context(Client(url, token=token))
        yield LocalCluster(client, client.submit(config, overrides, code=code), state)


def _start(stack: ExitStack, state: Path, workers: int, tiers: int, options: tuple[str, ...]) -> str:
    """Start the daemons, workers with some options, so that `stack` stops them; return the address of `web`."""
    command = find_command()

    def start(*daemons: tuple[str, ...]) -> str:
        """Start daemons, each a role, a name and options, and return the address of the last one."""
        commands = {name: [command, role, "--name", name, *options] for role, name, *options in daemons}
        return stack.enter_context(_running(commands, state / "logs"))

    peers: tuple[str, ...] = ()
    if tiers == 3:
        peers = ("--optimizer", start(("optimizer", "optimizer", "--state-dir", str(state))))
    peers = ("--aggregator", start(("aggregator", "aggregator", "--state-dir", str(state), *peers)))
    names = [f"worker-{number}" for number in range(1, workers + 1)]
    return "http://" + start(
        *(("worker", name, "--state-dir", str(state / "workers"), *peers, *options) for name in names),
        ("web", "web", "--state-dir", str(state / "web"), "--token-file", str(state / "web-token"), *peers),
    )


def find_command() -> str:
    """Return the path of the `tiermesh` command, of this environment or on PATH.

    Raises:
        Refused: there is none.
    """
    beside = Path(sys.executable).with_name("tiermesh")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("tiermesh")
    if found is None:
        raise error_of(
            "tiermesh", "no such command", "the command of tiermesh-cluster", "install that, here or on PATH"
        )
    return found


@contextmanager
def _running(commands: Mapping[str, list[str]], folder: Path) -> Iterator[str]:
    """Start daemons, yield the address of the last one once all serve, and stop them when the context ends.

    Args:
        commands: program and arguments of each daemon, by its name.
        folder: folder of their logs and ready files.
    """
    daemons = [_Daemon(name, command, folder) for name, command in commands.items()]
    try:
        for daemon in daemons:
            daemon.start()
        yield [daemon.wait_ready() for daemon in daemons][-1]
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait_ended()


class _Daemon:
    """A daemon as a child process, in a session of its own, which ends when this process does."""

    def __init__(self, name: str, command: list[str], folder: Path) -> None:
        self._name = name
        self._log = folder / f"{name}.log"
        self._ready_file = folder / f"{name}.ready.json"
        self._command = [
            *command, "--listen", f"{_LOOPBACK}:0", "--ready-file", str(self._ready_file), "--exit-with-parent"
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._ready_file.unlink(missing_ok=True)
        # Options of this process's environment are for the commands that a person types.
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TIERMESH_") or name in _HOST_VARIABLES
        }
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,  # its end tells a daemon that this process has ended
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )

    def wait_ready(self) -> str:
        """Wait until the daemon serves, and return its address."""
        assert self._process is not None
        deadline = time.monotonic() + _READY_SECONDS
        while not self._ready_file.exists():
            code = self._process.poll()
            if code is not None:
                raise Failed(
                    f"{self._name}: ended with exit code {code}; its log ends with: {self._read_log()}"
                )
            if time.monotonic() > deadline:
                raise Failed(f"{self._name}: does not serve after {_READY_SECONDS:g} s; see {self._log}")
            time.sleep(_POLL_SECONDS)
        return f"{_LOOPBACK}:{json.loads(self._ready_file.read_bytes())['port']}"

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()

    def wait_ended(self) -> None:
        """Wait for the end of a daemon that was told to end, and force it if it takes too long."""
        if self._process is None:
            return
        with self._process:  # which closes the pipe
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()

    def _read_log(self) -> str:
        with self._log.open("rb") as file:
            file.seek(max(0, self._log.stat().st_size - _LOG_END_BYTES))
            return " | ".join(file.read().decode("utf-8", "replace").splitlines()[-3:])
