"""The register of jobs: it finds a job by a part of its id, and advises on workers that a step is too small for."""

from __future__ import annotations

from pathlib import Path

from aggregator.core.job_report import Record
from aggregator.job_register import JobRegister
from aggregator.storage.job_queue import JobQueue
from protos.jobs_pb2 import RUNNING, Job
from services.caps import Caps
from services.config.job import JobConfig
from services.files.store import FileStore
from services.sizing.idle import advise_on_idle_workers
from tests.services.sizing.test_idle import job as make_config


def make_register(folder: Path, queue: JobQueue, live: dict[str, Record]) -> JobRegister:
    return JobRegister(queue, live, lambda event: None, Caps(), FileStore(folder / "files"))


def running(config: JobConfig, workers: int) -> Record:
    job = Job(id="job-1", state=RUNNING, workers=workers)
    return Record(job, config.to_json(), config.plan())


def test_a_running_job_with_too_few_micro_batches_is_advised_how_to_use_all_workers(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        config = make_config(batch_size=60)
        for workers in (0, 1, 5):
            record = running(config, workers)
            register = make_register(tmp_path, queue, {"job-1": record})
            expected = advise_on_idle_workers(config, workers) or ""
            assert register.advise(record.job) == expected
        assert expected.startswith("a step has 1 micro-batch, so 1 of 5 workers computes; ")
        assert make_register(tmp_path, queue, {}).advise(record.job) == "", "it has ended"


def test_a_live_job_is_looked_up_by_a_part_of_its_id_too(tmp_path: Path) -> None:
    with JobQueue(tmp_path / "queue.sqlite") as queue:
        queue.raise_epoch()
        stored = queue.add(Job(name="a", state=RUNNING, submitted_seconds=1.8e9), "{}")
        config = make_config()
        live = Record(Job(id=stored.id, step=7), config.to_json(), config.plan())
        register = make_register(tmp_path, queue, {stored.id: live})
        for part in (stored.id, stored.id[-6:], "latest"):
            found = register.look_up(part)
            assert found is live.job, "the live record, which is newer than the one on disk"
        assert register.look_up("zzz") is None
