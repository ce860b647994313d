"""Files that are uploaded for jobs: who has uploaded which, and the caps on them.

The files are in the aggregator's store. A record of those that are complete is on disk beside it, so that the caps hold
across restarts and for a standby that takes over. An upload that is under way counts in memory. All methods block.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from protos.files_pb2 import FileRef
from services.caps import GB, Cap, CapReached, Caps
from services.durable_files import replace_file
from services.errors import Refused
from services.files.store import FileStore
from services.input_files import NoSuchFile, read_input_file
from services.printable import counted, printable, printable_path
from services.protocol.file_refs import MAX_FILE_BYTES, MAX_TEXT_BYTES, check_ref
from services.transport.access.enforcement import Caller
from services.transport.access.permissions import CallerKind

log = logging.getLogger("tiermesh.aggregator")

ROLES_BYTES = 64 << 30
"""Size of the files of roles (layouts, files of checkpoints) that the store has room for besides people's uploads."""
WORKER_FILES = 256
"""Maximum number of files of one worker that no job keeps."""
WORKER_BYTES = 2 << 30
"""Maximum size of these files together."""
_MAX_RECORD_BYTES = 64 << 20


@dataclass(frozen=True)
class Uploaded:
    """An uploaded file, or one whose upload is under way.

    Attributes:
        owner: who uploaded it first; empty without security, where callers have no names.
        size: its size in bytes.
        by_worker: whether that was a worker.
    """

    owner: str
    size: int
    by_worker: bool


class Uploads:
    """Record of the uploaded files, and the check of each new upload against the caps; see `Admission`.

    Args:
        path: file of the record.
        store: store of the files.
        caps: caps on them.
        count_cap_reached: counts uploads that a cap refuses; called on any thread.
    """

    def __init__(
        self, path: Path, store: FileStore, caps: Caps, count_cap_reached: Callable[[Cap], None]
    ) -> None:
        self._path = path
        self._store = store
        self._caps = caps
        self._count_cap_reached = count_cap_reached
        self._lock = threading.Lock()
        self._stored: dict[str, Uploaded] | None = None  # by SHA-256; None before it is read
        self._reserved: list[Uploaded] = []  # uploads that are under way

    def check(self, refs: Sequence[FileRef], caller: Caller) -> None:
        """Check that a caller may upload files together, if those that no job keeps make room.

        Raises:
            CapReached: there would be too many files, or bytes, of the caller or in all.
            Refused: a reference is malformed, or a worker's file is too large.
        """
        with self._lock:
            self._make_room(
                [_uploaded(ref, caller) for ref in refs], lambda each: not self._store.is_kept(each)
            )

    @contextmanager
    def reserve(self, ref: FileRef, caller: Caller) -> Iterator[Callable[[], None]]:
        """Count an upload while the block runs, and give what records the verified file.

        Files that no job keeps make room, the longest unused first.

        Raises:
            CapReached, Refused: as for `check`.
        """
        new = _uploaded(ref, caller)
        with self._lock:
            self._make_room([new], lambda each: not self._store.is_kept(each))  # else nothing is pushed out
            self._make_room([new], self._store.remove_unkept)
            self._reserved.append(new)
        try:
            yield partial(self._record, ref, new)
        finally:
            with self._lock:
                self._reserved.remove(new)

    def _record(self, ref: FileRef, new: Uploaded) -> None:
        """Store that a file is verified (OSError). One that somebody else has uploaded stays theirs."""
        with self._lock:
            stored = self._here()
            stored.setdefault(ref.sha256, new)
            replace_file(
                self._path,
                json.dumps([{"sha256": name, **asdict(each)} for name, each in stored.items()]).encode(),
            )
            self._stored = stored  # what is in memory follows the disk

    def _here(self) -> dict[str, Uploaded]:
        """Return the record without the files that are gone."""
        names = self._store.names()
        return {sha256: each for sha256, each in self._read().items() if sha256 in names}

    def _make_room(self, new: Sequence[Uploaded], remove: Callable[[str], bool]) -> None:
        """Remove files, the longest unused first, until new ones of one owner are within all caps (CapReached).

        Args:
            new: the new files.
            remove: removes a file unless a job keeps it; returns whether it did.
        """
        for limit in _limits(self._caps, new[0]):
            counted = {
                sha256: each
                for sha256, each in self._here().items()
                if limit.counts(each) and not (each.by_worker and self._store.is_kept(sha256))
            }
            amount = sum(map(limit.measure, (*counted.values(), *filter(limit.counts, self._reserved))))
            added = sum(map(limit.measure, new))
            for sha256 in self._longest_unused_first(counted):
                if amount + added <= limit.most:
                    break
                if remove(sha256):
                    amount -= limit.measure(counted[sha256])
            if amount + added > limit.most:
                self._count_cap_reached(limit.cap)
                raise CapReached(limit.cap, limit.describe(amount, added))

    def _longest_unused_first(self, sha256s: Iterable[str]) -> list[str]:
        used = {sha256: self._store.last_use_seconds(sha256) or 0.0 for sha256 in sha256s}
        return sorted(used, key=lambda sha256: used[sha256])

    def _read(self) -> dict[str, Uploaded]:
        """Return the record. Without a readable one, the files that are here count for nobody."""
        if self._stored is not None:
            return self._stored
        found: dict[str, Uploaded] = {}
        try:
            record = json.loads(read_input_file("", self._path, _MAX_RECORD_BYTES))
            found = {
                str(each["sha256"]): Uploaded(str(each["owner"]), int(each["size"]), bool(each["by_worker"]))
                for each in record
            }
        except NoSuchFile:
            pass
        except (Refused, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            reason = printable(str(error), 100)
            log.warning(
                "%s is damaged (%s): uploads until now count for nobody", printable_path(self._path), reason
            )
        self._stored = found
        return found


def _uploaded(ref: FileRef, caller: Caller) -> Uploaded:
    """Return a file that a caller would upload (Refused)."""
    by_worker = caller.kind is CallerKind.WORKER
    refusal = check_ref(ref, MAX_TEXT_BYTES if by_worker else MAX_FILE_BYTES)
    if refusal is not None:
        raise Refused(str(refusal))
    return Uploaded(caller.name, ref.size, by_worker)


@dataclass(frozen=True)
class _Limit:
    """A cap that applies to an upload.

    Attributes:
        cap: the cap.
        most: its bound, in files or bytes.
        owner: whose files it counts; empty for those of all people.
        in_bytes: whether it counts bytes.
        by_worker: whether the owner is a worker.
    """

    cap: Cap
    most: int
    owner: str
    in_bytes: bool
    by_worker: bool = False

    def counts(self, upload: Uploaded) -> bool:
        return upload.by_worker == self.by_worker and self.owner in ("", upload.owner)

    def measure(self, upload: Uploaded) -> int:
        return upload.size if self.in_bytes else 1

    def describe(self, amount: int, added: int) -> str:
        """Return one line with the owner, the amount, the bound, the option and what to do."""
        if self.by_worker:
            what = "bytes" if self.in_bytes else "files"
            return (
                f"worker {printable(self.owner, 60)}: {amount + added} {what} that no job keeps, expected at most "
                f"{self.most}; send fewer of them"
            )
        who = f"person {printable(self.owner, 60)}" if self.owner else "uploads"
        which = "-per-person" if self.owner else ""
        if self.in_bytes:
            more, needed = f"{added / GB:.1f} GB more", f"{amount / GB:.1f} GB"
            most, option = f"{self.most / GB:g} GB", f"--max-upload-gb{which}"
        else:
            more, needed = counted(added, "more file"), str(amount)
            most, option = str(self.most), f"--max-uploads{which}"
        text = (
            f"{more} and {needed} that jobs need, expected at most {most} in all ({option} of the aggregator)"
        )
        return f"{who}: {text}; submit again when jobs have ended, or copy the data to the hosts and give --no-upload"


def _limits(caps: Caps, new: Uploaded) -> list[_Limit]:
    """Return the caps that apply to an upload."""
    if new.by_worker:
        return [
            _Limit(Cap.UPLOADS_PER_WORKER, WORKER_FILES, new.owner, in_bytes=False, by_worker=True),
            _Limit(Cap.UPLOAD_BYTES_PER_WORKER, WORKER_BYTES, new.owner, in_bytes=True, by_worker=True),
        ]
    limits = [
        _Limit(Cap.UPLOADS, caps.uploads, "", in_bytes=False),
        _Limit(Cap.UPLOAD_BYTES, caps.upload_gb * GB, "", in_bytes=True),
    ]
    if new.owner:
        limits = [
            _Limit(Cap.UPLOADS_PER_PERSON, caps.uploads_per_person, new.owner, in_bytes=False),
            _Limit(Cap.UPLOAD_BYTES_PER_PERSON, caps.upload_gb_per_person * GB, new.owner, in_bytes=True),
            *limits,
        ]
    return limits
