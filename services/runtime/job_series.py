"""Series of metrics with a label `job`: those of running jobs stay, those of ended jobs for a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.registry import Collector

from services.printable import printable

KEPT_JOBS = 20
"""Maximum number of ended jobs whose last values are still served."""
KEPT_SECONDS = 3600.0
"""Time for which they are served after the job's last change."""
MAX_RUNNING_JOBS = 1000
"""Maximum number of jobs that count as running; above it, the one that began first counts as ended."""
LABEL_CHARACTERS = 100
"""Longest value of a label that comes from outside, such as a job's id or a peer's name."""

JobMetric = Counter | Gauge | Histogram


def label_value(text: str) -> str:
    """Return a text from outside as the value of a label: printable and short."""
    return printable(text, LABEL_CHARACTERS)


class JobSeries(Collector):
    """Keeps the number of series bounded, however many jobs there have been.

    The registry calls `collect` first in each scrape, so that nothing outdated is served.

    Args:
        registry: registry of the metrics.
        role: value of the label `role`.
        clock: monotonic time in seconds.
    """

    def __init__(
        self, registry: CollectorRegistry, role: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._role = role
        self._clock = clock
        self._lock = Lock()
        self._metrics: list[JobMetric] = []
        self._zeros: list[tuple[Counter, tuple[str, ...]]] = []
        self._children: dict[tuple[JobMetric, str], Any] = {}
        self._running: dict[str, None] = {}  # labels, in the order of their first value
        self._ended: OrderedDict[str, float] = OrderedDict()  # when each last changed, the oldest first
        registry.register(self)

    def add(self, metric: JobMetric, zeros: Iterable[tuple[str, ...]] = ()) -> None:
        """Manage the series of a metric with the labels `job` and `role`, and perhaps others.

        Args:
            metric: the metric; only this object makes its series.
            zeros: values of its other labels. For each of them a job's counter starts with 0, because Prometheus sees
                no increase in a series that begins with 1.
        """
        self._metrics.append(metric)
        if isinstance(metric, Counter):
            self._zeros += [(metric, others) for others in zeros]

    def labels(self, metric: JobMetric, job: str, *others: str) -> Any:
        """Return the series of a job, for a value that changes now."""
        label = self._touch(job)
        return metric.labels(label, self._role, *others)

    def child(self, metric: JobMetric, job: str) -> Any:
        """Return the series of a job like `labels`, without a lookup by labels: that is too slow for each chunk."""
        label = self._touch(job)
        found = self._children.get((metric, label))
        if found is None:
            found = self._children[metric, label] = metric.labels(label, self._role)
        return found

    def end(self, job: str | None = None) -> None:
        """Note that a job has ended.

        Args:
            job: id of the job; None for all that run.
        """
        with self._lock:
            for label in list(self._running) if job is None else [label_value(job)]:
                self._end(label)
            self._forget()

    def _end(self, label: str) -> None:
        if label in self._running:
            del self._running[label]
            self._ended[label] = self._clock()

    def collect(self) -> Iterable[Metric]:
        """Remove what is outdated; there are no metrics of its own."""
        with self._lock:
            self._forget()
        return ()

    def describe(self) -> Iterable[Metric]:
        """Return no metrics."""
        return ()

    def _touch(self, job: str) -> str:
        if job in self._running:
            return job
        label = label_value(job)
        with self._lock:
            if label in self._ended:
                self._ended[label] = self._clock()
                self._ended.move_to_end(label)
            elif label not in self._running:
                if len(self._running) == MAX_RUNNING_JOBS:
                    self._end(next(iter(self._running)))
                self._running[label] = None
                for counter, others in self._zeros:
                    counter.labels(label, self._role, *others)
            self._forget()
        return label

    def _forget(self) -> None:
        oldest = self._clock() - KEPT_SECONDS
        while self._ended and (len(self._ended) > KEPT_JOBS or next(iter(self._ended.values())) < oldest):
            label, _ = self._ended.popitem(last=False)
            for metric in self._metrics:
                metric.remove_by_labels({"job": label, "role": self._role})
                self._children.pop((metric, label), None)
