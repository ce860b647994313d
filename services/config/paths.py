"""Where a path of a config may point to: tt-train's rules, tried in order, every place named when none has it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from services.config.refusals import format_path, format_value
from services.errors import Refused

REPOSITORY_ROOT = Path(__file__).resolve().parents[2]
"""Tiermesh's own tree, whose `configs/` has the folders of `tt-train/configs/`."""

_VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")


def find_include(text: str, *, field: str, folder: Path, kind: str) -> Path:
    """The config file that a config names.

    In order: as it is if absolute; next to the file that names it; the working directory; then under the tree that
    the file lies in, under tt-train's (`TT_METAL_HOME`, else ~/.tt-metal) and under Tiermesh's own: relative to the
    root, to its `configs/`, to `configs/<kind>/`. `${VAR}` and `~` are expanded.

    Args:
        text: the path as written.
        field: dotted name of the field that has it.
        folder: of the file that names it.
        kind: folder of such files: `model_configs`, `device_configs`, ...

    Raises:
        Refused: if there is no such file; the line names every place tried.
    """
    path, roots = _expand(text, field), _roots(folder)
    places = [folder / path, Path.cwd() / path]
    for root in roots:
        places += [root / path, root / "configs" / path, root / "configs" / kind / path]
    return _first(text, _with_shipped(path, places), field, "correct the path, or set TT_METAL_HOME")


def find_data(text: str, *, field: str, folder: Path) -> Path:
    """The corpus or tokenizer that a config names: as `find_include`, and last in the folder `TIERMESH_DATA` names."""
    path, roots = _expand(text, field), _roots(folder)
    places = [folder / path, Path.cwd() / path, *(root / path for root in roots)]
    data_folder = os.environ.get("TIERMESH_DATA")
    if data_folder:
        places += [Path(data_folder) / path, Path(data_folder) / path.name]
    mend = "correct the path, or set TIERMESH_DATA to the folder that has it"
    return _first(text, _with_shipped(path, places), field, mend)


def _metal_root() -> Path:
    """tt-metal's checkout, by tt-train's rule."""
    named = os.environ.get("TT_METAL_HOME")
    return Path(named) if named else _expand_user(Path("~/.tt-metal"))


def _expand_user(path: Path) -> Path:
    try:
        return path.expanduser()
    except RuntimeError:  # no such user, or no home: left as written, so that the error shows it
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
    """Trees laid out like tt-train's: the one that the file lies in (if it does), tt-train's own, Tiermesh's."""
    own = [above.parent for above in (folder, *folder.parents) if above.name == "configs"][:1]
    return [*own, _metal_root() / "tt-train", REPOSITORY_ROOT]


def _with_shipped(path: Path, places: list[Path]) -> list[Path]:
    """For an absolute path just that; if it points into tt-train's tree, then the same file of Tiermesh's."""
    if not path.is_absolute():
        return places
    for root in (os.environ.get("TT_METAL_RUNTIME_ROOT"), str(_metal_root())):
        if root and path.is_relative_to(Path(root) / "tt-train"):
            return [path, REPOSITORY_ROOT / path.relative_to(Path(root) / "tt-train")]
    return [path]


def _first(text: str, places: list[Path], field: str, mend: str) -> Path:
    tried: list[str] = []
    for place in places:
        normal = os.path.normpath(place)
        if normal in tried:
            continue
        tried.append(normal)
        try:
            if Path(normal).is_file():
                return Path(normal).absolute()
        except (OSError, ValueError):  # a name too long, a NUL byte: not a file either
            continue
    looked = ", ".join(format_path(place) for place in tried)
    raise Refused(f"{field}: no file {format_value(text)}; looked at {looked}; {mend}")
