"""Tests of the metrics that a scrape of each role returns."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from prometheus_client import CollectorRegistry

from services.errors import NotYet, Refused
from services.runtime.aggregator_metrics import AggregatorMetrics
from services.runtime.metrics import WorkerMetrics
from services.runtime.metrics_server import start_metrics
from services.transport.security import Security


@contextmanager
def serving(registry: CollectorRegistry) -> Iterator[int]:
    """Serve metrics; yields the port."""
    server = start_metrics("127.0.0.1:0", registry, Security())
    try:
        yield server.port
    finally:
        server.stop()


def scrape(registry: CollectorRegistry) -> set[str]:
    """Return the lines of a scrape, without any proxy of the environment."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with (
        serving(registry) as port,
        opener.open(f"http://127.0.0.1:{port}/metrics", timeout=20) as reply,
    ):
        return set(reply.read().decode().splitlines())


def test_worker_metrics_are_scraped() -> None:
    metrics = WorkerMetrics()
    metrics.set_connected(True)
    metrics.count_computed("job-1", micro_batches=4, tokens=3072, seconds=2.0)
    metrics.count_computed("job-1", micro_batches=1, tokens=768, seconds=0.5)
    metrics.count_wait_for_weights("job-1", 0.25)
    metrics.count_sent("job-1", 1 << 20)
    metrics.count_received("job-1", 2 << 20)
    metrics.set_weights_step("job-1", 7)
    metrics.set_rates("job-1", 12.5, 3200.0)
    metrics.set_memory("job-1", "FORWARD_PASS", device_bytes=4096, device_peak_bytes=8192, host_bytes=1 << 20)
    metrics.count_passes("job-1", forward_seconds=1.0, backward_seconds=2.0, waited_seconds=0.5)
    metrics.count_sent_to_stages("job-1", 4096)
    metrics.set_activation_memory("job-1", 3, 2048)
    metrics.set_mesh_fit(False)
    lines = scrape(metrics.registry)
    labels = '{job="job-1",role="worker"}'
    assert {
        f"tiermesh_micro_batches_total{labels} 5.0",
        f"tiermesh_tokens_total{labels} 3840.0",
        f"tiermesh_compute_seconds_total{labels} 2.5",
        f"tiermesh_waited_for_weights_seconds_total{labels} 0.25",
        f"tiermesh_sent_bytes_total{labels} 1.048576e+06",
        f"tiermesh_received_bytes_total{labels} 2.097152e+06",
        f"tiermesh_weights_step{labels} 7.0",
        f"tiermesh_samples_per_second{labels} 12.5",
        f"tiermesh_tokens_per_second{labels} 3200.0",
        'tiermesh_device_memory_bytes{job="job-1",phase="FORWARD_PASS",role="worker"} 4096.0',
        'tiermesh_device_memory_peak_bytes{job="job-1",phase="FORWARD_PASS",role="worker"} 8192.0',
        'tiermesh_host_memory_bytes{job="job-1",phase="FORWARD_PASS",role="worker"} 1.048576e+06',
        'tiermesh_pass_seconds_total{direction="forward",job="job-1",role="worker"} 1.0',
        'tiermesh_pass_seconds_total{direction="backward",job="job-1",role="worker"} 2.0',
        f"tiermesh_waited_for_stages_seconds_total{labels} 0.5",
        f"tiermesh_sent_to_stages_bytes_total{labels} 4096.0",
        'tiermesh_activation_memory_bytes{job="job-1",role="worker",stage="3"} 2048.0',
        'tiermesh_mesh_fit{role="worker"} 0.0',
        'tiermesh_aggregator_connected{role="worker"} 1.0',
    } <= lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_aggregator_metrics_include_those_of_its_optimizer() -> None:
    aggregator = AggregatorMetrics()
    optimizer = aggregator.optimizer
    aggregator.set_leading(True)
    aggregator.set_standbys(1)
    aggregator.record_step("job-1", step=3, loss=2.5, seconds=0.1)
    aggregator.set_compute("job-1", parameters=7, flops_per_token=42, mfu=0.25)
    aggregator.count_commit("job-1", applied=True)
    aggregator.count_commit("job-1", applied=False)
    aggregator.count_verification("job-1", "passed")
    aggregator.set_validation_loss("job-1", 2.25)
    aggregator.count_sent("job-1", 5)
    aggregator.count_received("job-1", 6)
    aggregator.set_workers(2)
    aggregator.set_shards(3)
    aggregator.set_jobs(queued=1, running=["job-1"])
    aggregator.set_epoch(4)
    optimizer.record_update("job-1", seconds=0.25, grad_norm=1.5, learning_rate=0.001)
    optimizer.record_checkpoint("job-1", seconds=0.5, size_bytes=4096)
    lines = scrape(aggregator.registry)
    labels = '{job="job-1",role="aggregator"}'
    inner = '{job="job-1",role="optimizer"}'
    assert {
        f"tiermesh_step{labels} 3.0",
        f"tiermesh_loss{labels} 2.5",
        f"tiermesh_validation_loss{labels} 2.25",
        f"tiermesh_step_seconds_sum{labels} 0.1",
        f"tiermesh_parameters{labels} 7.0",
        f"tiermesh_flops_per_token{labels} 42.0",
        f"tiermesh_mfu_ratio{labels} 0.25",
        'tiermesh_commits_total{job="job-1",outcome="applied",role="aggregator"} 1.0',
        'tiermesh_commits_total{job="job-1",outcome="skipped",role="aggregator"} 1.0',
        'tiermesh_verifications_total{job="job-1",outcome="passed",role="aggregator"} 1.0',
        'tiermesh_workers_connected{role="aggregator"} 2.0',
        'tiermesh_shards_connected{role="aggregator"} 3.0',
        'tiermesh_queue_length{role="aggregator"} 2.0',
        f"tiermesh_job_running{labels} 1.0",
        'tiermesh_epoch{role="aggregator"} 4.0',
        'tiermesh_leader{role="aggregator"} 1.0',
        'tiermesh_standbys{role="aggregator"} 1.0',
        f"tiermesh_updates_total{inner} 1.0",
        f"tiermesh_update_seconds_sum{inner} 0.25",
        f"tiermesh_grad_norm{inner} 1.5",
        f"tiermesh_learning_rate{inner} 0.001",
        f"tiermesh_checkpoint_seconds_sum{inner} 0.5",
        f"tiermesh_checkpoint_bytes{inner} 4096.0",
    } <= lines


def test_an_unknown_share_of_the_peak_is_absent_and_not_0() -> None:
    aggregator = AggregatorMetrics()
    aggregator.set_compute("job-1", parameters=7, flops_per_token=42, mfu=None)
    assert "tiermesh_mfu_ratio{" not in "\n".join(scrape(aggregator.registry))
    aggregator.set_compute("job-1", parameters=7, flops_per_token=42, mfu=0.25)
    aggregator.set_compute("job-1", parameters=7, flops_per_token=42, mfu=None)
    lines = "\n".join(scrape(aggregator.registry))
    assert "tiermesh_parameters{" in lines
    assert "tiermesh_mfu_ratio{" not in lines


def test_metrics_port_in_use_or_without_tls_is_refused() -> None:
    metrics = WorkerMetrics()
    with (
        serving(metrics.registry) as port,
        pytest.raises(NotYet, match=rf"metrics address 127.0.0.1:{port}.*in use"),
    ):
        start_metrics(f"127.0.0.1:{port}", metrics.registry, Security())
    with pytest.raises(Refused, match="neither TLS nor --insecure"):
        start_metrics("0.0.0.0:0", metrics.registry, Security())
