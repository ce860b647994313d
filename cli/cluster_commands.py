"""`tiermesh cluster`: shows and changes the cluster that a stopped role belongs to."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.command_group import WholeLineGroup
from cli.options import output_options, path_option
from cli.output import Output
from services.errors import Failed, Refused
from services.printable import printable_path

if TYPE_CHECKING:
    from aggregator.storage.job_queue import JobQueue

_state_dir_option = path_option(
    "--state-dir", required=True, help="State dir of an aggregator, optimizer or shard."
)


@click.group(cls=WholeLineGroup)
def cluster() -> None:
    """Show or change the cluster that a stopped role belongs to."""


@cluster.command()
@_state_dir_option
@output_options
def show(*, state_dir: Path, output: Output) -> int:
    """Show the cluster of a state dir, while no daemon uses it."""
    with _StateDir(state_dir) as folder:
        for name, identity in folder.identities().items():
            output.say(f"{name}: cluster {identity or 'not made yet'}")
        output.result({"state_dir": str(state_dir), "identities": folder.identities()})
    return 0


@cluster.command()
@click.argument("cluster_id", metavar="ID")
@_state_dir_option
@output_options
def adopt(*, cluster_id: str, state_dir: Path, output: Output) -> int:
    """Move the role of a state dir to the cluster ID, while no daemon uses it."""
    from services.protocol.hello import is_cluster

    if not is_cluster(cluster_id):
        raise Refused(
            f"ID {cluster_id[:40]!r}: expected the 16 hexadecimal digits that `tiermesh cluster show` prints"
        )
    with _StateDir(state_dir) as folder:
        before = folder.identities()
        folder.adopt(cluster_id)
        for name, identity in before.items():
            output.say(f"{name}: moved from cluster {identity or '(none)'} to {cluster_id}")
        output.result({"state_dir": str(state_dir), "identities": folder.identities(), "before": before})
    return 0


class _StateDir:
    """A state dir that no daemon uses while the context lasts."""

    def __init__(self, path: Path) -> None:
        from services.runtime.cluster_identity import CLUSTER_FILE

        self._path = path
        self._file = path / CLUSTER_FILE
        self._stack = ExitStack()
        self._queue: JobQueue | None = None

    def __enter__(self) -> _StateDir:
        from aggregator.storage.job_queue import open_queue
        from services.runtime.cluster_identity import StateDirUse
        from services.timeouts import STANDARD_TIMEOUTS

        has_queue = (self._path / "queue.sqlite").exists()
        if not has_queue and not self._file.exists():
            raise Refused(
                f"--state-dir {printable_path(self._path)}: has no queue and no file `cluster`; expected the state dir "
                "of an aggregator, or of an optimizer or shard that has met one"
            )
        with ExitStack() as stack:
            stack.callback(StateDirUse(self._path, exclusive=True).close)
            if has_queue:
                self._queue = open_queue(self._path, STANDARD_TIMEOUTS)
                stack.callback(self._queue.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def identities(self) -> dict[str, str]:
        """Return the identity that each file of the folder has, by the file's name."""
        from services.runtime.cluster_identity import read_cluster

        found = {"queue.sqlite": self._queue.read_cluster()} if self._queue is not None else {}
        if self._file.exists():
            found[self._file.name] = read_cluster(self._file)
        return found

    def adopt(self, cluster_id: str) -> None:
        """Change the identity in each file that has one."""
        from services.runtime.cluster_identity import write_cluster

        if self._file.exists():
            try:
                write_cluster(self._file, cluster_id)
            except OSError as error:
                raise Failed(f"{printable_path(self._file)}: not written ({error.strerror})") from None
        if self._queue is not None:
            self._queue.adopt(cluster_id)
