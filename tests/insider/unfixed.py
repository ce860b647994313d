"""A daemon with the fix of a finding of issue 24 taken out as a whole, so that a case of `test_processes.py` fails.

It runs in place of the command. `VARIABLE` in its environment names the function that takes the fix out.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

from pydantic import Field

VARIABLE = "INSIDER_UNFIXED"
"""Environment variable with the name of one of the functions below."""


def shares_places_by_order() -> None:
    """Give places to those who come first, whatever their pace: finding 3."""
    from services.files import limits

    def admit(self: limits.TransferLimits, name: str, caller: str) -> None:
        if sum(map(len, self._open.values())) >= limits.MAX_TRANSFERS_OF_CALLER:
            raise limits._TooMany(f"{name}: all places are taken")

    mock.patch.object(limits.TransferLimits, "_admit", admit).start()
    mock.patch.object(limits, "LEAST_WINDOW_SECONDS", 1e6).start()


def shares_parts_of_files() -> None:
    """Have one part of a file, locked by its writer, for all who upload it: finding 4."""
    from services.files.store import FileStore

    part = FileStore._part
    mock.patch.object(FileStore, "_part", lambda self, sha256, _: part(self, sha256, "")).start()


def charges_claimed_sizes() -> None:
    """Charge the size that a question says to the person who has uploaded the file: finding 5."""
    from aggregator.uploads import Uploaded, Uploads

    check = Uploads.check

    def charge(self: Uploads, refs: Sequence[Any], caller: Any) -> None:
        check(self, refs, caller)
        stored = self._here()
        for ref in refs:
            known = stored.get(ref.sha256, Uploaded(caller.name, 0, by_worker=False))
            stored[ref.sha256] = replace(known, size=max(known.size, ref.size))
        self._stored = stored

    mock.patch.object(Uploads, "check", charge).start()


def parses_any_text() -> None:
    """Parse any text as JSON: finding 6."""
    from services import json_text
    from services.corpora import sidecar

    for module in (json_text, sidecar):
        mock.patch.object(module, "check_size", lambda content, kind: None).start()


def lets_workers_fill_the_disk() -> None:
    """Have no caps for workers, and keep abandoned parts on a full disk: finding 7."""
    from aggregator import uploads
    from services.files.store import FileStore
    from services.protocol import file_refs

    limits = uploads._limits
    mock.patch.object(uploads, "MAX_TEXT_BYTES", file_refs.MAX_FILE_BYTES).start()
    mock.patch.object(
        uploads, "_limits", lambda caps, new: [] if new.by_worker else limits(caps, new)
    ).start()
    mock.patch.object(FileStore, "reclaim", lambda self, size_bytes: 0).start()


def takes_nul_bytes_in_paths() -> None:
    """Take NUL bytes in paths, and await no error of a worker's task: finding 8."""
    from services.config import field_types

    text = Annotated[str, Field(max_length=4096)]
    mock.patch.object(field_types, "PathText", text).start()  # before the models that have such fields
    from worker import file_exchange
    from worker.job_inputs import JobInputs

    def find(self: JobInputs, wanted: Any) -> Path | None:
        places = self._list_places(wanted)
        return next((each for each in places if all((each / name).exists() for name in wanted.files)), None)

    def start(work: Coroutine[Any, Any, None], *_: object) -> asyncio.Task[None]:
        return asyncio.ensure_future(work)

    mock.patch.object(JobInputs, "_find", find).start()
    mock.patch.object(file_exchange, "start_task", start).start()


def modules() -> dict[str, str]:
    """Return what runs as which role, for `Cluster`: this module if a fix is to be taken out."""
    return dict.fromkeys(("aggregator", "worker"), "tests.insider.unfixed") if VARIABLE in os.environ else {}


if __name__ == "__main__":
    if "cli.daemon_commands" in sys.modules:  # forked with all modules, some of which it is too late to patch
        os.execv(sys.executable, [sys.executable, "-m", "tests.insider.unfixed", *sys.argv[1:]])
    from services.runtime import process

    process.tune_allocator()
    process.limit_blas_to_one_thread()
    globals()[os.environ[VARIABLE]]()
    from cli.main import main

    sys.exit(main())
