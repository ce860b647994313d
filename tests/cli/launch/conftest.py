"""Configuration folders like those of tt-train's multi-host examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mesh.descriptors.read import format_textproto
from tests.support.descriptors import describe_meshes
from tests.support.sshd import NoSshd, Sshd, running_sshd

MakeFolder = Callable[..., Path]


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """Return a running sshd; the test is skipped where none can run."""
    with ExitStack() as stack:
        try:
            running = stack.enter_context(running_sshd(tmp_path / "sshd"))
        except NoSshd as error:
            pytest.skip(str(error))
        yield running


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Return a function that writes `configurations/NAME` with the files that are given, and returns the folder."""

    def make(
        name: str = "boxes",
        *,
        hosts: str | None = None,
        bindings: str | None = None,
        meshes: int | None = None,
        shape: tuple[int, int] = (1, 8),
        mesh_hosts: tuple[int, int] = (1, 1),
    ) -> Path:
        folder = tmp_path / "configurations" / name
        folder.mkdir(parents=True)
        if hosts is not None:
            (folder / "hosts.txt").write_text(hosts)
        if bindings is not None:
            (folder / "rank_bindings.yaml").write_text(bindings)
        if meshes is not None:
            (folder / "mgd.textproto").write_text(
                format_textproto(describe_meshes(meshes, shape, mesh_hosts))
            )
        return folder

    return make
