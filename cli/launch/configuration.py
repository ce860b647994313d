"""What a launch is made from: the files of a configuration folder, or options in their place."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cli.launch.hosts_file import MOST_RANKS, parse_host_list, read_hosts
from cli.launch.placement import Placement
from cli.launch.rank_bindings import RankBinding, RankBindings, read_rank_bindings
from cli.launch.rankfile import read_rankfile
from mesh.descriptors.cut import list_meshes
from mesh.descriptors.mesh_graph_pb2 import MeshGraphDescriptor
from mesh.descriptors.read import read_descriptor
from services.config.refusals import format_value
from services.errors import Refused
from services.printable import printable_path

HOSTS_FILE = "hosts.txt"
BINDINGS_FILE = "rank_bindings.yaml"
DESCRIPTOR_FILES = ("mgd.textproto", "mgd.yaml")


@dataclass(frozen=True)
class LaunchFiles:
    """Files of a launch as the command line names them; None for those of the folder.

    Attributes:
        folder: configuration folder; None if options name all files.
        hosts: value of `--hosts`: a hostfile, or a list `HOST[:SLOTS],...`.
        rank_bindings: file of tt-run's rank bindings.
        descriptor: mesh graph descriptor.
        rankfile: OpenMPI's rankfile, in place of hosts.
    """

    folder: Path | None = None
    hosts: str | None = None
    rank_bindings: Path | None = None
    descriptor: Path | None = None
    rankfile: Path | None = None


@dataclass(frozen=True)
class DescriptorFile:
    """A mesh graph descriptor and the file that has it."""

    path: Path
    content: MeshGraphDescriptor


@dataclass(frozen=True)
class Configuration:
    """Content of the files of a launch.

    Attributes:
        bindings: mesh and environment of each rank.
        descriptors: descriptor of each rank, in order.
        placement: hosts of the ranks.
    """

    bindings: RankBindings
    descriptors: tuple[DescriptorFile, ...]
    placement: Placement


def read_configuration(
    files: LaunchFiles, environment: Mapping[str, str], launch_folder: Path
) -> Configuration:
    """Return what the files of a launch say. Without rank bindings, ranks are the meshes of the descriptor in order.

    Args:
        files: files as the command line names them.
        environment: variables that `${NAME}` stands for; TT_METAL_HOME is searched for descriptors.
        launch_folder: working directory, which is searched too.

    Raises:
        Refused: a file is missing, wrong or contradicts another one.
    """
    folder = files.folder
    if folder is not None:
        _check_folder(folder)
    placement = _read_placement(files)
    bindings_path = files.rank_bindings or _find_in(folder, BINDINGS_FILE)
    descriptor_path = files.descriptor or _find_in(folder, *DESCRIPTOR_FILES)
    if bindings_path is None:
        if descriptor_path is None:
            raise Refused(
                f"{printable_path(folder) if folder else 'launch'}: no {BINDINGS_FILE} and no "
                f"{' or '.join(DESCRIPTOR_FILES)}, expected a configuration folder of tt-train; give one, or "
                "--rank-bindings or --mgd"
            )
        descriptor = DescriptorFile(descriptor_path, read_descriptor(descriptor_path))
        bindings = _bind_meshes(descriptor)
        return Configuration(bindings, (descriptor,) * len(bindings.ranks), placement)
    bindings = read_rank_bindings(bindings_path, environment)
    search = _DescriptorSearch(bindings_path, environment, launch_folder)
    known: dict[str, DescriptorFile] = {}
    descriptors = []
    for binding in bindings.ranks:
        named = binding.descriptor or bindings.descriptor
        if files.descriptor is not None or not named:
            path = descriptor_path
        else:
            path = search.find(named)
        if path is None:
            raise Refused(
                f"{bindings.source}: mesh_graph_desc_path: missing, and the folder has no "
                f"{' or '.join(DESCRIPTOR_FILES)}; add it, or give --mgd"
            )
        if str(path) not in known:
            known[str(path)] = DescriptorFile(path, read_descriptor(path))
        descriptors.append(known[str(path)])
    return Configuration(bindings, tuple(descriptors), placement)


class _DescriptorSearch:
    """Search for the descriptors that rank bindings name by relative paths.

    tt-run looks in TT_METAL_HOME and in the launch folder. Folders that are launched from elsewhere work here too: the
    folder of the bindings and those above it follow, and then the file's name beside the bindings.
    """

    def __init__(self, bindings: Path, environment: Mapping[str, str], launch_folder: Path) -> None:
        self._source = printable_path(bindings)
        self._beside = bindings.absolute().parent
        home = environment.get("TT_METAL_HOME")
        first = [_expand_user(home)] if home else []
        self._folders = [*first, launch_folder, self._beside, *self._beside.parents]

    def find(self, text: str) -> Path:
        """Return the file at a path; raise Refused with the places that were searched if it is nowhere."""
        path = _expand_user(text)
        places = [folder / path for folder in self._folders]  # an absolute path gives itself
        if not path.is_absolute():
            places.append(self._beside / path.name)
        for place in places:
            if _is_file(place):
                return place
        raise Refused(
            f"{self._source}: mesh_graph_desc_path: no file {format_value(text)} in TT_METAL_HOME, the working folder, "
            "beside the bindings or above them; correct it, or give --mgd"
        )


def _bind_meshes(descriptor: DescriptorFile) -> RankBindings:
    """Return bindings of one rank for each mesh, in the order of the meshes' ids."""
    source = printable_path(descriptor.path)
    meshes = list_meshes(descriptor.content, source)
    if len(meshes) > MOST_RANKS:
        raise Refused(f"{source}: {len(meshes)} meshes, expected at most {MOST_RANKS}; give --rank-bindings")
    ranks = tuple(RankBinding(rank, mesh_id, None, {}, "", "") for rank, mesh_id in enumerate(meshes))
    return RankBindings(source, ranks, {}, "", "")


def _read_placement(files: LaunchFiles) -> Placement:
    if files.rankfile is not None:
        if files.hosts is not None:
            raise Refused(
                "--hosts and --rankfile: given together, but both name the hosts; remove one of the two"
            )
        return Placement(
            rank_hosts=read_rankfile(files.rankfile), source=f"--rankfile {printable_path(files.rankfile)}"
        )
    if files.hosts is not None and not _names_file(files.hosts):
        return Placement(parse_host_list(files.hosts), source="--hosts")
    path = Path(files.hosts) if files.hosts is not None else _find_in(files.folder, HOSTS_FILE)
    return Placement() if path is None else Placement(read_hosts(path), source=printable_path(path))


def _names_file(hosts: str) -> bool:
    """Return whether a value of `--hosts` names a file, which may be missing, and is no list of hosts."""
    return "/" in hosts or hosts.endswith(".txt") or _is_file(Path(hosts))


def _check_folder(folder: Path) -> None:
    place = printable_path(folder)
    if not _has_kind(folder, stat.S_ISDIR):
        found = "is a file" if _is_file(folder) else "no such folder"
        raise Refused(
            f"{place}: {found}, expected a configuration folder with {HOSTS_FILE}, {BINDINGS_FILE} or "
            f"{DESCRIPTOR_FILES[0]}; correct the path"
        )


def _find_in(folder: Path | None, *names: str) -> Path | None:
    """Return the first of the names that the folder has; None if it has none."""
    if folder is None:
        return None
    return next((folder / name for name in names if _has_kind(folder / name, lambda mode: True)), None)


def _is_file(path: Path) -> bool:
    return _has_kind(path, stat.S_ISREG)


def _has_kind(path: Path, is_kind: Callable[[int], bool]) -> bool:
    """Return whether something of a kind is there; a path that is too long or can't be reached has nothing."""
    try:
        return is_kind(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _expand_user(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no such user: the error then shows the path as written
        return Path(text)
