"""Prometheus metrics of the aggregator, see metrics.py."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, Gauge

from services.caps import Cap
from services.config.job_parts import TrackerName
from services.protocol.activities import IDLE
from services.runtime.job_series import label_value
from services.runtime.metrics import SHARED_MEMORY_LINKS, OptimizerMetrics, RoleMetrics

_MOST_WAITS = 100
"""Maximum number of peers whose waits are served, the longest ones."""


class AggregatorMetrics(RoleMetrics):
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
            "Current wait for a peer that owes a running job something",
            ("role", "peer"),
            registry=self.registry,
        )
        self._queue = self._unlabelled("queue_length", "Jobs that are queued or running")
        self._running = self._gauge("job_running", "1 while the job runs, 0 once it has ended")
        self._running_jobs: frozenset[str] = frozenset()
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
        notifications = Counter(
            "tiermesh_notifications",
            "Messages to targets of jobs, by outcome: sent, repeated (told as a number later) or dropped",
            ("role", "outcome"),
            registry=self.registry,
        )
        outcomes = ("sent", "repeated", "dropped")
        self._notifications = {each: notifications.labels(self.role, each) for each in outcomes}
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
        self._shared = self._unlabelled("shared_memory_links", SHARED_MEMORY_LINKS)

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

    def set_jobs(self, *, queued: int, running: Collection[str]) -> None:
        """Set the jobs that have not ended.

        Args:
            queued: number of jobs that wait.
            running: ids of the jobs that run.
        """
        self._queue.set(queued + len(running))
        for ended in self._running_jobs.difference(running):
            self._of(self._running, ended).set(0)
            self._jobs.end(ended)
        self._running_jobs = frozenset(running)
        for job in running:
            self._of(self._running, job).set(1)

    def count_lost_log_lines(self, lines: int) -> None:
        """Count lines that are missing from jobs' logs."""
        self._lost_log_lines.inc(lines)

    def count_lost_points(self, tracker: str, points: int) -> None:
        """Count points of a job that a tracker did not take. Any thread may call."""
        self._lost_points[tracker].inc(points)

    def count_notifications(self, outcome: str, messages: int) -> None:
        """Count messages to targets of jobs: `sent`, `repeated` or `dropped`. Any thread may call."""
        self._notifications[outcome].inc(messages)

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
