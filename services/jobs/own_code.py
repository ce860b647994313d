"""Code of the user's own model, which goes with a job as one file (`services/files/code_archive.py`)."""

from __future__ import annotations

from pathlib import Path

from services.config.job import JobConfig
from services.config.job_inputs import CODE_FIELD
from services.config.job_parts import CodeConfig
from services.config.models import CustomConfig
from services.errors import Refused
from services.files.code_archive import RESERVED_NAMES, CodeFiles, hash_archive, pack_code, unpack_code
from services.files.code_folder import read_code_folder
from services.printable import printable_path


def read_code(folder: Path, config: JobConfig) -> tuple[JobConfig, bytes]:
    """Return a job that brings its code along, and the archive of the code, which is read once and not run.

    Args:
        folder: folder with the module of the job's own model.
        config: the job without its code.

    Raises:
        Refused: the folder can't be sent, or the job's model is not in it.
    """
    try:
        archive = pack_code(read_code_folder(folder))
    except Refused as refused:
        raise Refused(f"{_place(str(folder))}: {refused}") from None
    return add_code(config, str(folder.absolute()), archive), archive


def add_code(config: JobConfig, path: str, archive: bytes) -> JobConfig:
    """Return a job that brings an archive of code along, which a stranger may have made.

    Args:
        config: the job without its code.
        path: folder of the code where it comes from, for people.
        archive: the archive.

    Raises:
        Refused: it is no archive, the job's model is not in it, or is none of the user's own.
    """
    code = CodeConfig(path=path, sha256=hash_archive(archive))
    with_code = JobConfig.from_json(config.model_copy(update={"code": code}).to_json())
    assert isinstance(config.model, CustomConfig)
    try:
        files = unpack_code(archive)
    except Refused as refused:
        raise Refused(f"{_place(path)}: {refused}") from None
    _check_modules(_place(path), config.model.model_type.partition(":")[0], files)
    return with_code


def _place(path: str) -> str:
    return f"{CODE_FIELD} {printable_path(path)}"


def _check_modules(place: str, module: str, files: CodeFiles) -> None:
    """Check that the model's module is there, and that no file has the name of a module that Python finds first."""
    path = module.replace(".", "/")
    if not any(name.startswith((f"{path}.", f"{path}/")) for name in files):
        raise Refused(
            f"{place}: has no {path}.py, which transformer_config.model_type names; name the folder that the module is "
            "imported from"
        )
    hidden = [name for name in files if name.removesuffix(".py") in RESERVED_NAMES and name.endswith(".py")]
    if hidden or module.partition(".")[0] in RESERVED_NAMES:
        name = hidden[0] if hidden else module.partition(".")[0]
        raise Refused(f"{place}: {name} has the name of a module of Python or Tiermesh; rename it")
