"""Daemon of a rank as a child process of an agent, and its environment, which other child processes share."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from pathlib import Path

from cli.launch.agent.protocol import Start
from services.runtime.launcher import DaemonProcess, environment_without_options, spawn_subprocess


def process_environment(added: Mapping[str, str], unset: Collection[str]) -> dict[str, str]:
    """Return the variables of a rank's process: those of the agent, without options of Tiermesh, and its own."""
    own = environment_without_options()
    return {**{name: value for name, value in own.items() if name not in unset}, **added}


class RankProcess(DaemonProcess):
    """Daemon of a rank, which ends when its agent does.

    Args:
        start: the launcher's request for it.
    """

    def __init__(self, start: Start) -> None:
        folder = Path(start.folder)
        environment = process_environment(start.environment, start.unset)
        spawn = functools.partial(spawn_subprocess, environment=environment, folder=folder)
        super().__init__(start.role, start.name, folder, spawn=spawn)
        self._ready_file = Path(start.ready_file)
        self._command = (*start.arguments, "--exit-with-parent")

    def command(self) -> list[str]:
        """Return the command that the launcher gave."""
        return list(self._command)
