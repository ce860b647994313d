"""The code of jobs' own models, as a worker imports it: a copy in its cache, by job and hash.

    cache/code/JOB/3f5a.../mixer.py      the copy, in a folder named by the SHA-256 of its archive
    cache/code/JOB/begun                 a lease of the job was begun with it, so that it stays whatever is edited

A job's first build makes the copy: from the files installed on this host, or from the archive sent with the job. Later
builds import it, after a preemption, a move or a restart too. Workers of one host may share a cache. A worker that uses
a copy has a shared lock on its job's folder. All methods block.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from services.config.job import JobConfig
from services.config.job_inputs import CODE_FIELD
from services.config.job_parts import CodeConfig
from services.config.models import check_allowed, find_own_module
from services.errors import Failed, Refused
from services.files.code_archive import (
    MOST_ARCHIVE_BYTES,
    CodeFiles,
    hash_archive,
    pack_code,
    unpack_code,
)
from services.files.code_folder import read_code_folder, read_unchanging, write_code_folder
from services.files.source_hash import combine_hashes, hash_source
from services.printable import printable_path
from services.protocol.fingerprint import OWN_CODE
from worker.own_modules import read_own_modules

log = logging.getLogger("tiermesh.worker")

MOST_JOBS = 64
"""Maximum number of jobs whose code is kept, at most 17 MiB each. The longest unused that nobody uses goes."""
_BEGUN = "begun"
_UNFINISHED = ".new"
_MOST_ATTEMPTS = 5
COPY_SECONDS = 60.0
"""Longest wait for another worker of the host, which copies the code of the same job."""
_LOOK_SECONDS = 0.05

MOST_NAMED_FILES = 8
"""Number of an own model's files that are facts of their own; a fingerprint has at most 32 facts."""
LONGEST_NAMED_FILE = 50
SHOWN_DIGITS = 16
"""Number of digits of a file's hash in a fingerprint: 64 bits."""


@dataclass(frozen=True)
class OwnCode:
    """Code of a job's own model, which this worker may import.

    Attributes:
        folder: folder to import it from; None: from where it is installed, as it belongs to Tiermesh.
        facts: what a fingerprint says of it.
    """

    folder: Path | None
    facts: Mapping[str, str]


class CodeCache:
    """Copies of the code of jobs' own models.

    Args:
        cache_dir: folder of the worker's cache; None for a temporary one.
        allowed_models: installed modules and factories that jobs may name, see `training.models.build_model`.
        accepts_code: whether code that is sent with jobs may be imported.
    """

    def __init__(
        self,
        cache_dir: Path | None = None,
        allowed_models: Collection[str] = (),
        *,
        accepts_code: bool = False,
    ) -> None:
        self._cache_dir = cache_dir
        self._allowed_models = allowed_models
        self._accepts_code = accepts_code
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._lock: int | None = None  # descriptor of the used job's folder, locked
        self._unbegun: Path | None = None  # folder of the used job until a lease is begun

    def close(self) -> None:
        """Let go of the copy in use, which stays in the cache."""
        lock, self._lock, self._unbegun = self._lock, None, None
        if lock is not None:
            os.close(lock)
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def prepare(self, job: str, config: JobConfig) -> OwnCode | None:
        """Return the code of a job's own model, copied if this is its first build; None for a model of Tiermesh.

        Args:
            job: id of the job.
            config: its config, with the archive's path on this host if code was sent.

        Raises:
            Refused: this worker does not import it, or it can't be copied; one line says why.
            Failed: the disk can't be read or written, which may change.
        """
        self.close()
        module = find_own_module(config.model)
        if module is None:
            return None
        if config.code is None:
            check_allowed(config.model.model_type, self._allowed_models)
        elif not self._accepts_code:
            raise Refused(
                f"{CODE_FIELD}: this worker imports no code that is sent with jobs; start it with --accept-code, or "
                f"install {module} on it and submit the job without {CODE_FIELD}"
            )
        try:
            return self._prepare(job, config, module)
        except OSError as error:
            place = printable_path(self._root())
            raise Failed(
                f"the job's code can't be copied to {place} ({error.strerror}); repair the disk"
            ) from None

    def begin(self) -> None:
        """Note that a lease of the prepared job begins: from now on the job keeps this code."""
        folder, self._unbegun = self._unbegun, None
        if folder is not None:
            with suppress(
                OSError
            ):  # then a later build may see edited files, and is refused by its fingerprint
                (folder / _BEGUN).touch()

    def _root(self) -> Path:
        if self._cache_dir is not None:
            return self._cache_dir.absolute() / "code"
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="tiermesh-code-")
        return Path(self._temporary.name)

    def _prepare(self, job: str, config: JobConfig, module: str) -> OwnCode:
        folder = self._root() / job  # a job's id is a name, which its schema checks
        for _ in range(_MOST_ATTEMPTS):
            folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                found = self._find_or_copy(folder, lock, config, module)
            except BaseException:
                os.close(lock)
                raise
            if found is None:  # another worker of this host has removed or replaced it meanwhile
                os.close(lock)
                continue
            copy, files = found
            if not files:
                os.close(lock)
                return OwnCode(None, {})
            self._lock, self._unbegun = lock, folder
            os.utime(folder)
            _remove_old(self._root())
            return OwnCode(copy, describe_own_code(module, files))
        raise Failed(
            f"the job's code in {printable_path(folder)} changes again and again; look who changes it"
        )

    def _find_or_copy(
        self, folder: Path, lock: int, config: JobConfig, module: str
    ) -> tuple[Path, CodeFiles] | None:
        """Return a job's copy, made if there is none to be used, with a shared lock; None if it has gone meanwhile.

        Args:
            folder: folder of the job.
            lock: descriptor of that folder.
            config: config of the job.
            module: module of its model.
        """
        is_alone = _lock_alone(lock)
        if not is_alone:
            _wait_for_copy(lock, folder)
        if not _is_same(lock, folder):
            return None
        found = _find_copy(folder)
        if config.code is not None:
            usable = found is not None and found[0].name == config.code.sha256
        else:
            usable = found is not None and (not is_alone or (folder / _BEGUN).exists())
        if not usable:
            if not is_alone:
                raise Failed(
                    f"the copy of the job's code in {printable_path(folder)} is damaged, and another worker uses it; "
                    "stop the workers of this host, and remove it"
                )
            found = _copy(
                folder, _read_installed(module) if config.code is None else _read_archive(config.code)
            )
        _wait_for_copy(lock, folder)
        assert found is not None
        return found if found[0].exists() and _is_same(lock, folder) else None


def describe_own_code(module: str, files: CodeFiles) -> dict[str, str]:
    """Return the facts of a fingerprint that name an own model's code: some files by their names, others together.

    Args:
        module: name of the module with the model's factory, whose file is among those that are named.
        files: all files of the code. Bytecode caches and hidden files are none.
    """
    path = module.replace(".", "/")
    names = sorted(files, key=lambda name: (not name.startswith((f"{path}.", f"{path}/__init__.")), name))
    hashes = {name: _hash_file(name, files[name]) for name in names}
    alone = [name for name in names if len(name) <= LONGEST_NAMED_FILE][:MOST_NAMED_FILES]
    facts = {f"{OWN_CODE} {name}": hashes[name][:SHOWN_DIGITS] for name in alone}
    others = [(name, hashes[name]) for name in sorted(set(names) - set(alone))]
    return facts | (
        {OWN_CODE: f"{combine_hashes(others)[:SHOWN_DIGITS]} ({len(others)} more files)"} if others else {}
    )


def _hash_file(name: str, content: bytes) -> str:
    return hash_source(content) if name.endswith(".py") else hashlib.sha256(content).hexdigest()


def _find_copy(folder: Path) -> tuple[Path, CodeFiles] | None:
    """Return a job's copy and its files; None if there is none, or the disk or somebody has changed it."""
    for copy in folder.iterdir():
        if copy.is_dir() and not copy.name.endswith(_UNFINISHED):
            try:
                files = read_code_folder(copy)
                if hash_archive(pack_code(files)) == copy.name:
                    return copy, files
            except Refused as refused:
                log.warning("the copy of a job's code is damaged: %s", refused)
    return None


def _copy(folder: Path, files: CodeFiles) -> tuple[Path, CodeFiles]:
    """Put a copy of code into a job's folder, in place of all that is there; without files there is none."""
    for each in folder.iterdir():
        shutil.rmtree(each) if each.is_dir() else each.unlink()
    if not files:
        return folder, files
    copy = folder / hash_archive(pack_code(files))
    unfinished = copy.with_name(f"{copy.name}{_UNFINISHED}")
    write_code_folder(unfinished, files)
    unfinished.rename(copy)
    log.info(
        "job %s: %d files of its own code are copied to %s", folder.name, len(files), printable_path(copy)
    )
    return copy, files


def _read_installed(module: str) -> CodeFiles:
    try:
        return read_own_modules(module)
    except Refused as refused:
        raise Refused(f"transformer_config.model_type: {module}: {refused}") from None


def _read_archive(code: CodeConfig) -> CodeFiles:
    """Return the files that were sent with a job.

    Raises:
        Refused: the archive is not the one that the job names, or none.
    """
    try:
        archive = read_unchanging(Path(code.path), MOST_ARCHIVE_BYTES)
        if hash_archive(archive) != code.sha256:
            raise Refused(f"the archive has another SHA-256 than {code.sha256[:12]}; submit the job again")
        return unpack_code(archive)
    except Refused as refused:
        raise Refused(f"{CODE_FIELD}: {refused}") from None


def _remove_old(root: Path) -> None:
    """Remove the longest unused copies of jobs' code, if there are too many, and nobody uses them."""
    with suppress(FileNotFoundError):  # another worker of this host removes some, too
        for folder in sorted(root.iterdir(), key=lambda each: each.stat().st_mtime)[:-MOST_JOBS]:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                if _lock_alone(lock):
                    shutil.rmtree(folder)
            finally:
                os.close(lock)


def _lock_alone(lock: int) -> bool:
    """Lock a folder so that no other worker uses it; return whether that was possible."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _wait_for_copy(lock: int, folder: Path) -> None:
    """Share the lock of a folder, once the worker of this host that copies the code into it has done so.

    Raises:
        Failed: it takes too long.
    """
    deadline_seconds = time.monotonic() + COPY_SECONDS
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_seconds:
                raise Failed(
                    f"another worker of this host has not copied the job's code to {printable_path(folder)} within "
                    f"{COPY_SECONDS:g} s; look at its disk, or stop that worker"
                ) from None
        time.sleep(_LOOK_SECONDS)


def _is_same(lock: int, folder: Path) -> bool:
    """Return whether an open folder still has its name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(lock), folder.stat())
    return False
