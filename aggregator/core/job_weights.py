"""The weights of a running job: who gets them when, and what planes without tensors are told of them."""

from __future__ import annotations

from aggregator.core.membership.members import Member
from aggregator.core.running_job import RunningJob
from protos import plane_pb2 as plane
from services.protocol.versions import Version


def send_weights(run: RunningJob, now: float) -> None:
    """Order the newest weights for the workers that lack them.

    Those that compute something of the step come first. The others wait until they have them, or for the `silent`
    timeout, unless the step's checks need them.
    """
    version = run.router.weights.version
    if version is None:
        return
    lacking = [each for each in run.members.values() if each.lacks(version) and _has_use(run, each)]
    first = _find_first(run, version, now) if lacking else frozenset[int]()
    for member in lacking:
        parts = run.rows.weights_of(member)
        if (parts is None or parts) and (not first or member.session in first):
            run.router.send_weights(member, version, parts)


def _has_use(run: RunningJob, member: Member) -> bool:
    """Return whether a worker has use for weights: it stays, or leaves only after a lease that was just granted."""
    row = run.rows.find(member)
    return member.leaving_since_seconds is None or (row is not None and run.lease_book.holds_lease(row))


def _find_first(run: RunningJob, version: Version, now: float) -> frozenset[int]:
    """Return the workers that get weights before the others; none if those that compute have them."""
    step_sum = run.lease_book.step_sum
    if step_sum is None or step_sum.checks or now >= step_sum.begun_seconds + run.timeouts.silent:
        return frozenset()
    planned = step_sum.sessions()
    able = (each for each in run.members.values() if each.able)
    computing = [each for each in able if (row := run.rows.find(each)) and row.session in planned]
    if all(each.loaded_version == version for each in computing):
        return frozenset()
    return frozenset(each.session for each in computing)


def pass_through(run: RunningJob) -> None:
    """Tell a plane without tensors what of the job passes through it, once the layout is known."""
    if run.ended or run.progress.elements == run.passed_elements:
        return
    run.passed_elements = run.progress.elements
    run.out.put(
        plane.PassJob(
            job=run.job.id,
            elements=run.progress.elements,
            gradients=run.plan.wire.gradients,
            weights=run.plan.wire.weights,
            pieces=run.plan.stages > 1,
        )
    )
