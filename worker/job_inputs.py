"""The inputs of the job that a worker builds: found on its host, or read from the aggregator into a cache on disk.

    cache/3f5a...                    a file by its SHA-256 (services/files/store.py)
    cache/jobs/worker-NAME/0/x.txt   link to it under its own name, for the job that this worker builds; beside a file
                                     of token ids its sidecar
    cache/code/                      the code of jobs (code_cache.py)

All of it runs on the event loop; disk and hashing work in threads.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import grpc

from protos.files_pb2 import FileRef
from services.config.job import JobConfig
from services.config.job_inputs import JobInput, inputs_of_job
from services.corpora.conversion import TEXT_SUFFIXES, remove_conversion
from services.corpora.sidecar import IDENTITY_BYTES, sidecar_of_copy, store_sidecar
from services.corpora.verified import note_verified
from services.errors import Failed, Refused, TiermeshError
from services.files.code_archive import MOST_ARCHIVE_BYTES
from services.files.errors import FileMissing
from services.files.fetch import fetch
from services.files.store import FileStore
from services.pipeline.split import StageRun
from services.printable import printable_path
from worker.core.events import DamagedInput

log = logging.getLogger("tiermesh.worker")

TELL_SECONDS = 2.0
"""Shortest time between two reports to the aggregator of how far a download is."""

Report = Callable[[str, int, int, str], None]
"""Takes the field of an input, bytes that are here, bytes in all, and why it does not go on; empty if it does."""


class JobInputs:
    """Inputs of the newest job that a worker builds.

    Args:
        worker: name of the worker; workers of one host may share a cache.
        data_dir: folder that is searched for inputs missing at the job's path; None for none.
        cache_dir: folder of the cache; None: nothing is read from the aggregator.
        cache_bytes: largest size of the cache. The longest unused files make room, but none that a worker uses.
        accepts_code: whether code that is sent with jobs is read; else the build refuses the job.
    """

    def __init__(
        self,
        worker: str,
        data_dir: Path | None,
        cache_dir: Path | None,
        cache_bytes: int = 1 << 62,
        *,
        accepts_code: bool = False,
    ) -> None:
        self._data_dir = data_dir
        self._accepts_code = accepts_code
        self._store: FileStore | None = None
        if cache_dir is not None:
            self._store = FileStore(
                cache_dir.absolute(), max_store_bytes=cache_bytes, store_limit="--cache-gb"
            )
            self._links = cache_dir.absolute() / "jobs" / f"worker-{quote(worker, safe='')}"
        self._held = ExitStack()  # files in use, which no process removes

    def close(self) -> None:
        """Let go of the files, which stay in the cache until others need the room."""
        self._held.close()

    async def find_missing(self, spec_json: str, stages: StageRun | None = None) -> list[JobInput]:
        """Return the inputs of a job that this host lacks and the aggregator may have; none without a cache.

        A spec that can't be read has none here: who builds the job says why.

        Args:
            spec_json: config of the job.
            stages: stages that the worker has of the job's pipeline; None for the whole model.
        """
        return (
            await asyncio.to_thread(self._find_missing, spec_json, stages) if self._store is not None else []
        )

    def _find_missing(self, spec_json: str, stages: StageRun | None) -> list[JobInput]:
        try:
            inputs = inputs_of_job(JobConfig.from_json(spec_json), stages)
        except Refused:
            return []
        wanted = [each for each in inputs if self._accepts_code or not each.is_code]
        return [each for each in wanted if self._find(each) is None]

    def _find(self, wanted: JobInput) -> Path | None:
        """Return where all files of an input are on this host; None if one is missing."""
        for place in self._list_places(wanted):
            try:
                if all((place / name).exists() for name in wanted.files):
                    return place
            except (OSError, ValueError):  # the folder can't be read, or no file can have this name
                continue
        return None

    def _list_places(self, wanted: JobInput) -> list[Path]:
        if wanted.is_code:
            return []
        named = Path(wanted.path)
        return [named] + ([self._data_dir / named.name] if self._data_dir else [])

    async def fetch(
        self, missing: list[JobInput], channel: grpc.aio.Channel, aggregator: str, report: Report
    ) -> dict[str, Path]:
        """Read inputs from the aggregator, and return where they are now, by the path that the job names.

        Args:
            missing: the inputs.
            channel: connection to the aggregator.
            aggregator: its name, for log and errors.
            report: called now and then as the inputs arrive.

        Raises:
            Failed: the aggregator does not have one, or it can't be read or stored. That may pass.
            Refused: one is not what the job says, or larger than the cache may be.
        """
        assert self._store is not None
        self.close()
        places = {}
        progress = _Progress(report)
        for number, wanted in enumerate(missing):
            progress.field = wanted.field
            try:
                body = None
                if wanted.identity is not None:
                    body = await self._fetch_identity(
                        wanted.identity, self._store, channel, aggregator, progress
                    )
                if body is None:  # else opening it finds out whether it has changed
                    hashes = tuple(wanted.files.values())
                    await asyncio.to_thread(self._remove_damaged, wanted.field, hashes, self._store)
                was_here = True
                for sha256 in wanted.files.values():
                    was_here = self._store.path_of(sha256).exists()
                    most_bytes = MOST_ARCHIVE_BYTES if wanted.is_code else None
                    self._held.enter_context(
                        await fetch(
                            channel, self._store, sha256, aggregator, progress.tell, most_bytes=most_bytes
                        )
                    )
                place = await asyncio.to_thread(self._link, number, wanted, self._store, body)
                if wanted.identity is not None and not was_here:  # it was verified as it arrived
                    await asyncio.to_thread(note_verified, place, wanted.identity, place.stat())
                places[wanted.path] = place
            except FileMissing:
                if wanted.is_code:
                    raise Failed(
                        f"{wanted.field}: {aggregator} does not have the job's code any more; submit one with --code, "
                        "and with --from to go on from a checkpoint"
                    ) from None
                folder = " and in --data" if self._data_dir else ""
                raise Failed(
                    f"{wanted.field}: no such file on this host (looked at {printable_path(wanted.path)}{folder}), and "
                    f"{aggregator} does not have it; copy it here, or submit the job without --no-upload"
                ) from None
            except Refused as refused:  # another attempt would find the same
                raise Refused(f"{wanted.field}: {refused}") from None
            except TiermeshError as error:
                raise Failed(f"{wanted.field}: {error}") from None
            except (OSError, ValueError) as error:
                reason = getattr(error, "strerror", None) or str(error)
                raise Failed(
                    f"{wanted.field}: can't be linked in {printable_path(self._links)} ({reason}); repair the disk"
                ) from None
        return places

    async def remove(self, damaged: DamagedInput) -> None:
        """Remove the copy of a file of token ids that was found damaged, so that it is read, or converted, again.

        A file that a person has put on this host stays.
        """
        await asyncio.to_thread(self._remove, damaged)

    def _remove(self, damaged: DamagedInput) -> None:
        path = Path(damaged.path)
        if self._store is not None and self._links in path.parents and path.is_symlink():
            self._store.remove_damaged(path.readlink().name, damaged.inode)
        elif not remove_conversion(path):
            return
        log.warning("the cache's file %s was damaged, and is made again", printable_path(path))

    def _remove_damaged(self, field: str, sha256s: Iterable[str], store: FileStore) -> None:
        """Remove what the disk has damaged since it was read from an aggregator, so that it is read again."""
        for sha256 in sha256s:
            held = store.hold(sha256)
            if held is not None:
                with held:
                    damaged = store.remove_if_damaged(sha256)
                if damaged:
                    log.warning("%s: the cache's file %s was damaged, and is read again", field, sha256[:12])

    async def _fetch_identity(
        self, identity: str, store: FileStore, channel: grpc.aio.Channel, aggregator: str, progress: _Progress
    ) -> bytes | None:
        """Return what the identity of a file of token ids stands for; None if that must be made from the file."""
        await asyncio.to_thread(self._remove_damaged, progress.field, [identity], store)
        try:
            with await fetch(channel, store, identity, aggregator, progress.tell) as file:
                content = await asyncio.to_thread(file.read, IDENTITY_BYTES + 1)
            if len(content) > IDENTITY_BYTES:
                raise Refused(
                    f"its description {identity[:12]} has more than {IDENTITY_BYTES} bytes, so it is none of a token "
                    "file; submit the job again"
                )
            return content
        except FileMissing:
            log.info("%s has no description of a file of token ids; it is made from the file", aggregator)
            return None

    def _link(self, number: int, wanted: JobInput, store: FileStore, identity_body: bytes | None) -> Path:
        """Make links to the files of an input under their own names; return the path that stands for the job's."""
        folder = self._links / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        place = folder / Path(wanted.path).name
        if wanted.identity is not None and place.suffix.lower() in TEXT_SUFFIXES:
            place = place.with_name(f"{place.name}.u32.bin")  # what arrived is the binary that it stands for
        for name, sha256 in wanted.files.items():
            link = place / name
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(store.path_of(sha256))
        if identity_body is not None:
            store_sidecar(place, sidecar_of_copy(identity_body, wanted.files[""], place))
        return place


class _Progress:
    """Report of how far the downloads of a job are, not more often than `TELL_SECONDS`.

    Args:
        report: takes the reports.

    Attributes:
        field: setting of the job that names the current input.
    """

    def __init__(self, report: Report) -> None:
        self.field = ""
        self._report = report
        self._files: dict[str, tuple[int, int]] = {}  # bytes here, and size, by SHA-256
        self._problem = ""
        self._told_seconds = -TELL_SECONDS

    def tell(self, ref: FileRef, here: int, problem: str) -> None:
        """Note the bytes of a file that are here, and report it if it is time."""
        self._files[ref.sha256] = here, ref.size
        now = asyncio.get_running_loop().time()
        if now - self._told_seconds < TELL_SECONDS and problem == self._problem:
            return
        self._told_seconds, self._problem = now, problem
        sizes = self._files.values()
        self._report(self.field, sum(each[0] for each in sizes), sum(each[1] for each in sizes), problem)
