"""Which files of a folder, or options in their place, a launch is made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cli.launch.configuration import Configuration, LaunchFiles, read_configuration
from cli.launch.hosts_file import Host
from services.config.paths import REPOSITORY_ROOT
from services.errors import Refused
from tests.cli.launch.conftest import MakeFolder

_BINDINGS = """
rank_bindings:
  - {rank: 0, mesh_id: 1}
  - {rank: 1, mesh_id: 0}
mesh_graph_desc_path: "configurations/boxes/mgd.textproto"
"""
_UPSTREAM = [
    folder.parent
    for above in REPOSITORY_ROOT.parents
    for folder in sorted((above / "shared" / "upstream").glob("*/**/configurations/*/mgd.*"))
]


def _read(folder: Path | None, launch_folder: Path | None = None, **files: Any) -> Configuration:
    environment = files.pop("environment", {})
    return read_configuration(LaunchFiles(folder, **files), environment, launch_folder or Path("/"))


def test_the_three_files_of_a_folder(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(hosts="a slots=1\nb slots=1\n", bindings=_BINDINGS, meshes=2)
    found = _read(folder, tmp_path)
    assert [(binding.rank, binding.mesh_id) for binding in found.bindings.ranks] == [(0, 1), (1, 0)]
    assert found.placement.hosts == (Host("a", 1), Host("b", 1))
    assert {each.path for each in found.descriptors} == {folder / "mgd.textproto"}


def test_descriptor_and_hosts_are_enough(make_folder: MakeFolder) -> None:
    found = _read(make_folder(hosts="a slots=3\n", meshes=3))
    assert [(binding.rank, binding.mesh_id) for binding in found.bindings.ranks] == [(0, 0), (1, 1), (2, 2)]
    assert found.placement.place(3) == ("a", "a", "a")


def test_without_hosts_ranks_are_local(make_folder: MakeFolder) -> None:
    assert _read(make_folder(meshes=2)).placement.place(2) == (None, None)


def test_descriptors_are_searched_as_tt_run_does_and_then_near_the_bindings(
    make_folder: MakeFolder, tmp_path: Path
) -> None:
    folder = make_folder(bindings=_BINDINGS, meshes=2)
    text = (folder / "mgd.textproto").read_text()
    places = [tmp_path / "home", tmp_path / "cwd"]
    for place in places:
        file = place / "configurations" / "boxes" / "mgd.textproto"
        file.parent.mkdir(parents=True)
        file.write_text(text)

    def path_used(launch_folder: Path, **environment: str) -> Path:
        return _read(folder, launch_folder, environment=environment).descriptors[0].path

    home, cwd = places
    assert path_used(cwd, TT_METAL_HOME=str(home)).is_relative_to(home)
    assert path_used(cwd).is_relative_to(cwd)
    assert path_used(Path("/")) == folder / "mgd.textproto"


def test_a_copied_folder_finds_its_descriptor_by_name(make_folder: MakeFolder) -> None:
    folder = make_folder("copied", bindings=_BINDINGS, meshes=2)
    assert _read(folder).descriptors[0].path == folder / "mgd.textproto"


def test_options_replace_files_of_the_folder(make_folder: MakeFolder, tmp_path: Path) -> None:
    folder = make_folder(hosts="a slots=2\n", bindings=_BINDINGS, meshes=2)
    hosts, bindings, mgd, rankfile = (tmp_path / name for name in ("h", "b.yaml", "m.textproto", "rankfile"))
    hosts.write_text("c slots=2\n")
    bindings.write_text("rank_bindings: [{rank: 0, mesh_id: 0}]")
    mgd.write_text((folder / "mgd.textproto").read_text())
    rankfile.write_text("rank 0=d slot=0\nrank 1=c slot=0\n")
    assert _read(folder, hosts=str(hosts)).placement.place(2) == ("c", "c")
    assert _read(folder, hosts="x,y").placement.place(2) == ("x", "y")
    assert _read(folder, rankfile=rankfile).placement.place(2) == ("d", "c")
    assert len(_read(folder, rank_bindings=bindings).bindings.ranks) == 1
    assert _read(folder, descriptor=mgd).descriptors[0].path == mgd
    assert len(_read(None, descriptor=mgd).bindings.ranks) == 2


@pytest.mark.parametrize(
    ("bindings", "facts"),
    [
        (
            "rank_bindings: [{rank: 0, mesh_id: 0}]\nmesh_graph_desc_path: no/such.textproto",
            ['"no/such.textproto"', "--mgd"],
        ),
        (
            "rank_bindings: [{rank: 0, mesh_id: 0}]\nmesh_graph_desc_path: /no/mgd.textproto",
            ['"/no/mgd.textproto"'],
        ),
        ("rank_bindings: [{rank: 0, mesh_id: 0}]\nmesh_graph_desc_path: ${NO}/m", ['"NO"', "not set"]),
        ("rank_bindings: [{rank: 0, mesh_id: 0, mesh_graph_desc_path: gone}]", ['"gone"']),
    ],
)
def test_descriptors_that_are_not_there(bindings: str, facts: list[str], make_folder: MakeFolder) -> None:
    with pytest.raises(Refused) as refused:
        _read(make_folder(bindings=bindings, meshes=1))
    assert all(fact in str(refused.value) for fact in ["mesh_graph_desc_path", *facts]), refused.value


def test_folders_without_files_and_no_folders(make_folder: MakeFolder, tmp_path: Path) -> None:
    empty = make_folder("empty")
    bindings_only = make_folder("bindings", bindings="rank_bindings: [{rank: 0, mesh_id: 0}]")
    for folder, fact in (
        (empty, "no rank_bindings.yaml and no mgd.textproto or mgd.yaml"),
        (bindings_only, "mesh_graph_desc_path: missing"),
        (tmp_path / "none", "no such folder"),
        (bindings_only / "rank_bindings.yaml", "is a file"),
        (None, "launch: no rank_bindings.yaml"),
    ):
        with pytest.raises(Refused, match=fact):
            _read(folder)


def test_many_hosts_and_odd_paths(make_folder: MakeFolder) -> None:
    folder = make_folder(meshes=2)
    names = [f"a-rather-long-name-of-a-host-{number}.example" for number in range(200)]
    assert _read(folder, hosts=",".join(names)).placement.place(200) == tuple(names)
    for text in ("~nobody-of-that-name/none.textproto", "x" * 4000, "a/" * 2000, ".."):
        (folder / "rank_bindings.yaml").write_text(
            f"rank_bindings: [{{rank: 0, mesh_id: 0}}]\nmesh_graph_desc_path: '{text}'"
        )
        with pytest.raises(Refused, match="mesh_graph_desc_path: no file"):
            _read(folder, environment={"TT_METAL_HOME": "~nobody-of-that-name"})
    with pytest.raises(Refused, match="no such folder"):
        _read(Path("x" * 4000))


def test_a_hosts_file_that_is_not_there_is_no_host(make_folder: MakeFolder) -> None:
    with pytest.raises(Refused, match=r"hosts: hsots.txt: no such file"):
        _read(make_folder(meshes=2), hosts="hsots.txt")


def test_hosts_and_rankfile_contradict_each_other(make_folder: MakeFolder, tmp_path: Path) -> None:
    with pytest.raises(Refused, match="--hosts and --rankfile"):
        _read(make_folder(meshes=2), hosts="a", rankfile=tmp_path / "rankfile")


@pytest.mark.skipif(not _UPSTREAM, reason="tt-train's configuration folders are not beside the repository")
def test_all_folders_of_tt_train() -> None:
    for folder in sorted(set(_UPSTREAM)):
        found = _read(folder)
        ranks = len(found.bindings.ranks)
        assert len(found.placement.place(ranks)) == ranks == len(found.descriptors)
        assert all(each.path.parent == folder for each in found.descriptors)


@pytest.mark.skipif(not _UPSTREAM, reason="tt-train's configuration folders are not beside the repository")
def test_the_pipeline_folders_of_2025_say_nothing_of_pipelines() -> None:
    """Check that nothing but the path tells them from those of the hierarchical example."""
    compared = 0
    for folder in sorted(set(_UPSTREAM)):
        other = folder.parents[2] / "hierarchical_parallel" / "configurations" / folder.name
        if "2025-11-10" in folder.parts and "pipeline_parallel_training" in folder.parts:
            for path in folder.iterdir():
                assert path.read_bytes() == (other / path.name).read_bytes()
                compared += 1
    assert compared
