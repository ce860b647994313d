"""Jobs that start from another job's checkpoint, which is found and checked before they are queued."""

from __future__ import annotations

from aggregator.core.retention import StoredCheckpoint
from aggregator.storage.job_queue import JobQueue
from aggregator.storage.schema import LIVE_STATES
from aggregator.stored_checkpoints import StoredCheckpoints, StoredJob
from protos.jobs_pb2 import ContinueRequest, JobState
from services.config.job import JobConfig
from services.config.job_parts import StartConfig
from services.config.start import check_start, continued, pin_start
from services.errors import Refused
from services.printable import one_line

_FIELD = "training_config.start_from"
_MOST_STEPS_NAMED = 5


class JobStarts:
    """Finds the checkpoints that new jobs start from.

    Only a job that has ended can be started from: its newest checkpoint stays its newest, and nothing removes one that
    a queued job names.

    Args:
        queue: all jobs on disk.
        stored: the checkpoints, which the optimizer has.
    """

    def __init__(self, queue: JobQueue, stored: StoredCheckpoints) -> None:
        self._queue = queue
        self._stored = stored

    async def pin(self, config: JobConfig) -> JobConfig:
        """Return a new job's config with the checkpoint that it starts from, which was checked; nothing else changes.

        The caller queues it at once, before it awaits anything else.

        Raises:
            Refused: there is no such checkpoint, or the job can't start from it.
            Failed: the queue can't be read, or the optimizer does not answer.
        """
        start = config.start_from
        if start is None:
            return config
        start = start.model_copy(update={"job": self._resolve(start.job)})
        config = config.model_copy(update={"start_from": start})
        found = (await self._stored.list([start.job], hashes=True))[start.job]
        earlier = self._read_ended(start.job)
        checkpoint = _choose(start, found)
        check_start(config, earlier, checkpoint.tokenizer_sha256)
        return pin_start(config, checkpoint.step, checkpoint.model_sha256)

    async def continued(self, request: ContinueRequest) -> JobConfig:
        """Return the config of a job that goes on where an ended one has stopped; see `pin`.

        Raises:
            Refused: the request is out of range, or there is no such job or checkpoint.
            Failed: the queue can't be read, or the optimizer does not answer.
        """
        job = self._resolve(request.job)
        config = continued(
            self._read_ended(job),
            job,
            step=request.step if request.HasField("step") else None,
            steps=request.steps,
            total_steps=request.total_steps if request.HasField("total_steps") else None,
        )
        return await self.pin(config)

    def _resolve(self, part: str) -> str:
        """Return the id of the job that a part of it names; the part itself if there is no such job."""
        return self._queue.resolve_id(part) or part

    def _read_ended(self, job: str) -> JobConfig:
        """Return the config of a job that has ended (Refused if it has not, or its config can't be read)."""
        record = self._queue.find(job)
        if record is None:
            raise Refused(f"{_FIELD}.job: no job {job!r}; `tiermesh jobs --all` lists them")
        if record.state in LIVE_STATES:
            state = JobState.Name(record.state).lower()
            raise Refused(
                f"{_FIELD}.job: job {job} is {state}, expected one that has ended; wait for its end, or cancel it"
            )
        try:
            return JobConfig.from_json(self._queue.read_spec(job))
        except Refused as refused:
            reason = one_line(str(refused), 150)
            raise Refused(
                f"{_FIELD}.job: job {job} has a config that this version can't read: {reason}"
            ) from None


def _choose(start: StartConfig, found: StoredJob) -> StoredCheckpoint:
    """Return the checkpoint that a job starts from.

    Raises:
        Refused: there is no such one, or it is damaged.
    """
    if found.problem:
        raise Refused(f"{_FIELD}.job: job {start.job} can't be started from: {found.problem}")
    intact = [each for each in found.checkpoints if each.model_sha256]
    if start.step is None and intact:
        return intact[-1]
    chosen = next((each for each in intact if each.step == start.step), None)
    if chosen is None:
        steps = [str(each.step) for each in intact]
        more = "..., " if len(steps) > _MOST_STEPS_NAMED else ""
        wanted = "" if start.step is None else f" of step {start.step}"
        raise Refused(
            f"{_FIELD}.step: job {start.job} has no intact checkpoint{wanted}; it has those of steps: "
            f"{more}{', '.join(steps[-_MOST_STEPS_NAMED:]) or 'none'}"
        )
    return chosen
