"""The cluster that a role belongs to, in its state dir.

An aggregator's queue has the identity of its cluster. An optimizer or a shard takes the identity of the first
aggregator that it obeys, and refuses those of other clusters from then on.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from services.durable_files import new_file
from services.errors import NotYet, Refused
from services.input_files import NoSuchFile, read_input_file
from services.printable import printable
from services.protocol.hello import is_cluster
from services.runtime.file_locks import try_lock

log = logging.getLogger("tiermesh")

CLUSTER_FILE = "cluster"
"""Name of the file in the state dir of an optimizer or a shard."""
_MOST_BYTES = 100


def make_cluster() -> str:
    """Return the identity of a new cluster."""
    return secrets.token_hex(8)


class StateDirUse:
    """The mark that a process uses a state dir: a lock that the operating system frees when the process ends.

    Args:
        state_dir: the folder.
        exclusive: whether the process needs the folder for itself, to change the cluster that it belongs to.

    Raises:
        NotYet: daemons use the folder, or its identity is being changed.
    """

    def __init__(self, state_dir: Path, *, exclusive: bool = False) -> None:
        lock = try_lock(state_dir / "cluster.lock", exclusive=exclusive)
        if lock is None:
            raise NotYet(
                f"--state-dir {state_dir}: "
                + (
                    "a daemon uses it; stop the daemon first"
                    if exclusive
                    else "`tiermesh cluster adopt` uses it"
                )
            )
        self._lock = lock

    def close(self) -> None:
        """Free the folder."""
        self._lock.close()


class ClusterIdentity:
    """The cluster that an optimizer or a shard obeys.

    Args:
        state_dir: state dir of the role.

    Attributes:
        cluster: the cluster's identity; empty before the first aggregator.
        state_dir: as above.

    Raises:
        Refused: the file is damaged.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._path = state_dir / CLUSTER_FILE
        self._stored = self.cluster = read_cluster(self._path)

    def obey(self, cluster: str) -> None:
        """Belong to this cluster from now on, durably. A full disk must not stop a job, so then it is tried again."""
        self.cluster = cluster
        if cluster and cluster != self._stored:
            try:
                write_cluster(self._path, cluster)
                self._stored = cluster
            except OSError as error:
                log.warning(
                    "%s: cluster %s could not be stored (%s), so a restarted process may obey another one",
                    self._path,
                    cluster,
                    error.strerror,
                )


def read_cluster(path: Path) -> str:
    """Return the identity in a file; empty if there is no file.

    Raises:
        Refused: the file is damaged.
    """
    try:
        text = read_input_file("", path, _MOST_BYTES).decode("ascii", "replace").strip()
    except NoSuchFile:
        return ""
    if not is_cluster(text):
        raise Refused(
            f"{path}: {printable(text, 40)!r}, expected the 16 hexadecimal digits of a cluster; remove the file, and "
            "the role joins the cluster of the next aggregator"
        )
    return text


def write_cluster(path: Path, cluster: str) -> None:
    """Store an identity durably. Workers of one host share a state dir, so several may write it at the same time.

    Raises:
        OSError: the file can't be written.
    """
    with new_file(path, path.with_name(f".{path.name}.{os.getpid()}")) as file:
        file.write(f"{cluster}\n".encode())
