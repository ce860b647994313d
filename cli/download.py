"""`tiermesh download`: fetch a checkpoint from a cluster, complete and verified, or leave nothing behind."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from cli.client import JobsClient
from cli.options import AggregatorTarget
from cli.output import Output
from services.errors import Failed, Refused

MAX_FILES = 100
"""Limit of the files in a checkpoint; a real one has about five."""


async def download(
    target: AggregatorTarget, job: str, folder: Path, step: int | None, output: Output
) -> None:
    """Write a checkpoint of `job` to `folder`/step-XXXXXXXX.

    Args:
        target: aggregator to ask.
        job: id of the job.
        folder: folder for the checkpoint, created if missing; it must not contain that checkpoint yet.
        step: step of the checkpoint; None for the newest.
        output: where the result goes.

    Raises:
        Refused: the job or checkpoint does not exist, or `folder` contains it already or can't be written.
        Failed: the files that arrived are not a complete, undamaged checkpoint.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=".download-", dir=folder))
    except OSError as error:
        raise Refused(f"{folder}: can't be written ({error.strerror}); give another folder") from None
    try:
        async with JobsClient(target) as client:
            found, size_bytes = await _receive(client, job, step, temporary)
        _verify(target.address, temporary, job, found)
        place = folder / f"step-{found:08d}"
        if place.exists():
            raise Refused(f"{place}: exists already; remove it or give another folder")
        temporary.chmod(0o755)
        temporary.replace(place)
    except OSError as error:
        raise Failed(
            f"{folder}: can't be written ({error.strerror}); free space or give another folder"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    output.say(f"{place}  ({size_bytes:,} bytes)")
    output.result({"job": job, "step": found, "path": str(place), "bytes": size_bytes})


async def _receive(client: JobsClient, job: str, step: int | None, folder: Path) -> tuple[int, int]:
    """Write the pieces of each file as they arrive; return the checkpoint's step and its size in bytes."""
    found = step
    expected: dict[str, int] = {}
    left: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        async with contextlib.aclosing(client.download(job, step)) as parts:
            async for part in parts:
                if part.path not in files:
                    if len(files) == MAX_FILES:
                        raise Failed(
                            f"aggregator {client.address}: sent more than {MAX_FILES} files, expected a "
                            "checkpoint of about 5; "
                            "check the address"
                        )
                    path = _inside(folder, part.path)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    files[part.path] = stack.enter_context(path.open("wb"))
                    expected[part.path] = left[part.path] = part.size
                if found is None:
                    found = part.step
                if part.step != found:
                    raise Failed(
                        f"aggregator {client.address}: {part.path!r} belongs to step {part.step}, expected "
                        f"step {found}; "
                        "try again"
                    )
                left[part.path] -= files[part.path].write(part.data)
                if left[part.path] < 0:
                    raise Failed(
                        f"aggregator {client.address}: {part.path!r} is longer than its announced "
                        f"{expected[part.path]} bytes; try again"
                    )
    if found is None or not expected:
        raise Failed(f"aggregator {client.address}: sent no files for job {job}; try again")
    for name, size_bytes in expected.items():
        arrived = _inside(folder, name).stat().st_size
        if arrived != size_bytes:
            raise Failed(
                f"aggregator {client.address}: {name!r}: {arrived} of {size_bytes} bytes arrived; try again"
            )
    return found, sum(expected.values())


def _inside(folder: Path, name: str) -> Path:
    """Return the path of a file that a peer named; raise Failed if it is outside the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name or "\0" in name:
        raise Failed(
            f"the aggregator sent a file {name!r}, which is outside the checkpoint's folder; don't trust "
            "that aggregator"
        )
    return folder.joinpath(*path.parts)


def _verify(address: str, folder: Path, job: str, step: int) -> None:
    """Check the files against the checkpoint's own checksums, and its job and step against the request."""
    from services.checkpoints.read import (
        read_checkpoint,
    )

    try:
        checkpoint = read_checkpoint(folder)
    except Refused as error:
        raise Failed(
            f"aggregator {address}: the files it sent are not a complete checkpoint ({error}); try again"
        ) from None
    if (checkpoint.job, checkpoint.step) != (job, step):
        raise Failed(
            f"aggregator {address}: sent the checkpoint of job {checkpoint.job}, step {checkpoint.step}; expected job "
            f"{job}, step {step}; try again"
        )
