"""Prometheus metrics of the roles, in base units.

The labels are `job` and `role`, and a few with a fixed set of values: none grows with steps, parameters or ended jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from typing import Any, get_args

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from services.caps import Cap
from services.config.job_parts import TrackerName
from services.protocol.activities import IDLE
from services.runtime.job_series import JobMetric, JobSeries, label_value
from services.transport.ports.admission import Refusal

_LABELS = ("job", "role")
_SHARED_MEMORY_LINKS = "Peers with which tensors are exchanged through shared memory"
_MOST_WAITS = 100
"""Maximum number of peers whose waits are served, the longest ones."""
_SECONDS_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class _RoleMetrics:
    """Base class of the metrics of a role.

    Attributes:
        registry: registry that has the metrics. Two roles of one process share it.
    """

    role = ""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or _new_registry()
        self._jobs = JobSeries(self.registry, self.role)

    def end_job(self) -> None:
        """Note that the current job has ended: its last values are served for a while."""
        self._jobs.end()

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


class WorkerMetrics(_RoleMetrics):
    """Metrics of a worker."""

    role = "worker"

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
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
        self._shared = self._unlabelled("shared_memory_links", _SHARED_MEMORY_LINKS)
        self._fit = self._unlabelled("mesh_fit", "0 if the mesh of the job can't be opened, else 1")
        self._fit.set(1)

    def set_mesh_fit(self, fit: bool) -> None:
        """Set whether the mesh of the job could be opened."""
        self._fit.set(float(fit))

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
        self._bytes_sent(job).inc(payload_bytes)

    def count_received(self, job: str, payload_bytes: int) -> None:
        """Count bytes of tensor payload received."""
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


class AggregatorMetrics(_RoleMetrics):
    """Metrics of an aggregator."""

    role = "aggregator"

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        super().__init__(registry)
        self._step = self._gauge("step", "Updates of the job so far")
        self._loss = self._gauge("loss", "Mean loss of the newest step in nats")
        self._validation_loss = self._gauge(
            "validation_loss", "Newest loss over the validation split in nats"
        )
        self._parameters = self._gauge("parameters", "Parameters of the job's model")
        self._flops_per_token = self._gauge(
            "flops_per_token", "Floating-point operations of training on a token: 6N + 12LHQT"
        )
        self._mfu = self._gauge(
            "mfu_ratio", "Model FLOPs utilisation: share of the workers' peak; absent if a peak is unknown"
        )
        self._step_seconds = self._seconds(
            "step", "Duration of a step, from its first lease to its last new weights"
        )
        self._commits = self._counter_by(
            "commits",
            "Steps committed, by outcome: applied or skipped",
            {"outcome": ("applied", "skipped")},
        )
        self._verifications = self._counter_by(
            "verifications",
            "Micro-batches computed twice, by outcome: passed, faulty, undecided or abandoned",
            {"outcome": ("passed", "faulty", "undecided", "abandoned")},
        )
        self._bytes_sent = self._payload("sent_bytes", "Bytes of tensor payload sent")
        self._bytes_received = self._payload("received_bytes", "Bytes of tensor payload received")
        self._workers = self._unlabelled("workers_connected", "Workers connected")
        idle = Gauge(
            "tiermesh_workers_idle",
            "Workers connected that have no work, by reason",
            ("role", "reason"),
            registry=self.registry,
        )
        self._idle = {each.value: idle.labels(self.role, each.value) for each in IDLE}
        self._efficiency = self._gauge(
            "job_efficiency", "Share of its workers' time in which they computed, since the job's start"
        )
        self._shards = self._unlabelled("shards_connected", "Shards connected; 0 without shards")
        self._wait = Gauge(
            "tiermesh_wait_seconds",
            "Current wait for a peer that owes the running job something",
            ("role", "peer"),
            registry=self.registry,
        )
        self._queue = self._unlabelled("queue_length", "Jobs that are queued or running")
        self._running = self._gauge("job_running", "1 while the job runs, 0 once it has ended")
        self._running_job = ""
        self._lost_log_lines = Counter(
            "tiermesh_log_lines_lost",
            "Lines missing from jobs' logs, since the disk was full or the log had reached its cap",
            ("role",),
            registry=self.registry,
        ).labels(self.role)
        caps_reached = Counter(
            "tiermesh_caps_reached",
            "Times a cap was reached, by cap: " + ", ".join(each.value for each in Cap),
            ("role", "cap"),
            registry=self.registry,
        )
        self._caps_reached = {cap: caps_reached.labels(self.role, cap.value) for cap in Cap}

        lost_points = Counter(
            "tiermesh_tracker_points_lost",
            "Points of jobs that trackers did not take, by tracker: csv, jsonl, tensorboard, wandb or mlflow",
            ("role", "tracker"),
            registry=self.registry,
        )
        self._lost_points = {name: lost_points.labels(self.role, name) for name in get_args(TrackerName)}
        self._pruned_jobs = Counter(
            "tiermesh_pruned_jobs", "Ended jobs that were pruned", ("role",), registry=self.registry
        ).labels(self.role)
        self._pruned_bytes = Counter(
            "tiermesh_pruned_bytes",
            "Bytes of checkpoints and logs that were pruned",
            ("role",),
            registry=self.registry,
        ).labels(self.role)
        self._epoch = self._unlabelled("epoch", "Epoch: number of aggregator starts so far")
        self._leader = self._unlabelled("leader", "1 if this aggregator leads, 0 if it is a standby")
        self._standbys = self._unlabelled("standbys", "Standby aggregators of this one")
        self._shared = self._unlabelled("shared_memory_links", _SHARED_MEMORY_LINKS)

    def record_step(self, job: str, *, step: int, loss: float, seconds: float | None) -> None:
        """Record a finished step.

        Args:
            job: id of the job.
            step: number of updates so far.
            loss: mean loss of the step in nats.
            seconds: duration of the step; None if it is unknown.
        """
        self._of(self._step, job).set(step)
        self._of(self._loss, job).set(loss)
        if seconds is not None:
            self._of(self._step_seconds, job).observe(seconds)

    def set_compute(self, job: str, *, parameters: int, flops_per_token: int, mfu: float | None) -> None:
        """Set what a job computes.

        Args:
            job: id of the job.
            parameters: number of its model's parameters; 0 if it is unknown.
            flops_per_token: floating-point operations of training on a token; 0 if they are unknown.
            mfu: share of the workers' peak that they are; None if it is unknown.
        """
        if parameters:
            self._of(self._parameters, job).set(parameters)
        if flops_per_token:
            self._of(self._flops_per_token, job).set(flops_per_token)
        if mfu is not None:
            self._of(self._mfu, job).set(mfu)
        else:
            self._mfu.remove_by_labels({"job": label_value(job), "role": self.role})

    def count_commit(self, job: str, *, applied: bool) -> None:
        """Count a committed step."""
        self._of(self._commits, job, "applied" if applied else "skipped").inc()

    def count_verification(self, job: str, outcome: str) -> None:
        """Count a micro-batch that was chosen to be computed twice."""
        self._of(self._verifications, job, outcome).inc()

    def set_validation_loss(self, job: str, loss: float) -> None:
        """Set the newest validation loss."""
        self._of(self._validation_loss, job).set(loss)

    def count_sent(self, job: str, payload_bytes: int) -> None:
        """Count bytes of tensor payload sent to workers and optimizer."""
        self._bytes_sent(job).inc(payload_bytes)

    def count_received(self, job: str, payload_bytes: int) -> None:
        """Count bytes of tensor payload received from workers and optimizer."""
        self._bytes_received(job).inc(payload_bytes)

    def set_waits(self, wait_seconds: Mapping[str, float]) -> None:
        """Set the current wait for each peer that owes something, in seconds, and remove all other peers.

        Only the 100 longest waits are served.
        """
        longest = sorted(wait_seconds.items(), key=lambda item: item[1])[-_MOST_WAITS:]
        self._wait.clear()
        for peer, seconds in longest:
            self._wait.labels(self.role, label_value(peer)).set(seconds)

    def set_workers(self, count: int) -> None:
        """Set the number of connected workers."""
        self._workers.set(count)

    def set_idle_workers(self, counts: Mapping[str, int]) -> None:
        """Set the number of workers without work, by reason, a value of `Activity`."""
        for reason, gauge in self._idle.items():
            gauge.set(counts.get(reason, 0))

    def set_efficiency(self, job: str, share: float | None) -> None:
        """Set the share of its workers' time in which they computed; None before there is any."""
        if share is not None:
            self._of(self._efficiency, job).set(share)

    def set_shards(self, count: int) -> None:
        """Set the number of connected shards."""
        self._shards.set(count)

    def set_jobs(self, *, queued: int, running: str) -> None:
        """Set the jobs that have not ended.

        Args:
            queued: number of jobs that wait.
            running: id of the job that runs; empty for none.
        """
        self._queue.set(queued + bool(running))
        if self._running_job and self._running_job != running:
            self._of(self._running, self._running_job).set(0)
            self._jobs.end(self._running_job)
        self._running_job = running
        if running:
            self._of(self._running, running).set(1)

    def count_lost_log_lines(self, lines: int) -> None:
        """Count lines that are missing from jobs' logs."""
        self._lost_log_lines.inc(lines)

    def count_lost_points(self, tracker: str, points: int) -> None:
        """Count points of a job that a tracker did not take. Any thread may call."""
        self._lost_points[tracker].inc(points)

    def count_cap_reached(self, cap: Cap) -> None:
        """Count that a cap was reached."""
        self._caps_reached[cap].inc()

    def count_pruned(self, *, jobs: int, size_bytes: int) -> None:
        """Count whole jobs that were pruned, and bytes of checkpoints and logs."""
        self._pruned_jobs.inc(jobs)
        self._pruned_bytes.inc(size_bytes)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""
        self._epoch.set(epoch)

    def set_leading(self, leads: bool) -> None:
        """Set whether this aggregator leads, and reset jobs, workers and standbys, which only a leader has."""
        self._leader.set(float(leads))
        self.set_jobs(queued=0, running="")
        self._workers.set(0)
        self.set_idle_workers({})
        self._standbys.set(0)

    def set_standbys(self, count: int) -> None:
        """Set the number of standbys."""
        self._standbys.set(count)

    @cached_property
    def optimizer(self) -> OptimizerMetrics:
        """Metrics of the optimizer that runs inside this aggregator, in the same registry."""
        return OptimizerMetrics(self.registry)

    def change_shared_memory_links(self, change: int) -> None:
        """Add 1 for a link that starts to use shared memory, -1 for one that stops."""
        self._shared.inc(change)


class OptimizerMetrics(_RoleMetrics):
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
