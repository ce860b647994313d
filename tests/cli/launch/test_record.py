"""Records of runs, by which a later command finds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.launch.cluster import Member
from cli.launch.openssh import OpenSSH
from cli.launch.record import RECORD_FILE, Run, forget_run, new_run_name, read_run, run_folder, write_run
from cli.launch.sites import Site
from services.errors import Refused

SITES = (
    Site(None, "a", ("python", "-m", "x"), OpenSSH()),
    Site("box", "b", ("tiermesh",), OpenSSH("ssh", Path("/c"), ("Port=2",))),
)
RUN = Run("run", "job", "box:7070", True, SITES, (Member(0, "worker", "rank0", "box"),))


def test_a_run_is_found_again_until_it_is_forgotten(tmp_path: Path) -> None:
    name = new_run_name()
    folder = run_folder(tmp_path, name)
    write_run(RUN, folder, {"daemon.key": "secret"})
    assert read_run(tmp_path, name) == RUN
    assert (folder / "daemon.key").stat().st_mode & 0o777 == 0o600
    with pytest.raises(Refused, match=f"the newest here are {name}"):
        read_run(tmp_path, "other")
    forget_run(folder)
    assert not (folder / "daemon.key").exists()
    with pytest.raises(Refused, match="none was launched from here"):
        read_run(tmp_path, name)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"sites": 1}', '{"sites": [{}], "members": []}', "\x00", "[" * 9999]
)
def test_a_damaged_record_is_refused(tmp_path: Path, text: str) -> None:
    folder = run_folder(tmp_path, "run")
    folder.mkdir()
    (folder / RECORD_FILE).write_text(text)
    with pytest.raises(Refused, match="is damaged"):
        read_run(tmp_path, "run")


@pytest.mark.parametrize("name", ["", "..", "a/b", "-x", "x" * 65])
def test_a_name_that_is_no_run_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="expected a name such as"):
        run_folder(Path("state"), name)
