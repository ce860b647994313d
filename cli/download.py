"""`tiermesh download`: fetch a checkpoint from a cluster, complete and verified.

DIR/step-00000500/                      the checkpoint, which appears once it is complete
DIR/.step-00000500.3f5a9c1b.partial/    what has arrived of it, by the SHA-256 of its state.json, which names all
                                        others; the same command goes on there
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from cli.output import Output
from protos.cluster_pb2 import CheckpointFiles
from protos.files_pb2 import FileRef, ReadFileRequest
from services.checkpoints.format import MODEL_FILE, OPTIMIZER_FILE, STATE_FILE, check_file_names
from services.checkpoints.read import read_state
from services.errors import Failed, Refused
from services.files.errors import FileMissing, NoRoom, WrongFile
from services.files.store import FileStore
from services.jobs.client import JobsClient
from services.jobs.target import AggregatorTarget

MAX_FILES = 100
"""Limit of the files in a checkpoint; a real one has about five."""


async def download(
    target: AggregatorTarget, job: str, folder: Path, step: int | None, output: Output
) -> None:
    """Write a checkpoint of `job` to `folder`/step-XXXXXXXX. What arrived before a failure is not sent again.

    Args:
        target: aggregator to ask.
        job: id of the job, a part of it, or `latest`.
        folder: folder for the checkpoint, created if missing; it must not contain that checkpoint yet.
        step: step of the checkpoint; None for the newest.
        output: where the result goes.

    Raises:
        Refused: the job or checkpoint does not exist, or `folder` contains it already or can't be written.
        Failed: the files that arrived are not a complete, undamaged checkpoint.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder}: can't be written ({error.strerror}); give another folder") from None
    async with JobsClient(target) as client:
        job = (await client.job(job)).id  # which the checkpoint's files name in full
        found = await client.checkpoint(job, step)
        while True:
            try:
                place = await _download(client, job, found, folder)
                break
            except _DamagedCheckpoint as damaged:
                if step is not None or not found.step:
                    raise
                damaged_step = found.step
                try:
                    found = await client.checkpoint(job, None, before=damaged_step)
                except Refused:
                    raise damaged from None
                if found.step >= damaged_step:  # a lie, which would go on without end
                    raise damaged from None
                output.warn(f"{damaged}; falling back to step {found.step}")
    size_bytes = sum(ref.size for ref in found.files.values())
    output.say(f"{place}  ({size_bytes:,} bytes)")
    output.result({"job": job, "step": found.step, "path": str(place), "bytes": size_bytes})


async def _download(client: JobsClient, job: str, found: CheckpointFiles, folder: Path) -> Path:
    """Write one checkpoint, and return its folder; see `download`."""
    _check_names(client.address, found.files)
    place = folder / f"step-{found.step:08d}"
    if place.exists():
        raise Refused(f"{place}: exists already; remove it or give another folder")
    partial = folder / f".{place.name}.{found.files[STATE_FILE].sha256[:8]}.partial"
    try:
        partial.mkdir(exist_ok=True)
        await _receive(client, job, found, partial)
        _check_content(client.address, job, found, partial)
        for leftover in {path.name for path in partial.iterdir()} - found.files.keys():
            (partial / leftover).unlink()
        partial.replace(place)
    except (FileMissing, _WrongCheckpoint, _DamagedCheckpoint):
        shutil.rmtree(partial, ignore_errors=True)  # it can't be completed any more
        raise
    except NoRoom as full:
        raise Failed(f"{partial}: {full}, and repeat the command to go on") from None
    except OSError as error:
        raise Failed(
            f"{folder}: can't be written ({error.strerror}); free space or give another folder"
        ) from None
    return place


class _DamagedCheckpoint(Refused):
    """A file of the checkpoint arrives again and again with other bytes than `state.json` names."""


class _WrongCheckpoint(Failed):
    """Files that are not those of the checkpoint that was asked for."""


def _check_names(address: str, files: Mapping[str, FileRef]) -> None:
    """Check the names of a checkpoint's files, which a peer has sent (Failed)."""
    if not len(files) <= MAX_FILES or STATE_FILE not in files:
        raise Failed(
            f"aggregator {address}: sent {len(files)} names of files, expected those of a checkpoint, about 5 with "
            f"{STATE_FILE}; check the address"
        )
    try:
        check_file_names(files.keys() - {MODEL_FILE, OPTIMIZER_FILE, STATE_FILE})
    except Refused as refused:
        raise Failed(f"aggregator {address}: {refused}; don't trust that aggregator") from None


async def _receive(client: JobsClient, job: str, found: CheckpointFiles, folder: Path) -> None:
    """Download the files that are not here yet; each gets its name when it is verified."""
    store = FileStore(folder)
    for name, ref in found.files.items():
        if not (folder / name).exists():
            request = ReadFileRequest(sha256=ref.sha256, job=job, step=found.step)
            try:
                await client.download(request, store)
            except WrongFile:
                raise _DamagedCheckpoint(
                    f"job {job}: step {found.step}: {name} is damaged; restore it on the host that keeps it, or give "
                    "another --step"
                ) from None
            store.path_of(ref.sha256).replace(folder / name)


def _check_content(address: str, job: str, found: CheckpointFiles, folder: Path) -> None:
    """Check what `state.json` says of job, step and all other files against what was asked for and has arrived."""
    try:
        state, _ = read_state(folder)
    except Refused as error:
        raise _WrongCheckpoint(
            f"aggregator {address}: the files it sent are not a complete checkpoint ({error}); try again"
        ) from None
    named = {name: (record.sha256, record.bytes) for name, record in state.files.items()}
    arrived = {name: (ref.sha256, ref.size) for name, ref in found.files.items() if name != STATE_FILE}
    if (state.job, state.step, named) != (job, found.step, arrived) or MODEL_FILE not in named:
        raise _WrongCheckpoint(
            f"aggregator {address}: sent {len(arrived)} files of the checkpoint of job {state.job}, step {state.step}; "
            f"expected the {len(named)} of job {job}, step {found.step}; try again"
        )
