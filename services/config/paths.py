"""Lookup of the files that a config names, by tt-train's rules.

Candidate paths are tried in order; the error says where they were looked for.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from services.config.refusals import format_value
from services.errors import Refused, RefusedWithPaths

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
"""Tiermesh's own tree; its `configs/` has the folders of `tt-train/configs/`."""

_SHIPPED = REPOSITORY_ROOT / "configs"
_supplied: ContextVar[Mapping[str, Path] | None] = ContextVar("supplied", default=None)

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


class NotSupplied(Refused):
    """A config names a file that did not come with it.

    Attributes:
        path: path of the file, as the config has it.
    """

    def __init__(self, text: str, path: str) -> None:
        super().__init__(text)
        self.path = path


@contextmanager
def only_supplied(files: Mapping[str, Path]) -> Iterator[None]:
    """Let configs that are read in the block name these files, and configs that Tiermesh ships, and nothing else here.

    It is for configs of people that may not read this host's files.

    Args:
        files: places of the files, by their paths as configs have them.
    """
    token = _supplied.set(files)
    try:
        yield
    finally:
        _supplied.reset(token)


def _find_supplied(text: str, field: str, files: Mapping[str, Path], kind: str) -> Path:
    if text in files:
        return files[text]
    for folder in (_SHIPPED / kind, _SHIPPED, REPOSITORY_ROOT):
        place = Path(os.path.normpath(folder / text))
        if place.is_relative_to(_SHIPPED) and _is_there(place, folder=False):
            return place
    quoted = json.dumps(text, ensure_ascii=False)
    raise NotSupplied(
        f"{field}: {quoted} did not come with the config, expected its file; send it, too", text
    )


def find_include(text: str, *, field: str, folder: Path, kind: str) -> Path:
    """Return the path of a config file that another config names.

    An absolute path is taken unchanged. A relative one is looked for in this order:

    1. in the folder of the file that names it,
    2. in the working directory,
    3. in three trees, each at its root, in `configs/` and in `configs/<kind>/`: the tree that contains `folder`,
       tt-train's (`TT_METAL_HOME`, else ~/.tt-metal) and Tiermesh's own.

    `${VAR}` and `~` are expanded.

    Args:
        text: path as written.
        field: dotted name of the field that has the path, for the error.
        folder: folder of the file that names the path.
        kind: folder of such files: `model_configs`, `device_configs`, ...

    Raises:
        Refused: there is no such file.
    """
    supplied = _supplied.get()
    if supplied is not None:
        return _find_supplied(text, field, supplied, kind)
    path, roots = _expand(text, field), _roots(folder)
    places = [folder / path, Path.cwd() / path]
    for root in roots:
        places += [root / path, root / "configs" / path, root / "configs" / kind / path]
    where = f"{_folders(folder, roots)}, and there in configs and configs/{kind}"
    fix = "correct the path, or set TT_METAL_HOME"
    return _find_first(text, _with_other_trees(path, places, roots), field, where, fix)


def is_shipped(path: Path, folder: Path) -> bool:
    """Return whether a config file is one that Tiermesh ships, found for a job of another tree.

    Args:
        path: the file.
        folder: folder of the job that names it.
    """
    ours = [each.is_relative_to(REPOSITORY_ROOT) for each in (path, folder, Path.cwd())]
    return ours == [True, False, False]


def is_own_config(path: Path) -> bool:
    """Return whether a path is that of a file that Tiermesh ships, here."""
    return path.is_relative_to(_SHIPPED) and _is_there(path, folder=False)


def find_data(text: str, *, field: str, folder: Path) -> Path:
    """Return the path of a corpus or tokenizer that a config names.

    The lookup is that of `find_include`, without `configs/`; the folder in `TIERMESH_DATA` comes last.

    Args:
        text: path as written.
        field: dotted name of the field that has the path, for the error.
        folder: folder of the file that names the path.

    Raises:
        Refused: there is no such file.
    """
    supplied = _supplied.get()
    if supplied is not None:
        return _find_supplied(text, field, supplied, "")
    path, roots = _expand(text, field), _roots(folder)
    places = [folder / path, Path.cwd() / path, *(root / path for root in roots)]
    data_folder = os.environ.get("TIERMESH_DATA")
    if data_folder:
        places += [Path(data_folder) / path, Path(data_folder) / path.name]
    fix = "correct the path, or set TIERMESH_DATA to the folder that has it"
    where = _folders(folder, roots) + (f", {data_folder} (TIERMESH_DATA)" if data_folder else "")
    return _find_first(text, _with_other_trees(path, places, roots), field, where, fix)


def _metal_root() -> Path:
    """Return the folder of the tt-metal checkout, by tt-train's rule."""
    named = os.environ.get("TT_METAL_HOME")
    return Path(named) if named else _expand_user(Path("~/.tt-metal"))


def _expand_user(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # no such user or no home: the error then shows the path as written
        return path


def _expand(text: str, field: str) -> Path:
    defaults = {"TT_METAL_HOME": str(_metal_root()), "TT_METAL_RUNTIME_ROOT": str(_metal_root())}

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[2]
        found = os.environ.get(name) or defaults.get(name)
        if found is None:
            raise Refused(
                f"{field}: {format_value(text)} names the environment variable {name}, which is not set; "
                "set it or write the path out"
            )
        return found

    return _expand_user(Path(_VARIABLE.sub(value, text)))


def _roots(folder: Path) -> list[Path]:
    """Return the trees with tt-train's layout: the one that contains `folder` (if any), tt-train's own, Tiermesh's."""
    own = [above.parent for above in (folder, *folder.parents) if above.name == "configs"][:1]
    return [*own, _metal_root() / "tt-train", REPOSITORY_ROOT]


def _with_other_trees(path: Path, places: list[Path], roots: list[Path]) -> list[Path]:
    """Return the candidates for a path.

    For an absolute path that is the path itself. If it points into tt-train's tree, the same file of the trees in
    `roots` follows: of a copy of tt-train's configs that contains the job, and of Tiermesh.
    """
    if not path.is_absolute():
        return places
    for metal in (os.environ.get("TT_METAL_RUNTIME_ROOT"), str(_metal_root())):
        if metal and path.is_relative_to(Path(metal) / "tt-train"):
            return [path, *(root / path.relative_to(Path(metal) / "tt-train") for root in roots)]
    return [path]


def _folders(folder: Path, roots: list[Path]) -> str:
    """Return the folders of a lookup, each once and as a whole."""
    return ", ".join(dict.fromkeys(map(str, (folder, Path.cwd(), *roots))))


def _find_first(text: str, places: list[Path], field: str, where: str, fix: str) -> Path:
    for place in places:
        normal = Path(os.path.normpath(place))
        if _is_there(normal, folder=False):
            return normal.absolute()
    quoted = json.dumps(text, ensure_ascii=False)  # whole, unlike other values
    if any(_is_there(place, folder=True) for place in places):
        raise RefusedWithPaths(f"{field}: {quoted} is a folder, expected a file; name a file in it")
    looked = "" if len(places) <= 2 else f"; looked in {where}"
    raise RefusedWithPaths(f"{field}: no file {quoted}{looked}; {fix}")


def _is_there(path: Path, *, folder: bool) -> bool:
    """Return whether a folder, or a file of any kind, is there: the reader refuses a pipe or a device by what it is."""
    try:
        return stat.S_ISDIR(path.stat().st_mode) is folder
    except (OSError, ValueError):  # nothing there, or the name is too long or has a NUL byte
        return False
