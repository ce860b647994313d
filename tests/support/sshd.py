"""A real sshd on loopback, as an ordinary process with keys and configuration of its own.

Addresses 127.0.0.N are its "hosts". Without root it runs as this user. With root it would need a user and folders of
the system; so it runs in a user namespace that shows this user as an ordinary one with a login shell.
"""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
UNPACKED = ROOT / "build" / "sshd"
"""Where scripts/unpack_program.sh leaves it."""
START_SECONDS = 10.0
_NO_SHELLS = ("nologin", "false", "sync")

_SERVER = """
Port {port}
ListenAddress 127.0.0.1
ListenAddress 127.0.0.2
ListenAddress 127.0.0.3
ListenAddress 127.0.0.4
ListenAddress 127.0.0.5
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
PasswordAuthentication {password}
KbdInteractiveAuthentication no
UsePAM yes
StrictModes no
MaxStartups 100
SetEnv HOME={folder}/home
"""
_CLIENT = """
Host *
    Port {port}
    User {user}
    IdentityFile {folder}/key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
"""


class NoSshd(Exception):
    """Reason why sshd can't run here."""


@dataclass(frozen=True)
class Sshd:
    """A running sshd.

    Attributes:
        folder: its keys and files; `home` in it is the home folder of those who log in.
        port: port on all addresses.
        process: the server.
    """

    folder: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def config(self) -> Path:
        """Configuration for `ssh -F`."""
        return self.folder / "ssh_config"

    @property
    def remote(self) -> Path:
        """Tiermesh as the other hosts have it."""
        return self.folder / "tiermesh"

    @property
    def home(self) -> Path:
        """Home folder of those who log in."""
        return self.folder / "home"

    def forget_host(self) -> None:
        """Remove the host's key from those that the client knows."""
        (self.folder / "known_hosts").write_text("")

    def change_known_key(self) -> None:
        """Let the client know another key than the host shows."""
        _make_key(self.folder / "other_key")
        _know(self.folder, self.port, "other_key")

    def stop(self) -> None:
        """End the server."""
        self.process.terminate()
        self.process.wait(timeout=30)

    def refuse_key(self) -> None:
        """Accept the client's key no more."""
        (self.folder / "authorized_keys").write_text("")


@contextmanager
def running_sshd(folder: Path, *, password: bool = False) -> Iterator[Sshd]:
    """Start an sshd.

    Args:
        folder: empty folder for its files.
        password: whether it would ask for a password.

    Raises:
        NoSshd: there is none, or it can't run here.
    """
    program, environment = _find_program()
    user, wrapper = _find_user()
    port = free_port()
    (folder / "home").mkdir(parents=True)
    for name in ("host_key", "key"):
        _make_key(folder / name)
    (folder / "authorized_keys").write_text((folder / "key.pub").read_text())
    _know(folder, port, "host_key")
    settings = {"port": port, "folder": folder, "user": user, "password": "yes" if password else "no"}
    (folder / "sshd_config").write_text(_SERVER.format(**settings))
    (folder / "ssh_config").write_text(_CLIENT.format(**settings))
    _write_remote(folder / "tiermesh")
    log = (folder / "sshd.log").open("wb")
    process = subprocess.Popen(
        [*wrapper, program, "-D", "-e", "-f", str(folder / "sshd_config")],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    log.close()
    try:
        _wait_until_it_listens(process, port, folder / "sshd.log")
        yield Sshd(folder, port, process)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _find_program() -> tuple[str, dict[str, str]]:
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        raise NoSshd("no OpenSSH client is installed")
    installed = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if installed is not None:
        return installed, dict(os.environ)
    unpacked = UNPACKED / "usr" / "sbin" / "sshd"
    if not unpacked.exists():
        raise NoSshd("no sshd: install it, or unpack it as .ci/run does")
    libraries = {str(path.parent) for path in UNPACKED.rglob("lib*.so*")}
    return str(unpacked), {**os.environ, "LD_LIBRARY_PATH": ":".join(libraries)}


def _find_user() -> tuple[str, list[str]]:
    """Return the user to log in as, and the command in which sshd runs."""
    if os.getuid() != 0:
        return pwd.getpwuid(os.getuid()).pw_name, []
    for user in pwd.getpwall():
        if user.pw_uid != 0 and Path(user.pw_shell).name not in _NO_SHELLS and Path(user.pw_shell).exists():
            wrapper = ["unshare", "--user", f"--map-user={user.pw_uid}", f"--map-group={user.pw_gid}"]
            if subprocess.run([*wrapper, "true"], capture_output=True, check=False).returncode == 0:
                return user.pw_name, wrapper
            raise NoSshd("user namespaces can't be made, which sshd needs where the tests run as root")
    raise NoSshd("no ordinary user has a login shell, which sshd needs where the tests run as root")


def _make_key(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)


def _know(folder: Path, port: int, name: str) -> None:
    key = " ".join((folder / f"{name}.pub").read_text().split()[:2])
    hosts = ",".join(f"[127.0.0.{number}]:{port}" for number in range(1, 6))
    (folder / "known_hosts").write_text(f"{hosts} {key}\n")


def _write_remote(path: Path) -> None:
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m cli.main "$@"\n')
    path.chmod(0o755)


def _wait_until_it_listens(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.5", port)).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise NoSshd(f"sshd can't run here: {log.read_text().splitlines()[-1:]}") from None
        time.sleep(0.02)
