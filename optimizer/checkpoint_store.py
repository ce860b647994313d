"""Files of an optimizer: each job's checkpoints and highest generation, and the highest epoch that was obeyed."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from contextlib import nullcontext
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from optimizer.checkpoint_removal import CheckpointRemoval
from optimizer.checkpoint_use import CheckpointUse
from optimizer.core.open_job import is_void
from optimizer.void_file import VoidFile
from plane.update_rules import initial_state
from protos import cluster_pb2 as pb
from protos.files_pb2 import FilePiece, FileRef, ReadFileRequest
from services.checkpoints.format import (
    MODEL_FILE,
    STATE_FILE,
    Checkpoint,
    State,
    folder_name,
    step_of_folder,
)
from services.checkpoints.prune import (
    list_surplus,
    mark_removed,
)
from services.checkpoints.read import (
    checkpoints_by_step,
    find_newest,
    list_checkpoints,
    read_checkpoint,
    read_refs,
    read_state,
)
from services.checkpoints.start import write_start
from services.checkpoints.write import Fence, write_checkpoint
from services.config.job import JobConfig
from services.config.job_parts import StartConfig
from services.errors import Failed, Refused
from services.files.errors import FileMissing
from services.files.pieces import make_piece
from services.instrumentation.failpoints import hit_failpoint
from services.protocol.versions import LAST_EPOCH, LAST_GENERATION
from services.runtime.number_file import NumberFile
from services.tensors.kernels.arithmetic import Float32Array
from services.tensors.layout import Layout

_LISTED = 32
"""Number of checkpoints whose lists of files are remembered, so that each piece does not need one again."""
_GENERATION_FILE = "generation"
_VOID_FILE = "void.json"


def epoch_file(path: Path) -> NumberFile:
    """Return the file with the highest epoch that an optimizer obeyed."""
    return NumberFile(path, LAST_EPOCH, "the highest epoch that this optimizer has obeyed")


class CheckpointStore:
    """Folder of all checkpoints, with a folder for each job, named by the job's id.

    Args:
        root: path of the folder.
        fence: context manager entered while a file gets its final name. It raises Failed in a process that lost the
            right to write, because another aggregator took over.

    Attributes:
        removal: removes checkpoints of ended jobs.
    """

    def __init__(self, root: Path, fence: Fence = nullcontext) -> None:
        self._root = root.absolute()
        self._fence = fence
        self._use = CheckpointUse()
        self.removal = CheckpointRemoval(self._root, self._folder, self._use, fence)

    def _folder(self, job: str) -> Path:
        if not re.fullmatch(r"[\w-]{1,100}", job):
            raise Refused(
                f"job id {job!r}: expected 1 to 100 letters, digits, - and _, since it names a folder"
            )
        return self._root / job

    def _generation_file(self, job: str) -> NumberFile:
        path = self._folder(job) / _GENERATION_FILE
        return NumberFile(path, LAST_GENERATION, "at least the generation of every checkpoint")

    def read_generation(self, job: str) -> int:
        """Return the highest generation given out to a job; 0 if there was none.

        Raises:
            Refused: the file is damaged.
        """
        return self._generation_file(job).read()

    def prepare(self, job: str) -> None:
        """Make the file of a job's generation, so that it can be changed on a full disk from then on.

        Raises:
            Refused: the file is damaged.
            Failed: the file can't be written, or another aggregator took over.
        """
        self.save_generation(job, self.read_generation(job))

    def save_generation(self, job: str, generation: int) -> None:
        """Store a generation durably: it survives power loss once this returns.

        Raises:
            Failed: the file can't be written, another aggregator took over, or the job was pruned.
        """
        folder = self._folder(job)
        try:
            with self._use.writing(job), self._fence():
                folder.mkdir(parents=True, exist_ok=True)
                hit_failpoint("optimizer.generation.before")
                self._generation_file(job).write(generation)
            hit_failpoint("optimizer.generation.after")
        except OSError as error:
            raise Failed(f"{folder / _GENERATION_FILE}: not written: {error.strerror or error}") from error

    def read_newest(self, job: str, void: Collection[pb.Void] = ()) -> tuple[Checkpoint | None, list[str]]:
        """Read a job's newest checkpoint that is intact and not void.

        What is void once stays void: it is stored, since a restored queue may not know of it.

        Returns:
            The checkpoint, and one line for each newer one that was passed over. None if the job has no checkpoint, or
            begins again, since not even its initial weights count.

        Raises:
            Refused: there are checkpoints, and all of them are damaged or void; or the file `void.json` is damaged.
        """
        folder, file = self._folder(job), VoidFile(self._folder(job) / _VOID_FILE)
        problems = []
        try:
            with self._fence() if void else nullcontext():
                void = file.add(void)
        except (OSError, Failed) as error:
            problems.append(f"{folder / _VOID_FILE}: not written: {error}")
            void = [*void, *file.read()]
        if _begins_again(void, folder):
            return None, [*problems, f"{folder}: all checkpoints are void; the job begins again"]
        newest, notices = find_newest(partial(_read_unless_void, void), folder)
        return newest, problems + notices

    def start_from(self, job: str, config: JobConfig) -> None:
        """Give a job its first checkpoint: that of the job that it starts from. Do nothing if it has one.

        Raises:
            Refused: that checkpoint is not there, is void or damaged, or is another one than the job names.
            Failed: the disk failed, another aggregator took over, or the job was pruned.
        """
        start = config.start_from
        if start is None or list_checkpoints(self._folder(job)):
            return
        source = self._folder(start.job) / folder_name(start.step or 0)
        with self._use.reader() as reader, self._use.writing(job):
            self._use.choose(reader, source)
            state, layout = self._read_source(start, source)
            fresh = None if start.optimizer else initial_state(config.optimizer, layout)
            write_start(
                self._folder(job),
                source,
                state,
                job=job,
                step=start.first_step,
                config_json=config.to_json(),
                optimizer_state=fresh,
                fence=self._fence,
            )

    def _read_source(self, start: StartConfig, source: Path) -> tuple[State, Layout]:
        """Return state and layout of the checkpoint that a job starts from (Refused if it is not the one)."""
        where = f"start_from: checkpoint of step {start.step} of job {start.job}"
        state, layout = read_state(source)
        written = _written(state.job, state.generation, state.step, source, "")
        if is_void(written, VoidFile(source.parent / _VOID_FILE).read()):
            raise Refused(
                f"{where}: void: it may contain the work of a faulty worker; start from an earlier one"
            )
        record = state.files.get(MODEL_FILE)
        if record is None or record.sha256 != start.model_sha256:
            found = record.sha256 if record is not None else "none"
            raise Refused(
                f"{where}: its model has sha256 {found}, the job was submitted with {start.model_sha256}; submit it "
                "again"
            )
        return state, layout

    def write(
        self,
        job: str,
        generation: int,
        step: int,
        config: JobConfig,
        layout: Layout,
        weights: Float32Array,
        state: Mapping[str, NDArray[Any]],
        files: Mapping[str, bytes],
    ) -> tuple[pb.CheckpointWritten, int]:
        """Write a checkpoint.

        Args:
            job: job id.
            generation: generation of the weights.
            step: number of updates that made the weights.
            config: config of the job.
            layout: layout of the arrays.
            weights: master weights, [elements] float32.
            state: state of the update rule by name.
            files: other files of the checkpoint by name, such as the tokenizer.

        Returns:
            The message for the aggregator, and the size of all files in bytes.

        Raises:
            Failed: a file can't be written, another aggregator took over, or the job was pruned.
        """
        with self._use.writing(job):
            info = write_checkpoint(
                self._folder(job),
                job=job,
                generation=generation,
                step=step,
                config_json=config.to_json(),
                layout=layout,
                weights=weights,
                optimizer_state=state,
                files=files,
                fence=self._fence,
            )
            size_bytes = sum(file.stat().st_size for file in info.path.iterdir())
        return _written(job, generation, step, info.path, info.model_sha256), size_bytes

    def prune(self, job: str, written: int, *, keep_last: int, keep_every: int) -> list[str]:
        """Remove a job's surplus checkpoints, except those that are being read.

        Args:
            job: job id.
            written: step of the checkpoint that was just written.
            keep_last: number of newest checkpoints to keep.
            keep_every: multiple of steps whose checkpoints are never removed; 0 for none.

        Returns:
            One line for each checkpoint that could not be removed.
        """
        problems = []
        try:
            for path in list_surplus(self._folder(job), written, keep_last=keep_last, keep_every=keep_every):
                try:
                    with self._fence():
                        aside = self._use.unless_read(path, partial(mark_removed, path))
                    if aside is not None:
                        shutil.rmtree(aside)
                except OSError as error:
                    problems.append(f"checkpoint {path}: not removed: {error.strerror or error}")
                except Failed as failed:
                    problems.append(f"checkpoint {path}: not removed: {failed}")
        except OSError as error:
            problems.append(f"{self._folder(job)}: surplus checkpoints not listed: {error.strerror or error}")
        return problems

    @staticmethod
    def describe(checkpoint: Checkpoint) -> pb.CheckpointWritten:
        """Return the message that names a checkpoint to the aggregator."""
        return _written(
            checkpoint.job, checkpoint.generation, checkpoint.step, checkpoint.path, checkpoint.model_sha256
        )

    def list_files(self, request: pb.CheckpointRequest) -> pb.CheckpointFiles:
        """Return the files of a checkpoint, as `state.json` names them; it stays while they are read.

        Raises:
            FileMissing: the job has no such checkpoint, or a file of it is missing.
        """
        folder = self._folder(request.job)
        with self._use.reader() as reader:

            def read(path: Path) -> tuple[Path, Mapping[str, FileRef]]:
                self._use.choose(reader, path)
                return path, read_refs(path)

            def read_unless_void(path: Path) -> tuple[Path, Mapping[str, FileRef]]:
                if request.step and (step_of_folder(path.name) or 0) >= request.step:
                    raise Refused(f"checkpoint {path}: not before step {request.step}")
                _check_not_void(void, path)
                return read(path)

            try:
                void = VoidFile(folder / _VOID_FILE).read()
                found = (
                    find_newest(read_unless_void, folder)[0]
                    if request.newest
                    else read(self._find(folder, request.job, request.step))
                )
            except Refused as refused:
                raise FileMissing(str(refused)) from None
            if found is None:
                raise FileMissing(f"job {request.job} has no checkpoint yet")
            path, refs = found
            self._use.note_listed(path, (ref.sha256 for ref in refs.values()))
            return pb.CheckpointFiles(step=step_of_folder(path.name), files=refs)

    @staticmethod
    def _find(folder: Path, job: str, step: int) -> Path:
        present = checkpoints_by_step(folder)
        if step not in present:
            steps = ", ".join(map(str, present)) or "none"
            raise Refused(f"job {job} has no checkpoint of step {step}; there are: {steps:.200}")
        return present[step]

    def read_piece(self, request: ReadFileRequest) -> FilePiece:
        """Return the piece of a checkpoint's file that begins at a request's offset.

        Raises:
            FileMissing: the checkpoint has no such file, since it was removed or made again.
            Failed: the disk failed.
        """
        path = self._folder(request.job) / folder_name(request.step)
        try:
            with self._use.reader() as reader:
                self._use.choose(reader, path)
                named = _read_refs(path)
                name, ref = next(each for each in named.items() if each[1].sha256 == request.sha256)
                with (path / name).open("rb") as file:
                    piece = make_piece(file, ref, request.offset, request.length)
                is_end = request.offset + len(piece.data) >= ref.size
                self._use.note_read(path, ref.sha256, is_end=is_end)
                return piece
        except (StopIteration, FileNotFoundError, Refused):
            raise FileMissing(
                f"job {request.job}: its checkpoint of step {request.step} was removed or made again, so this download "
                "can't go on; download another one"
            ) from None
        except OSError as error:
            raise Failed(f"checkpoint {path}: not readable: {error.strerror or error}") from None


def _read_refs(path: Path) -> Mapping[str, FileRef]:
    """Return references to the files of a checkpoint by name (Refused)."""
    status = (path / STATE_FILE).stat()
    return _read_refs_once(path, (status.st_ino, status.st_size, status.st_mtime_ns))


@lru_cache(maxsize=_LISTED)
def _read_refs_once(path: Path, _: tuple[int, ...]) -> Mapping[str, FileRef]:
    return read_refs(path)


def _read_unless_void(void: Collection[pb.Void], path: Path) -> Checkpoint:
    _check_not_void(void, path)
    return read_checkpoint(path)


def _check_not_void(void: Collection[pb.Void], path: Path) -> None:
    """Check that a checkpoint is not void (Refused), if there are void ones at all."""
    if void and _is_void_on_disk(void, path):
        raise Refused(
            f"checkpoint {path}: void: it may contain the work of a faulty or overruled worker, or of code that the "
            "job has left"
        )


def _is_void_on_disk(void: Collection[pb.Void], path: Path) -> bool:
    state, _ = read_state(path)
    return is_void(_written(state.job, state.generation, state.step, path, ""), void)


def _begins_again(void: Collection[pb.Void], folder: Path) -> bool:
    """Return whether a job has void checkpoints alone, and not even its initial weights count."""
    if all(each.HasField("step") for each in void):
        return False
    try:
        return all(_is_void_on_disk(void, path) for path in list_checkpoints(folder))
    except Refused:
        return False  # one is damaged, and may be the newest that counts


def _written(job: str, generation: int, step: int, path: Path, model_sha256: str) -> pb.CheckpointWritten:
    return pb.CheckpointWritten(
        job=job, generation=generation, step=step, path=str(path), model_sha256=model_sha256
    )
