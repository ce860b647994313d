"""Defects that the seeds must find: most are fixes taken out again, as before an insider was reckoned with."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from aggregator.core import events as ev
from aggregator.core import requests
from aggregator.core.job_runs import JobRuns
from aggregator.core.membership import job_members
from aggregator.core.membership.claims import Answer, Claims, claim_of
from aggregator.core.progress import JobProgress
from aggregator.core.rows import row
from aggregator.core.rows.former import RowFormer
from aggregator.core.running_job import RunningJob
from aggregator.core.sums.step_sum import StepSum
from protos import cluster_pb2 as pb
from protos.jobs_pb2 import Claim
from services.errors import Refusal
from services.protocol.plan import EvaluationBatches, ParameterCount
from services.protocol.versions import Version
from tests.insider.lies import Trick
from tests.insider.ports import Role
from tests.simulation import simulated_aggregator


def waits_for_chunks_for_ever(patch: pytest.MonkeyPatch) -> None:
    """Never take a lease back that a worker has computed, whether it sends chunks or not."""
    patch.setattr(StepSum, "note_owed", lambda self, assignment, now: False)


def takes_loaded_weights_for_work(patch: pytest.MonkeyPatch) -> None:
    """Give a worker a lease in each step that was late with those of all steps before."""
    patch.setattr(row, "MOST_STALLS", sys.maxsize)


def tries_other_rows_only_with_a_spare(patch: pytest.MonkeyPatch) -> None:
    """Have a row that takes too long wait for ever where no spare is there."""
    replace_late = RowFormer.replace_late

    def with_a_spare(self: RowFormer, version: Version | None, now: float) -> None:
        if self._has_spare():
            replace_late(self, version, now)

    patch.setattr(RowFormer, "replace_late", with_a_spare)


def takes_any_layout(patch: pytest.MonkeyPatch) -> None:
    """Compare no layout with the job's number of parameters, nor with what its worker claims: finding 1 of issue 24."""

    def initialise(run: RunningJob, member: Any, description: pb.Description, now: float) -> None:
        order = pb.Initialise(job=run.job.id, layout=description.layout, files=description.files)
        run.out.put(ev.ToOptimizer(order))

    patch.setattr(ParameterCount, "check", lambda self, elements: None)
    patch.setattr(RunningJob, "initialise", initialise)


def binds_the_first_claim(patch: pytest.MonkeyPatch) -> None:
    """Refuse for ever what differs from the first worker's claim, and take no person's word: finding 2 of issue 24."""
    make = Claims._make

    def bind(claims: Claims, *arguments: Any, **options: Any) -> Answer:
        answer = make(claims, *arguments, **options)
        claims._job.claims[0].bound = True
        return answer

    patch.setattr(Claims, "_make", bind)
    patch.setattr(simulated_aggregator, "trust", lambda job, worker: Refusal("nobody decides"))


def takes_a_first_stage_s_number_of_batches(patch: pytest.MonkeyPatch) -> None:
    """Have one worker say how many held-out batches a job with stages has: a claim leaves the number out."""

    def without_batches(ready: pb.Ready) -> Claim:
        claim = claim_of(ready)
        claim.evaluation_batches *= not ready.stages
        return claim

    def learn_once(progress: JobProgress, ready: pb.Ready, now: float) -> None:
        if progress._evaluation_batches is None:
            learn(progress, ready, now)

    learn = JobProgress.learn_batches
    patch.setattr(JobProgress, "learn_batches", learn_once)
    patch.setattr(EvaluationBatches, "known", None)
    patch.setattr(EvaluationBatches, "check", lambda self, batches: None)
    patch.setattr(job_members, "claim_of", without_batches)


def cancels_whichever_job_runs(patch: pytest.MonkeyPatch) -> None:
    """End the job that runs when a person cancels another one, which waits in the queue."""
    cancel = requests._cancel

    def cancel_running(runs: JobRuns, request: ev.CancelRequested) -> None:
        cancel(runs, replace(request, job=next(iter(runs.by_id), request.job)))

    patch.setattr(requests, "_cancel", cancel_running)


ALLOCATES_WHAT_IS_DESCRIBED = {
    "role": Role.WORKER, "tricks": [Trick.FIELD], "kind": "description", "field": "layout",
}  # fmt: skip
"""What an insider lies about that has memory allocated for another layout: finding 1 of issue 24."""
PINS_WHAT_THE_FIRST_SAYS = {
    "role": Role.WORKER, "tricks": [Trick.FIELD], "kind": "ready", "field": "fingerprint",
}  # fmt: skip
"""What an insider lies about that has the honest refused for ever: finding 2 of issue 24."""

COUNTS_OTHER_BATCHES = {
    "role": Role.WORKER, "tricks": [Trick.FIELD], "kind": "ready", "field": "evaluation_batches",
}  # fmt: skip
"""What an insider lies about that has a job evaluate more or fewer batches than it has."""

MUTATIONS: list[Any] = [
    pytest.param(takes_any_layout, ALLOCATES_WHAT_IS_DESCRIBED, "elements are allocated"),
    pytest.param(binds_the_first_claim, PINS_WHAT_THE_FIRST_SAYS, "no progress"),
    pytest.param(
        takes_a_first_stage_s_number_of_batches, {"rows": True, **COUNTS_OTHER_BATCHES}, "validation loss"
    ),
    pytest.param(cancels_whichever_job_runs, {"role": Role.PERSON}, "job-0 is CANCELLED"),
    pytest.param(
        waits_for_chunks_for_ever,
        {"role": Role.WORKER, "tricks": [Trick.FIELD, Trick.WITHHELD], "kind": "ChunkHeader"},
        "",
    ),
    pytest.param(
        takes_loaded_weights_for_work,
        {"role": Role.WORKER, "tricks": [Trick.WITHHELD], "kind": "computed"},
        "",
    ),
    pytest.param(
        tries_other_rows_only_with_a_spare,
        {"rows": True, "role": Role.NEIGHBOUR, "tricks": [Trick.WITHHELD], "kind": "ArrayHeader"},
        "",
        marks=pytest.mark.long,
    ),
]
"""Mutations, what the insider lies about so that few seeds are needed, and what a seed that fails says."""
