"""OpenSSH as the way to a host: its command line, and one line about each of its failures. Pure."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.errors import ExitCode, Failed, Refused, TiermeshError
from services.printable import one_line

NO_AGENT = "no agent runs there any longer"
"""Part of the error of `launch-agent --attach` where the run has ended."""

CONNECT_SECONDS = 10
ALIVE_SECONDS, ALIVE_COUNT = 5, 3
"""A connection counts as dead after their product, which is the agent's own limit too."""

_OPTIONS = (
    "BatchMode=yes",  # a password or a new host key ends in an error, never in a question
    f"ConnectTimeout={CONNECT_SECONDS}",
    f"ServerAliveInterval={ALIVE_SECONDS}",
    f"ServerAliveCountMax={ALIVE_COUNT}",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "EscapeChar=none",
    "LogLevel=ERROR",
)
_SSH_ERROR, _NOT_EXECUTABLE, _NOT_FOUND = 255, 126, 127


@dataclass(frozen=True)
class OpenSSH:
    """How hosts are reached.

    Attributes:
        program: the ssh command.
        config: file in place of the user's ssh_config; None for that one.
        options: `NAME=VALUE` of ssh_config, which win over the launcher's own.
    """

    program: str = "ssh"
    config: Path | None = None
    options: tuple[str, ...] = ()

    def command(self, host: str, remote: Sequence[str]) -> list[str]:
        """Return the command that runs another one on a host.

        Args:
            host: host as ssh_config or DNS knows it.
            remote: program and arguments there.
        """
        return [*self._base(), "-T", "--", host, "exec " + shlex.join(remote)]

    def query(self, host: str) -> list[str]:
        """Return the command that prints what ssh_config says of a host."""
        return [*self._base(), "-G", "--", host]

    def _base(self) -> list[str]:
        config = () if self.config is None else ("-F", str(self.config))
        # The first of two values wins.
        options = [text for each in (*self.options, *_OPTIONS) for text in ("-o", each)]
        return [self.program, *config, *options]


class AgentGone(Refused):
    """Lack of the agent of a detached run: it has ended, and its daemons with it."""


def read_address(answer: str, host: str) -> str:
    """Return the address of a host in the answer to `OpenSSH.query`, which is `HostName` of ssh_config."""
    found = re.search(r"^hostname (\S+)$", answer, re.MULTILINE)
    return found[1] if found else host


_CAUSES: tuple[tuple[str, str], ...] = (
    (
        r"REMOTE HOST IDENTIFICATION HAS CHANGED|Offending .* key in",
        "shows another host key than known_hosts has; if it was installed again, remove the old key with "
        "`ssh-keygen -R {host}`; else somebody is in between",
    ),
    (
        r"Host key verification failed|No .* host key is known",
        "has a host key that is not in known_hosts; compare it and accept it once with `ssh {host}`",
    ),
    (
        r"Permission denied \(.*(password|keyboard-interactive)",
        "refuses the key and asks for a password; add your key there with `ssh-copy-id {host}`",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "refuses the key; add it to authorized_keys there, or name another one by IdentityFile in ssh_config",
    ),
    (
        r"Could not resolve hostname",
        "has a name that can't be resolved; correct it, or set HostName in ssh_config",
    ),
    (
        r"Connection refused",
        "refuses the connection; start sshd there, or correct its Port in ssh_config",
    ),
    (
        r"timed out|No route to host|Network is unreachable|Host is down",
        "can't be reached; see that it is on and that the network lets ssh through",
    ),
    (
        r"Bad configuration option|Can't open user config file|terminating, .* bad configuration|"
        r"Bad owner or permissions|command-line: line",
        "can't be reached with these settings of ssh; correct ssh_config, --ssh-config or --ssh-option",
    ),
)


def explain_end(host: str, code: int, errors: Sequence[str], remote: Sequence[str]) -> TiermeshError:
    """Return one line about an agent's connection that ended before it was asked to.

    Args:
        host: host as hosts.txt names it.
        code: exit code of ssh, or of the agent if there was no need for ssh.
        errors: last lines of standard error.
        remote: command that was started there.
    """
    text = "\n".join(errors)
    last = one_line(errors[-1] if errors else "", 150)
    if code == _SSH_ERROR:
        for pattern, cause in _CAUSES:
            if re.search(pattern, text):
                return Refused(f"host {host}: {cause.format(host=host)} ({last})")
        return Failed(
            f"host {host}: ssh lost the connection ({last or 'no reason given'}); see the network there"
        )
    if "launch-agent" in text and "No such command" in text:
        return Refused(
            f"host {host}: has a Tiermesh without `launch`; install this version there, or give --remote PATH"
        )
    if NO_AGENT in text:
        return AgentGone(
            f"host {host}: {NO_AGENT}, so its daemons have ended; --stop ends the run on the other hosts"
        )
    if code in (_NOT_EXECUTABLE, _NOT_FOUND):
        return Refused(
            f"host {host}: {remote[0]} can't be started there ({last or f'exit code {code}'}); install Tiermesh "
            "at that path, or give its path there with --remote"
        )
    # An agent that can't run says why.
    if own := re.match(r"tiermesh: (.+)", errors[-1] if errors else ""):
        kind = Refused if code == ExitCode.REFUSED else Failed
        return kind(f"host {host}: {one_line(own[1], 250)}")
    how = f"exit code {code}" if code >= 0 else f"signal {-code}"
    quoted = f"; its last line, perhaps unrelated: {last}" if last else ""
    return Failed(f"host {host}: the agent there ended, {how}, without a reason{quoted}")
