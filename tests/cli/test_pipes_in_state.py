"""A pipe in the place of a file that a role or the authority keeps is refused at once; nobody waits for its writer."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.certs.folder import CertificateFolder
from services.errors import Refused
from services.runtime.cluster_identity import read_cluster
from services.runtime.number_file import NumberFile
from services.transport.access.permissions import CallerKind

LIMIT_SECONDS = 60

READERS: dict[str, Callable[[Path], object]] = {
    "cluster": read_cluster,
    "epoch": lambda path: NumberFile(path, 9, "an epoch").read(),
    "generation": lambda path: NumberFile(path, 9, "a generation").write(1),
    "authority.pem": lambda path: CertificateFolder(path.parent).issue(CallerKind.WORKER, "w", ["w"], 1),
    "authority.key": lambda path: CertificateFolder(path.parent).issue(CallerKind.WORKER, "w", ["w"], 1),
    "issued.txt": lambda path: CertificateFolder(path.parent).issue(CallerKind.WORKER, "w", ["w"], 1),
    "revoked.txt": lambda path: CertificateFolder(path.parent).revoked(),
}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_is_refused_at_once(tmp_path: Path, name: str) -> None:
    CertificateFolder(tmp_path).init("test", 10)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    found: list[BaseException] = []

    def read() -> None:
        try:
            READERS[name](path)
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    (error,) = found
    assert isinstance(error, Refused) and "pipe, expected a regular file" in str(error)
