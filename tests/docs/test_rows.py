"""What docs/internals/rows.md and docs/use/parallelism.md show of pipelines is what the commands print and take."""

from __future__ import annotations

from pathlib import Path

import yaml

from aggregator.core.rows.forming import Candidate, form_rows
from cli.cluster_status import describe_status
from protos import jobs_pb2
from services.config.load import load_job_document

DOCS = Path(__file__).parents[2] / "docs"
ROWS = (DOCS / "internals" / "rows.md").read_text()
PARALLELISM = (DOCS / "use" / "parallelism.md").read_text()


def member(name: str, stage: int | None, speed: float, seconds: float) -> jobs_pb2.Member:
    if stage is None:
        return jobs_pb2.Member(name=name, state="spare", seconds_since_heard=seconds)
    return jobs_pb2.Member(
        name=name, state="computing", step=2, row=(1 << 32) + 2, first_stage=stage, stages=1,
        micro_batches_per_second=speed, seconds_since_heard=seconds,
    )  # fmt: skip


def test_the_status_is_as_shown() -> None:
    status = jobs_pb2.ClusterStatus(
        running_jobs=["1123-124749-2a29275b"],
        waiting="phase train, step 2; rows with its weights: 1 of 1",
        workers=[member("w1", 1, 7.0, 0.2), member("w2", 0, 9.0, 0.2), member("w3", None, 0.0, 0.1)],
    )
    shown = ROWS.partition("$ tiermesh status\n")[2].partition("```")[0]
    assert shown.splitlines() == list(describe_status(status, ""))[2:]


def test_five_workers_and_two_stages_are_two_rows_and_a_spare() -> None:
    rows = form_rows(2, [Candidate(worker, 2) for worker in range(5)], [], shares=True)
    assert [[str(seat.stages) for seat in seats] for seats in rows] == [["stage 0", "stage 1"]] * 2
    assert ROWS.count("spare: it has built nothing") == 1


def test_the_example_of_stages_is_a_job() -> None:
    text = PARALLELISM.partition("```yaml\n")[2].partition("```")[0]
    document = yaml.safe_load(text) | {
        "training_config": {"data_path": "builtin:python-reference"},
        "transformer_config": {"num_blocks": 32},
    }
    job, _ = load_job_document(document, folder=DOCS)
    assert job.pipeline is not None and job.pipeline.blocks_per_stage == (8, 9, 9, 6)
    assert job.num_workers // job.stages == 2, "pipelines, as the comment says"
