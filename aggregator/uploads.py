"""Files that people upload for their jobs: who has uploaded which, and the caps on them.

The files are in the aggregator's store, beside those of the roles. A record of their owners is on disk beside it, so
that the caps hold across restarts and for a standby that takes over. All methods block.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from protos.files_pb2 import FileRef
from services.caps import GB, Cap, CapReached, Caps
from services.durable_files import replace_file
from services.errors import Refused
from services.files.store import FileStore
from services.files.upload import explain_disk
from services.input_files import NoSuchFile, read_input_file
from services.printable import printable, printable_path
from services.protocol.file_refs import check_ref
from services.transport.access.enforcement import Caller
from services.transport.access.permissions import CallerKind

log = logging.getLogger("tiermesh.aggregator")

ROLES_BYTES = 64 << 30
"""Size of the files of roles (specs, layouts, files of checkpoints) that the store has room for besides uploads."""
_DAEMONS = frozenset(CallerKind) - {CallerKind.PERSON, CallerKind.ADMIN}
_MAX_RECORD_BYTES = 64 << 20


@dataclass(frozen=True)
class Uploaded:
    """An uploaded file.

    Attributes:
        owner: person who uploaded it first; empty without security, where callers have no names.
        size: its size in bytes, which counts from the upload's begin on.
    """

    owner: str
    size: int


class Uploads:
    """Record of the uploaded files, and the check of each new upload against the caps.

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
        self._uploads: dict[str, Uploaded] | None = None  # by SHA-256; None before it is read

    def admit(self, refs: Sequence[FileRef], caller: Caller) -> None:
        """Record files that a caller is about to upload. Those of daemons are files of roles, and are not capped.

        Files that no job keeps make room, the longest unused first.

        Raises:
            CapReached: there would be too many files, or bytes, of the caller or in all.
            Refused: a reference is malformed.
            NoRoom: the disk is full.
            Failed: the record can't be written.
        """
        for ref in refs:
            refusal = check_ref(ref)
            if refusal is not None:
                raise Refused(str(refusal))
        if caller.kind in _DAEMONS:
            return
        with self._lock:
            recorded, asked = self._read(), {ref.sha256 for ref in refs}
            uploads = dict(recorded)
            for ref in refs:
                known = uploads.pop(ref.sha256, None)
                if known is None or self._store.last_use_seconds(ref.sha256) is None:  # removed meanwhile
                    known = Uploaded(caller.person, 0)
                if known.size < ref.size:
                    known = Uploaded(known.owner, ref.size)
                    self._make_room(uploads, known, asked)
                uploads[ref.sha256] = known
            if uploads != recorded:
                self._write(uploads, refs[0])
                self._uploads = uploads  # what is in memory follows the disk

    def _make_room(self, uploads: dict[str, Uploaded], new: Uploaded, asked: Set[str]) -> None:
        """Remove unkept files from the store, and from `uploads`, until a new one is within all caps (CapReached).

        Args:
            uploads: what is recorded.
            new: the new upload.
            asked: files that stay, since the caller needs them together.
        """
        for limit in _limits(self._caps, new.owner):
            counted = {sha256: each for sha256, each in uploads.items() if limit.counts(each)}
            amount, added = sum(map(limit.measure, counted.values())), limit.measure(new)
            if added <= limit.most < amount + added:
                for sha256 in self._longest_unused_first(counted.keys() - asked):
                    if self._store.remove_unkept(sha256):
                        amount -= limit.measure(uploads.pop(sha256))
                    if amount + added <= limit.most:
                        break
            if amount + added > limit.most:
                self._count_cap_reached(limit.cap)
                raise CapReached(limit.cap, limit.describe(amount, added))

    def _longest_unused_first(self, sha256s: Set[str]) -> list[str]:
        """Return the SHA-256 of some files in order; those that are gone come first."""
        used = {sha256: self._store.last_use_seconds(sha256) or 0.0 for sha256 in sha256s}
        return sorted(used, key=lambda sha256: used[sha256])

    def _read(self) -> dict[str, Uploaded]:
        """Return the record. Without a readable one, the files that are here count for nobody."""
        if self._uploads is not None:
            return self._uploads
        found: dict[str, Uploaded] = {}
        try:
            record = json.loads(read_input_file("", self._path, _MAX_RECORD_BYTES))
            found = {str(each["sha256"]): Uploaded(str(each["owner"]), int(each["size"])) for each in record}
        except NoSuchFile:
            pass
        except (Refused, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
            reason = printable(str(error), 100)
            log.warning(
                "%s is damaged (%s): uploads until now count for nobody", printable_path(self._path), reason
            )
        self._uploads = found
        return found

    def _write(self, uploads: dict[str, Uploaded], ref: FileRef) -> None:
        """Store a record of uploads, of which `ref` is a new one."""
        record = [
            {"sha256": sha256, "owner": each.owner, "size": each.size} for sha256, each in uploads.items()
        ]
        with explain_disk(ref):
            replace_file(self._path, json.dumps(record).encode())


@dataclass(frozen=True)
class _Limit:
    """A cap that applies to an upload.

    Attributes:
        cap: the cap.
        most: its bound, in files or bytes.
        owner: whose files it counts; empty for everybody's.
        in_bytes: whether it counts bytes.
    """

    cap: Cap
    most: int
    owner: str
    in_bytes: bool

    def counts(self, upload: Uploaded) -> bool:
        return not self.owner or upload.owner == self.owner

    def measure(self, upload: Uploaded) -> int:
        return upload.size if self.in_bytes else 1

    def describe(self, amount: int, added: int) -> str:
        """Return one line with the owner, the amount, the bound, the option and what to do."""
        who = f"person {printable(self.owner, 60)}" if self.owner else "uploads"
        which = "-per-person" if self.owner else ""
        if self.in_bytes:
            text = (
                f"this file has {added / GB:.1f} GB and those that jobs need {amount / GB:.1f} GB, expected at most "
                f"{self.most / GB:g} GB in all (--max-upload-gb{which} of the aggregator)"
            )
        else:
            text = f"jobs need {amount} files, expected at most {self.most} (--max-uploads{which} of the aggregator)"
        return f"{who}: {text}; submit again when jobs have ended, or copy the data to the hosts and give --no-upload"


def _limits(caps: Caps, owner: str) -> list[_Limit]:
    """Return the caps that apply to a person's uploads; empty `owner` for one without a name."""
    limits = [
        _Limit(Cap.UPLOADS, caps.uploads, "", in_bytes=False),
        _Limit(Cap.UPLOAD_BYTES, caps.upload_gb * GB, "", in_bytes=True),
    ]
    if owner:
        limits = [
            _Limit(Cap.UPLOADS_PER_PERSON, caps.uploads_per_person, owner, in_bytes=False),
            _Limit(Cap.UPLOAD_BYTES_PER_PERSON, caps.upload_gb_per_person * GB, owner, in_bytes=True),
            *limits,
        ]
    return limits
