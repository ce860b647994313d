"""Fetching a checkpoint from a cluster: complete and verified, or not at all."""

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

MOST_FILES = 100
"""Of a checkpoint, which has some five."""


async def download(
    target: AggregatorTarget, job: str, folder: Path, step: int | None, output: Output
) -> None:
    """Write a checkpoint of `job` to `folder`/step-XXXXXXXX.

    Args:
        target: the aggregator.
        job: id.
        folder: made if missing; it must not have that checkpoint yet.
        step: of the checkpoint; None: the newest.
        output: where the result goes.

    Raises:
        Refused: there is no such job or checkpoint, or `folder` has it already or can't be written.
        Failed: what arrives is not a complete, undamaged checkpoint.
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
            raise Refused(f"{place}: there already; remove it or give another folder")
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
    """Write the pieces of each file as they come; returns the checkpoint's step and its size in bytes."""
    found = step
    expected: dict[str, int] = {}
    left: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        files: dict[str, BinaryIO] = {}
        async with contextlib.aclosing(client.download(job, step)) as parts:
            async for part in parts:
                if part.path not in files:
                    if len(files) == MOST_FILES:
                        raise Failed(
                            f"aggregator {client.address}: sent more than {MOST_FILES} files; that is no checkpoint"
                        )
                    path = _inside(folder, part.path)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    files[part.path] = stack.enter_context(path.open("wb"))
                    expected[part.path] = left[part.path] = part.size
                if found is None:
                    found = part.step
                if part.step != found:
                    raise Failed(
                        f"aggregator {client.address}: {part.path!r}: of step {part.step}, expected step {found}; "
                        "try again"
                    )
                left[part.path] -= files[part.path].write(part.data)
                if left[part.path] < 0:
                    raise Failed(
                        f"aggregator {client.address}: {part.path!r}: more than its {expected[part.path]} bytes came; "
                        "try again"
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
    """The place of a file that a peer named, held to stay within the folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in name or "\0" in name:
        raise Failed(f"a checkpoint with a file {name!r}: outside its folder; don't trust that aggregator")
    return folder.joinpath(*path.parts)


def _verify(address: str, folder: Path, job: str, step: int) -> None:
    """Hold the files to the checksums that the checkpoint has of itself, and to what it says that it is of."""
    from services.checkpoints import read_checkpoint

    try:
        checkpoint = read_checkpoint(folder)
    except Refused as error:
        raise Failed(
            f"aggregator {address}: sent what is no complete checkpoint ({error}); try again"
        ) from None
    if (checkpoint.job, checkpoint.step) != (job, step):
        raise Failed(
            f"aggregator {address}: sent the checkpoint of job {checkpoint.job}, step {checkpoint.step}; expected job "
            f"{job}, step {step}; try again"
        )
