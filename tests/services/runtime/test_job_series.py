"""Tests that the number of series does not grow with the number of jobs or of peers."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.job_series import KEPT_JOBS, KEPT_SECONDS, MAX_RUNNING_JOBS, JobSeries
from services.runtime.metrics import OptimizerMetrics, WorkerMetrics

HOSTILE = "\x1b[2J\r\n\u202e\x00" + "x" * 1_000_000


class Clock:
    """Time that a test sets."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def metrics_with(clock: Clock) -> AggregatorMetrics:
    metrics = AggregatorMetrics()
    metrics._jobs._clock = metrics.optimizer._jobs._clock = clock
    return metrics


def touch_all(metrics: WorkerMetrics | AggregatorMetrics | OptimizerMetrics, job: str) -> None:
    """Set every metric of a role that has the label `job`."""
    if isinstance(metrics, WorkerMetrics):
        metrics.count_computed(job, micro_batches=1, tokens=1, seconds=0.1)
        metrics.count_wait_for_weights(job, 0.1)
        metrics.count_passes(job, forward_seconds=0.1, backward_seconds=0.2, waited_seconds=0.1)
        metrics.count_sent_to_stages(job, 1)
        metrics.set_activation_memory(job, 0, 1)
        metrics.set_rates(job, 1, 1)
        for phase in ("MODEL_CREATION", "FORWARD_PASS"):
            metrics.set_memory(job, phase, device_bytes=1, device_peak_bytes=1, host_bytes=1)
        metrics.count_sent(job, 1)
        metrics.count_received(job, 1)
        metrics.set_weights_step(job, 1)
    elif isinstance(metrics, AggregatorMetrics):
        metrics.record_step(job, step=1, loss=1.0, seconds=0.1)
        metrics.set_compute(job, parameters=1, flops_per_token=1, mfu=0.5)
        metrics.count_commit(job, applied=True)
        metrics.count_verification(job, "passed")
        metrics.set_validation_loss(job, 1.0)
        metrics.set_efficiency(job, 0.5)
        metrics.set_compute(job, parameters=1, flops_per_token=6, mfu=0.5)
        metrics.count_sent(job, 1)
        metrics.count_received(job, 1)
        metrics.set_jobs(queued=0, running=[job])
        touch_all(metrics.optimizer, job)
    else:
        metrics.record_update(job, seconds=0.1, grad_norm=1, learning_rate=1)
        metrics.record_checkpoint(job, seconds=0.1, size_bytes=1)
        metrics.count_checkpoint_failure(job)


def end_job(metrics: WorkerMetrics | AggregatorMetrics | OptimizerMetrics, job: str) -> None:
    """End a job; an aggregator's own ends with the start of the next one."""
    if isinstance(metrics, WorkerMetrics):
        metrics.end_job()
    elif isinstance(metrics, AggregatorMetrics):
        metrics.optimizer.end_job(job)
    else:
        metrics.end_job(job)


def jobs_in(metrics: WorkerMetrics | AggregatorMetrics | OptimizerMetrics) -> set[str]:
    """Return the jobs that a scrape has series of."""
    return {
        sample.labels["job"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if "job" in sample.labels
    }


@pytest.mark.parametrize("kind", [WorkerMetrics, AggregatorMetrics, OptimizerMetrics])
def test_every_metric_with_a_job_is_touched_here(
    kind: type[WorkerMetrics | AggregatorMetrics | OptimizerMetrics],
) -> None:
    metrics = kind()
    touch_all(metrics, "job-1")
    for collector in metrics.registry._collector_to_names:
        if "job" in getattr(collector, "_labelnames", ()):
            assert collector._metrics, f"{collector._name}: add it to touch_all"  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [WorkerMetrics, AggregatorMetrics, OptimizerMetrics])
def test_a_scrape_has_the_same_size_after_any_number_of_jobs(
    kind: type[WorkerMetrics | AggregatorMetrics | OptimizerMetrics],
) -> None:
    metrics = kind()
    sizes = {}
    for number in range(400):
        if number:
            end_job(metrics, f"job-{number - 1:05}")
        touch_all(metrics, f"job-{number:05}")
        if number in (KEPT_JOBS, 100):
            sizes[number] = len(generate_latest(metrics.registry).splitlines())
    assert len(jobs_in(metrics)) == KEPT_JOBS + 1
    assert set(sizes.values()) == {len(generate_latest(metrics.registry).splitlines())}


def test_ended_jobs_are_served_for_an_hour() -> None:
    clock = Clock()
    metrics = metrics_with(clock)
    touch_all(metrics, "first")
    clock.seconds += 100
    metrics.set_jobs(queued=0, running=[])
    metrics.optimizer.end_job("first")
    clock.seconds += KEPT_SECONDS - 1
    assert jobs_in(metrics) == {"first"}
    clock.seconds += 2
    assert jobs_in(metrics) == set()


def test_running_jobs_stay_however_long_they_do_nothing() -> None:
    clock = Clock()
    metrics = metrics_with(clock)
    touch_all(metrics, "first")
    clock.seconds += 100 * KEPT_SECONDS
    assert jobs_in(metrics) == {"first"}
    touch_all(metrics, "second")
    assert jobs_in(metrics) == {"first", "second"}
    metrics.optimizer.end_job("first")
    clock.seconds += KEPT_SECONDS + 1
    metrics.count_sent("first", 1)  # a late message, which keeps the series of a job that has ended
    assert jobs_in(metrics) == {"first", "second"}
    clock.seconds += KEPT_SECONDS + 1
    assert jobs_in(metrics) == {"second"}


def test_several_jobs_run_at_once() -> None:
    clock = Clock()
    metrics = OptimizerMetrics()
    metrics._jobs._clock = clock
    for job in ("first", "second", "first"):
        touch_all(metrics, job)
    clock.seconds += 100 * KEPT_SECONDS
    assert jobs_in(metrics) == {"first", "second"}
    metrics.end_job("first")
    clock.seconds += KEPT_SECONDS + 1
    assert jobs_in(metrics) == {"second"}


def test_jobs_that_never_end_are_bounded_too() -> None:
    metrics = WorkerMetrics()
    for number in range(MAX_RUNNING_JOBS + KEPT_JOBS + 50):
        metrics.count_sent(f"job-{number}", 1)
    assert len(jobs_in(metrics)) == MAX_RUNNING_JOBS + KEPT_JOBS


def test_a_new_series_of_a_job_that_was_removed_starts_from_zero() -> None:
    registry = CollectorRegistry()
    series = JobSeries(registry, "worker")
    counter = Counter("bytes", "Bytes", ("job", "role"), registry=registry)
    series.add(counter, [()])
    series.child(counter, "first").inc(5)
    series.end("first")
    for number in range(KEPT_JOBS):
        series.child(counter, f"job-{number}").inc()
        series.end(f"job-{number}")
    assert registry.get_sample_value("bytes_total", {"job": "first", "role": "worker"}) is None
    series.child(counter, "first").inc(2)
    assert registry.get_sample_value("bytes_total", {"job": "first", "role": "worker"}) == 2


def test_counters_of_a_new_job_start_with_zero() -> None:
    metrics = AggregatorMetrics()
    metrics.set_jobs(queued=0, running=["job-1"])
    for name, others in (
        ("tiermesh_commits_total", {"outcome": "skipped"}),
        ("tiermesh_verifications_total", {"outcome": "faulty"}),
        ("tiermesh_sent_bytes_total", {}),
    ):
        labels = {"job": "job-1", "role": "aggregator", **others}
        assert metrics.registry.get_sample_value(name, labels) == 0


def test_the_queue_length_counts_what_its_help_says() -> None:
    metrics = AggregatorMetrics()
    value = lambda: metrics.registry.get_sample_value("tiermesh_queue_length", {"role": "aggregator"})  # noqa: E731
    metrics.set_jobs(queued=3, running=["job-1"])
    assert value() == 4
    metrics.set_jobs(queued=0, running=[])
    assert value() == 0


def test_labels_from_outside_are_printable_short_and_few() -> None:
    metrics = AggregatorMetrics()
    touch_all(metrics, HOSTILE)
    metrics.set_waits({f"{HOSTILE[-100:]}\x1b{number}": float(number) for number in range(1000)})
    text = generate_latest(metrics.registry).decode()
    assert all(line.isprintable() for line in text.splitlines())
    assert max(map(len, text.splitlines())) < 400
    waits = [line for line in text.splitlines() if line.startswith("tiermesh_wait_seconds{")]
    assert 0 < len(waits) <= 100
    assert "999.0" in "".join(waits)


def test_a_gauge_may_have_more_labels() -> None:
    registry = CollectorRegistry()
    series = JobSeries(registry, "worker")
    gauge = Gauge("memory", "Memory", ("job", "role", "phase"), registry=registry)
    series.add(gauge)
    series.labels(gauge, "job-1", "forward").set(3)
    labels = {"job": "job-1", "role": "worker", "phase": "forward"}
    assert registry.get_sample_value("memory", labels) == 3
