"""Prometheus metrics of the roles, in base units; the aggregator's are in aggregator_metrics.py.

The labels are `job` and `role`, and a few with a fixed set of values: none grows with steps, parameters or ended jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from services.runtime.job_series import JobMetric, JobSeries
from services.transport.ports.admission import Refusal

_LABELS = ("job", "role")
SHARED_MEMORY_LINKS = "Peers with which tensors are exchanged through shared memory"
_SECONDS_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class RoleMetrics:
    """Base class of the metrics of a role.

    Attributes:
        registry: registry that has the metrics. Two roles of one process share it.
    """

    role = ""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or _new_registry()
        self._jobs = JobSeries(self.registry, self.role)

    def _of(self, metric: JobMetric, job: str, *others: str) -> Any:
        """Return the series of a job."""
        return self._jobs.labels(metric, job, *others)

    def _counter(self, name: str, text: str) -> Counter:
        return self._counter_by(name, text, {})

    def _counter_by(self, name: str, text: str, values: Mapping[str, Collection[str]]) -> Counter:
        """Return a counter with at most one more label, of which all values are known."""
        counter = Counter(f"tiermesh_{name}", text, (*_LABELS, *values), registry=self.registry)
        known = next(iter(values.values()), None)
        self._jobs.add(counter, [()] if known is None else [(value,) for value in known])
        return counter

    def _payload(self, name: str, text: str) -> Callable[[str], Counter]:
        """Return a function from job to its counter."""
        counter = self._counter(name, text)
        return lambda job: self._jobs.child(counter, job)

    def _unlabelled(self, name: str, text: str) -> Gauge:
        return Gauge(f"tiermesh_{name}", text, ("role",), registry=self.registry).labels(self.role)

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        gauge = Gauge(f"tiermesh_{name}", text, (*_LABELS, *labels), registry=self.registry)
        self._jobs.add(gauge)
        return gauge

    def _seconds(self, name: str, text: str) -> Histogram:
        histogram = Histogram(
            f"tiermesh_{name}_seconds", text, _LABELS, registry=self.registry, buckets=_SECONDS_BUCKETS
        )
        self._jobs.add(histogram)
        return histogram


class ConnectionMetrics:
    """Metrics of a daemon's ports.

    Args:
        registry: registry of the daemon's metrics.
        role: name of the role.
    """

    def __init__(self, registry: CollectorRegistry, role: str) -> None:
        self._role = role
        self._refused = Counter(
            "tiermesh_connections_refused_total",
            "Connections refused by the limits of a port, by reason: all, pending, address, rate or descriptors",
            ("role", "port", "reason"),
            registry=registry,
        )

    def counter_of(self, port: str) -> Callable[[Refusal], None]:
        """Return a function that counts a refused connection of a port: `main`, `tensors` or `metrics`."""
        by_reason = {each: self._refused.labels(self._role, port, each.value) for each in Refusal}
        return lambda refusal: by_reason[refusal].inc()


class WorkerMetrics(RoleMetrics):
    """Metrics of a worker.

    Attributes:
        sent_bytes: tensor payload sent for all jobs so far.
        received_bytes: the same, received.
    """

    role = "worker"

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        self.sent_bytes = self.received_bytes = 0
        self._micro_batches = self._counter(
            "micro_batches", "Micro-batches computed, each a forward and a backward pass"
        )
        self._tokens = self._counter("tokens", "Tokens of the micro-batches computed")
        self._compute = self._counter("compute_seconds", "Time spent in forward and backward passes")
        self._waited = self._counter(
            "waited_for_weights_seconds",
            "Time during leases spent waiting for weights to arrive and be loaded onto the mesh",
        )
        self._passes = self._counter_by(
            "pass_seconds",
            "Time of a pipeline's passes, by direction: forward or backward; without waits",
            {"direction": ("forward", "backward")},
        )
        self._waited_for_stages = self._counter(
            "waited_for_stages_seconds",
            "Time during leases spent waiting for arrays of other stages' workers, or for room to send them",
        )
        self._sent_to_stages = self._payload(
            "sent_to_stages_bytes",
            "Bytes of activations, and of their gradients, sent to other stages' workers",
        )
        self._activation_memory = self._gauge(
            "activation_memory_bytes",
            "Peak memory of each chip that the passes in flight of a stage keep, in the newest lease",
            "stage",
        )
        self._bytes_sent = self._payload("sent_bytes", "Bytes of tensor payload sent")
        self._bytes_received = self._payload("received_bytes", "Bytes of tensor payload received")
        self._step = self._gauge("weights_step", "Step of the newest weights that are complete on the mesh")
        self._samples_rate = self._gauge(
            "samples_per_second", "Samples trained on per second, over the newest leases"
        )
        self._tokens_rate = self._gauge(
            "tokens_per_second", "Tokens trained on per second, over the newest leases"
        )
        self._device_memory = self._gauge(
            "device_memory_bytes",
            "Memory of each chip used by the job at the end of a phase of the first iteration",
            "phase",
        )
        self._device_peak = self._gauge(
            "device_memory_peak_bytes",
            "Peak memory of each chip used by the job up to the end of a phase",
            "phase",
        )
        self._host_memory = self._gauge(
            "host_memory_bytes",
            "Resident memory of the process at the end of a phase of the first iteration",
            "phase",
        )
        self._connected = self._unlabelled("aggregator_connected", "1 if the aggregator answers, else 0")
        self._shared = self._unlabelled("shared_memory_links", SHARED_MEMORY_LINKS)
        self._fit = self._unlabelled("mesh_fit", "0 if the mesh of the job can't be opened, else 1")
        self._fit.set(1)
        self._opening = self._unlabelled("mesh_open_seconds", "time that the newest opening of a mesh took")
        self._closing = self._unlabelled("mesh_close_seconds", "time that the newest closing of a mesh took")

    def end_job(self) -> None:
        """Note that the worker has left its job, whose last values are served for a while."""
        self._jobs.end()

    def set_mesh_fit(self, fit: bool) -> None:
        """Set whether the mesh of the job could be opened."""
        self._fit.set(float(fit))

    def set_mesh_open_seconds(self, seconds: float) -> None:
        """Set how long the newest opening of a mesh took."""
        self._opening.set(seconds)

    def set_mesh_close_seconds(self, seconds: float) -> None:
        """Set how long the newest closing of a mesh took."""
        self._closing.set(seconds)

    def count_computed(self, job: str, *, micro_batches: int, tokens: int, seconds: float) -> None:
        """Count computed micro-batches, their tokens, and the time of their passes."""
        self._of(self._micro_batches, job).inc(micro_batches)
        self._of(self._tokens, job).inc(tokens)
        self._of(self._compute, job).inc(seconds)

    def count_wait_for_weights(self, job: str, seconds: float) -> None:
        """Count time during a lease in which weights arrived or were loaded, outside its passes."""
        self._of(self._waited, job).inc(seconds)

    def count_passes(
        self, job: str, *, forward_seconds: float, backward_seconds: float, waited_seconds: float
    ) -> None:
        """Count the time of a pipeline's passes, and that of waits for other stages' workers."""
        self._of(self._passes, job, "forward").inc(forward_seconds)
        self._of(self._passes, job, "backward").inc(backward_seconds)
        self._of(self._waited_for_stages, job).inc(waited_seconds)

    def count_sent_to_stages(self, job: str, payload_bytes: int) -> None:
        """Count bytes of arrays sent to other stages' workers."""
        self._sent_to_stages(job).inc(payload_bytes)

    def set_activation_memory(self, job: str, stage: int, kept_bytes: int) -> None:
        """Set the peak memory of a chip that the passes in flight of a stage keep."""
        self._of(self._activation_memory, job, str(stage)).set(kept_bytes)

    def set_rates(self, job: str, samples_per_second: float, tokens_per_second: float) -> None:
        """Set samples and tokens per second of wall-clock time."""
        self._of(self._samples_rate, job).set(samples_per_second)
        self._of(self._tokens_rate, job).set(tokens_per_second)

    def set_memory(
        self, job: str, phase: str, *, device_bytes: int, device_peak_bytes: int, host_bytes: int
    ) -> None:
        """Set the memory at the end of a phase of the first iteration, in bytes; device memory is per chip."""
        self._of(self._device_memory, job, phase).set(device_bytes)
        self._of(self._device_peak, job, phase).set(device_peak_bytes)
        self._of(self._host_memory, job, phase).set(host_bytes)

    def count_sent(self, job: str, payload_bytes: int) -> None:
        """Count bytes of tensor payload sent."""
        self.sent_bytes += payload_bytes
        self._bytes_sent(job).inc(payload_bytes)

    def count_received(self, job: str, payload_bytes: int) -> None:
        """Count bytes of tensor payload received."""
        self.received_bytes += payload_bytes
        self._bytes_received(job).inc(payload_bytes)

    def set_weights_step(self, job: str, step: int) -> None:
        """Set the step of the newest weights that are complete on the mesh."""
        self._of(self._step, job).set(step)

    def set_connected(self, connected: bool) -> None:
        """Set whether the aggregator answers."""
        self._connected.set(float(connected))

    def change_shared_memory_links(self, change: int) -> None:
        """Add 1 for a link that starts to use shared memory, -1 for one that stops."""
        self._shared.inc(change)


class OptimizerMetrics(RoleMetrics):
    """Metrics of an optimizer. In 2 tiers they are in the aggregator's registry, still with role `optimizer`."""

    role = "optimizer"

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        self._updates = self._counter("updates", "Updates of the master weights")
        self._update_seconds = self._seconds("update", "Duration of an update of all master weights")
        self._grad_norm = self._gauge("grad_norm", "Global norm of the newest mean gradient, before clipping")
        self._learning_rate = self._gauge("learning_rate", "Learning rate of the newest update")
        self._checkpoint_seconds = self._seconds("checkpoint", "Duration of writing a checkpoint")
        self._checkpoint_failures = self._counter(
            "checkpoint_failures", "Checkpoints that could not be written"
        )
        self._checkpoint_bytes = self._gauge("checkpoint_bytes", "Size of the newest checkpoint")
        self._checkpoint_time = self._gauge(
            "checkpoint_timestamp_seconds", "Unix time at which the newest checkpoint was complete"
        )

    def end_job(self, job: str) -> None:
        """Note that a job has ended: its last values are served for a while."""
        self._jobs.end(job)

    def record_update(self, job: str, *, seconds: float, grad_norm: float, learning_rate: float) -> None:
        """Record an update of all master weights."""
        self._of(self._updates, job).inc()
        self._of(self._update_seconds, job).observe(seconds)
        self._of(self._grad_norm, job).set(grad_norm)
        self._of(self._learning_rate, job).set(learning_rate)

    def record_checkpoint(self, job: str, *, seconds: float, size_bytes: int) -> None:
        """Record a complete checkpoint."""
        self._of(self._checkpoint_seconds, job).observe(seconds)
        self._of(self._checkpoint_bytes, job).set(size_bytes)
        self._of(self._checkpoint_time, job).set_to_current_time()

    def count_checkpoint_failure(self, job: str) -> None:
        """Count a checkpoint that could not be written."""
        self._of(self._checkpoint_failures, job).inc()


def _new_registry() -> CollectorRegistry:
    """Return a registry with the metrics of every process: memory, CPU time, open files, Python version."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry
