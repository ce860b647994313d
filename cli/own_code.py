"""`--code FOLDER`: code of the user's own model, which is sent with the job as one file."""

from __future__ import annotations

from pathlib import Path

from services.config.job import JobConfig
from services.config.job_inputs import CODE_FIELD
from services.config.job_parts import CodeConfig
from services.config.models import CustomConfig
from services.errors import Refused
from services.files.code_archive import RESERVED_NAMES, CodeFiles, hash_archive, pack_code
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
    place = f"{CODE_FIELD} {printable_path(folder)}"
    try:
        files = read_code_folder(folder)
        archive = pack_code(files)
    except Refused as refused:
        raise Refused(f"{place}: {refused}") from None
    code = CodeConfig(path=str(folder.absolute()), sha256=hash_archive(archive))
    with_code = JobConfig.from_json(config.model_copy(update={"code": code}).to_json())
    assert isinstance(config.model, CustomConfig)
    _check_modules(place, config.model.model_type.partition(":")[0], files)
    return with_code, archive


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
