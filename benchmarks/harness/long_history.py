"""An ended job with a long history of figures, which is written as the aggregator writes it, without the steps."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path

import numpy as np

from aggregator.history.columns import FIGURES, GENERATION, unknown_step
from aggregator.history.files import RecordFile
from aggregator.history.writer import MetricsHistory
from benchmarks.harness.watched_cluster import WatchedCluster, next_event
from protos import jobs_pb2

HISTORY_STEPS = 1_000_000
SMALL_JOB = {
    "training_config": {"model_type": "linear_regression", "batch_size": 8, "max_steps": 2},
    "linear_regression_config": {"num_features": 4, "num_targets": 2, "training_samples": 200},
    "device_config": {"backend": "emulator"},
}


async def make_history(cluster: WatchedCluster) -> str:
    """Run a small job to its end, give it a history of many steps, and return its id."""
    config = cluster.folder / "small.json"
    config.write_text(json.dumps(SMALL_JOB))
    job = await cluster.submit(str(config))
    async with aclosing(cluster.client.watch(job)) as events:
        await next_event(events, lambda event: event.job.state == jobs_pb2.SUCCEEDED)
    await asyncio.to_thread(_write_history, cluster.folder / "aggregator" / "metrics", job)
    return job


def _write_history(folder: Path, job: str) -> None:
    history = MetricsHistory(folder)
    history.remove(job)
    (folder / job).mkdir()
    file = RecordFile(folder / job, 1, writable=True)
    file.begin(1)
    records = np.repeat(unknown_step(), HISTORY_STEPS - 1)
    records[GENERATION] = 1
    for number, name in enumerate(FIGURES):
        records[name] = np.random.default_rng(number).random(len(records))
    file.write(0, records)
    file.close()
    last = jobs_pb2.Job(id=job, state=jobs_pb2.RUNNING, step=HISTORY_STEPS, generation=1, loss=1.0)
    history.record(jobs_pb2.JobEvent(job=last, kind="step", seconds=1.0))  # which makes the summaries
    history.close()
