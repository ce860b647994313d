"""A job made of a config whose files are named by their SHA-256, as `tiermesh submit` makes one of files on its host.

The files were sent before, and are in a store. For the time that the config is read, they have names in a folder of
their own, so that nothing else of this host can be named.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from protos import jobs_pb2
from services.config.job import JobConfig
from services.config.job_inputs import inputs_of_job, relocate_inputs
from services.config.load import load_job_document
from services.config.paths import NotSupplied, only_supplied
from services.config.refusals import format_value
from services.errors import Failed, Refused
from services.files.code_archive import MOST_ARCHIVE_BYTES
from services.files.store import FileStore
from services.jobs.client import JobsClient
from services.jobs.input_files import InputFiles
from services.jobs.own_code import add_code
from services.printable import printable_path
from services.threads import finish_in_thread
from services.yaml_text import YAML_BYTES, parse_yaml
from web.problems import Problem, refused

MOST_FILES = 64
LONGEST_PATH = 1024
_READERS = 2
"""Number of configs that are read at the same time; a corpus takes a while."""

Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class Code(BaseModel):
    """Code of the user's own model, which goes with the job."""

    model_config = ConfigDict(extra="forbid")

    path: str = Field(min_length=1, max_length=LONGEST_PATH, description="Its folder, for people.")
    sha256: Sha256 = Field(description="SHA-256 of its archive, which was sent.")


class Submission(BaseModel):
    """Body of `POST /v1/jobs`: a config, and the files that it names."""

    model_config = ConfigDict(extra="forbid")

    config: str | dict[str, Any] = Field(description="Text of the job's YAML file, or its content.")
    overrides: dict[str, Any] = Field(
        default_factory=dict,
        max_length=1000,
        description="Settings that win over the config's, by dotted key.",
    )
    files: dict[str, Sha256] = Field(
        default_factory=dict,
        max_length=MOST_FILES,
        description="SHA-256 of each further file, by its path as the config has it.",
    )
    code: Code | None = Field(default=None, description="Code of the user's own model.")
    name: str = Field(default="", max_length=200, description="Name for people, over the config's.")
    request_id: str = Field(
        default="", max_length=64, description="The same in repetitions of a call, which yield the same job."
    )


class Submitter:
    """Makes jobs of submissions.

    Args:
        store: the files that were sent.
        folder: folder for the time of a submission, on the disk of the store.
    """

    def __init__(self, store: FileStore, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._readers = asyncio.Semaphore(_READERS)

    async def submit(self, client: JobsClient, submission: Submission) -> tuple[jobs_pb2.Job, list[str]]:
        """Queue a job, and return it with notices about its config.

        Raises:
            Problem: a file is not here.
            Refused: the config is wrong, or the aggregator refuses the job or a file.
        """
        async with self._reading(submission) as (config, notices, files):
            await _upload(client, files)
            job = await client.submit(submission.name or config.name, config.to_json(), submission.request_id)
            await _upload(client, files)  # the job keeps its files now; another's may have pushed one out
        return job, notices

    async def check(self, submission: Submission) -> tuple[JobConfig, list[str]]:
        """Return the job of a submission, and notices about its config; see `submit` for what is raised.

        What only the aggregator knows is not checked: permissions, caps, and the job that this one starts from.
        """
        async with self._reading(submission) as (config, notices, _):
            return config, notices

    @asynccontextmanager
    async def _reading(
        self, submission: Submission
    ) -> AsyncIterator[tuple[JobConfig, list[str], InputFiles]]:
        """Read a submission; its files have names on this host until the context ends."""
        self._check_files(submission.files)
        archive = b"" if submission.code is None else await finish_in_thread(self._read_code, submission.code)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="submission-") as name:
            folder = Path(name)
            places = self._place_files(submission.files, folder)
            async with self._readers:
                config, notices, files = await finish_in_thread(_read, submission, places, folder, archive)
            by_place = {str(place): Path(text) for text, place in places.items()}
            yield relocate_inputs(config, by_place), notices, files

    def _check_files(self, files: Mapping[str, str]) -> None:
        """Check that the files are here (Problem)."""
        for path, sha256 in files.items():
            if len(path) > LONGEST_PATH or PurePosixPath(path).name in ("", "..") or "\0" in path:
                raise Refused(f"files: {path!r:.100} given, expected a path of a file; correct it")
            if self._store.last_use_seconds(sha256) is None:
                raise _missing(path, sha256)

    def _read_code(self, code: Code) -> bytes:
        """Return the archive of a job's code (Problem, Refused)."""
        try:
            with self._store.path_of(code.sha256).open("rb") as file:
                archive = file.read(MOST_ARCHIVE_BYTES + 1)
        except FileNotFoundError:
            raise _missing(code.path, code.sha256) from None
        if len(archive) > MOST_ARCHIVE_BYTES:
            raise refused(
                "code.sha256",
                code.sha256,
                f"an archive of at most {MOST_ARCHIVE_BYTES} bytes",
                "send the model's code alone",
            )
        return archive

    def _place_files(self, files: Mapping[str, str], folder: Path) -> dict[str, Path]:
        """Give files their names in a folder, and return their places by path. Those of one folder stay together."""
        places: dict[str, Path] = {}
        folders: dict[PurePosixPath, Path] = {}
        for path, sha256 in files.items():
            parent = PurePosixPath(path).parent
            place = folders.setdefault(parent, folder / str(len(folders)))
            place.mkdir(exist_ok=True)
            places[path] = place / PurePosixPath(path).name
            try:
                os.link(self._store.path_of(sha256), places[path])
            except FileNotFoundError:
                raise _missing(path, sha256) from None
            except OSError as error:
                raise Failed(
                    f"files: {path!r:.100}: can't get its name ({error.strerror}); give a shorter one, or look at the "
                    "disk of --state-dir"
                ) from None
        return places


def _missing(path: str, sha256: str | None) -> Problem:
    text = f"files: {path!r:.200} is not here, expected a file of the config; send it by PUT /v1/files/SHA256"
    return Problem(422, "missing-file", text, missing=[{"path": path, "sha256": sha256}])


def _read(
    submission: Submission, places: Mapping[str, Path], folder: Path, archive: bytes
) -> tuple[JobConfig, list[str], InputFiles]:
    """Return the job of a submission, notices about it, and the files that the aggregator needs; in a thread."""
    overrides = [f"{key}={json.dumps(value)}" for key, value in submission.overrides.items()]
    try:
        with only_supplied(places):
            document = _document(submission.config)
            config, notices = load_job_document(document, folder=folder, overrides=overrides)
            # Nobody here follows the job, so the aggregator writes its trackers.
            tracking = config.tracking.model_copy(update={"written_by": "aggregator"})
            config = config.model_copy(update={"tracking": tracking})
            if submission.code is not None:
                config = add_code(config, submission.code.path, archive)
            return config, notices, InputFiles(inputs_of_job(config), archive)
    except NotSupplied as error:
        raise _missing(error.path, submission.files.get(error.path)) from None
    except Refused as error:
        raise Refused(_without_places(str(error), places, folder)) from None


def _document(config: str | dict[str, Any]) -> dict[Any, Any]:
    if isinstance(config, dict):
        return config
    size = len(config.encode())
    if size > YAML_BYTES:
        raise Refused(f"config: {size} bytes given, expected at most {YAML_BYTES}; shorten it")
    document = parse_yaml(config, "config")
    if not isinstance(document, dict):
        raise Refused(f"config: {format_value(document)} given, expected a mapping of sections; correct it")
    return document


def _without_places(text: str, places: Mapping[str, Path], folder: Path) -> str:
    """Return an error's text with the caller's paths in place of those of this host."""
    for path, place in places.items():
        text = text.replace(printable_path(place), path).replace(str(place), path)
    return text.replace(f"{folder}/", "")


async def _upload(client: JobsClient, files: InputFiles) -> None:
    if files.refs:
        await client.upload(files, files.refs, lambda *_: None, files.check_sent)
